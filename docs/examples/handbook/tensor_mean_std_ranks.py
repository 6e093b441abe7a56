"""The same over several ranks: each sums its share, and one all-reduce adds the sums up.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/tensor_mean_std_ranks.py
"""

import torch
import torch.distributed as dist
from torch import Tensor


def sums(images: Tensor) -> Tensor:
    """Seven numbers in one tensor: pixels, the sum of each channel, the sum of its squares."""
    pixels = images.double()
    count = torch.tensor([images.numel() // 3], dtype=torch.float64)
    return torch.cat([count, pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])


def mean_and_std(totals: Tensor) -> tuple[Tensor, Tensor]:
    count, total, squares = totals.split([1, 3, 3])
    mean = total / count
    return mean / 255, (squares / count - mean**2).sqrt() / 255


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (101, 3, 16, 16), generator=generator).byte()

    share = images[rank::world_size]  # not padded: the shares may differ in size
    totals = sums(share)
    dist.all_reduce(totals)
    mean, std = mean_and_std(totals)

    # Sums of integers are exact in float64, so the result is that of one process to the last bit.
    torch.testing.assert_close((mean, std), mean_and_std(sums(images)), rtol=0, atol=0)
    print(f"rank {rank} {len(share)} of {len(images)} images")
    own = mean_and_std(sums(share))[1]
    dist.all_reduce(own)
    if rank == 0:
        print("mean", " ".join(f"{v:.4f}" for v in mean.tolist()))
        print("std ", " ".join(f"{v:.4f}" for v in std.tolist()))
        print("the mean of the ranks' std is the same:", torch.equal(own / world_size, std))
    dist.barrier()
    dist.destroy_process_group()
