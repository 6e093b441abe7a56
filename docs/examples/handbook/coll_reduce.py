"""reduce and all_reduce: a sum over all ranks, on one of them or on each; and a global mean.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_reduce.py
"""

import sys

import torch
import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    # In place. On the other ranks the tensor may hold partial sums afterwards: do not read it.
    tensor = torch.tensor([1.0, 10.0]) * (rank + 1)
    dist.reduce(tensor, dst=0)
    say(f"reduce:     {tensor.tolist() if rank == 0 else 'undefined'}")

    tensor = torch.tensor([1.0, 10.0]) * (rank + 1)
    dist.all_reduce(tensor)
    say(f"all_reduce: {tensor.tolist()}")

    # Rank r has r + 1 losses, 0 to r. Means cannot be added; sums and counts can, in one call.
    losses = torch.arange(rank + 1, dtype=torch.float64)
    total = torch.stack([losses.sum(), torch.tensor(len(losses), dtype=torch.float64)])
    dist.all_reduce(total)
    mean_of_means = losses.mean()
    dist.all_reduce(mean_of_means, dist.ReduceOp.AVG)
    say(f"mean {total[0] / total[1]:.4f}, mean of means {mean_of_means:.4f}")
    everything = torch.cat([torch.arange(r + 1.0) for r in range(dist.get_world_size())])
    torch.testing.assert_close(total[0] / total[1], everything.mean().double())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
