"""Two groups of the same ranks, made in another order on rank 1: sums of the wrong things.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/group_new_group_order.py
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {}
    for name in ("losses", "images") if rank == 0 else ("images", "losses"):  # wrong
        groups[name] = dist.new_group([0, 1])
    loss, images = torch.tensor(1.0), torch.tensor(64.0)
    works = [
        dist.all_reduce(loss, group=groups["losses"], async_op=True),
        dist.all_reduce(images, group=groups["images"], async_op=True),
    ]
    for work in works:
        work.wait()
    print(f"rank {rank} loss {loss.item()}, should be 2.0; images {images.item()}, not 128.0")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
