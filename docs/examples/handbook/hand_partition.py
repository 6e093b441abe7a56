"""Ten samples for three ranks: shares cut by hand, and what DistributedSampler does beyond that.

python docs/examples/handbook/hand_partition.py
"""

import torch
from torch.utils.data import DistributedSampler, Subset


def share_of(rank: int, world_size: int, length: int, seed: int) -> list[int]:
    """Every world_size-th sample of an order that all ranks compute alike."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return order[rank::world_size].tolist()


if __name__ == "__main__":
    data, world_size = list("abcdefghij"), 3
    shares = [share_of(rank, world_size, len(data), seed=0) for rank in range(world_size)]
    # Nothing is missing, nothing comes twice.
    assert sorted(sum(shares, [])) == list(range(len(data)))

    print("shares, the same twice because the seed is:")
    for rank in range(world_size):
        mine = Subset(data, shares[rank])  # looks like a data set, for any DataLoader
        assert share_of(rank, world_size, len(data), seed=0) == shares[rank]
        print(f"rank {rank} by hand         ", shares[rank], "".join(mine))

    for rank in range(world_size):
        padded = DistributedSampler(data, world_size, rank, seed=0)
        print(f"rank {rank} padded          ", list(padded))
        assert list(padded)[: len(shares[rank])] == shares[rank]

        dropped = DistributedSampler(data, world_size, rank, seed=0, drop_last=True)
        print(f"rank {rank} drop_last       ", list(dropped))

        padded.set_epoch(1)  # the order is that of seed + epoch
        print(f"rank {rank} padded, epoch 1 ", list(padded))
        mine = share_of(rank, world_size, len(data), seed=1)
        assert list(padded)[: len(mine)] == mine
