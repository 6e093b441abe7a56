"""What torchrun tells each of its processes.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/elastic_env.py
"""

import os

import torch.distributed as dist

WHO = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK"
RUN = "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE"
CHANGING = "MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE"


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for names in (WHO, RUN):
        print(f"rank {rank}", *(f"{name}={os.environ[name]}" for name in names.split()))
    print(f"rank {rank} set as well:", *(name for name in CHANGING.split() if name in os.environ))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
