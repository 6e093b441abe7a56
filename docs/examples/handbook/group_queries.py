"""What a process may ask about its group, before and after init_process_group.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/group_queries.py
"""

import torch.distributed as dist


def main() -> None:
    available = f"available {dist.is_available()}, gloo {dist.is_gloo_available()}"
    before = dist.is_initialized()
    try:
        dist.get_world_size()
        refused = "nothing"
    except ValueError as error:
        refused = f"ValueError: {str(error).split(',')[0]}"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print(f"rank {rank} {available}, launched by torchrun {dist.is_torchelastic_launched()}")
    print(f"rank {rank} before: initialized {before}, get_world_size() said {refused}")
    print(f"rank {rank} now: initialized {dist.is_initialized()}, of {dist.get_world_size()}")
    print(f"rank {rank} on this machine: {dist.get_node_local_rank()}")
    print(f"rank {rank} backend {dist.get_backend()}, for {dist.get_backend_config()}")
    dist.barrier()  # rank 1 may still be connecting: rank 0 must not leave before
    dist.destroy_process_group()
    print(f"rank {rank} after destroy: initialized {dist.is_initialized()}")


if __name__ == "__main__":
    main()
