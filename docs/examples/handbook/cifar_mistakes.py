"""Five mistakes of nearly every first DDP script, and what each of them looks like.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/cifar_mistakes.py
"""

import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def gather(mine: Tensor) -> list[int]:
    """The numbers of all ranks, one rank after the other."""
    shares = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, mine)
    return torch.cat(shares).tolist()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    sampler = DistributedSampler(range(8), seed=0)
    print(f"rank {rank} without set_epoch: epoch 0 {list(sampler)}, epoch 1 {list(sampler)}")
    sampler.set_epoch(1)
    print(f"rank {rank} with set_epoch:    epoch 1 {list(sampler)}")

    for name, seed in (("one seed on all ranks", 0), ("another on each rank", rank)):
        seen = gather(torch.tensor(list(DistributedSampler(range(1000), seed=seed))))
        if rank == 0:
            print(f"{name}: {len(set(seen))} of 1000 images in an epoch")

    right = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1], dtype=torch.float64)  # of 11 images
    padded = right[list(DistributedSampler(right, shuffle=False))].mean()
    dist.all_reduce(padded)
    share = right[rank::world_size]
    sums = torch.stack([share.sum(), torch.ones_like(share).sum()])
    dist.all_reduce(sums)
    if rank == 0:
        print(f"padded: {padded.item() / world_size:.4f}, exact: {(sums[0] / sums[1]).item():.4f}")

    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model(torch.full((4, 2), float(rank))).sum().backward()
    folder = tempfile.TemporaryDirectory() if rank == 0 else None
    path = [f"{folder.name}/model.pt" if folder else None]
    dist.broadcast_object_list(path, src=0)
    for turn in range(world_size):  # every rank writes the file; here one after the other
        if rank == turn:
            torch.save(model.state_dict(), path[0])
        dist.barrier()
    state = torch.load(path[0])
    mine = torch.equal(state["module.1.running_mean"], model.module[1].running_mean)
    print(f"rank {rank} the file holds the BatchNorm statistics of this rank: {mine}")
    try:
        model.module.load_state_dict(state)
    except RuntimeError as error:
        if rank == 0:
            print(f"RuntimeError: {str(error).splitlines()[1].strip()[:50]}")
    dist.barrier()  # rank 0 removes the folder when all have read
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
