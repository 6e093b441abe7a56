"""Groups inside of the group: new_group, new_subgroups, new_subgroups_by_enumeration.

torchrun --standalone --nproc-per-node 4 docs/examples/handbook/group_subgroups.py
"""

import torch
import torch.distributed as dist


def total(group: dist.ProcessGroup) -> int:
    """The sum of the ranks of a group, by all-reduce."""
    tensor = torch.tensor(dist.get_rank())
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    outer = dist.new_group([0, 3])  # all four call it, also those that will not be in it
    if rank in (0, 3):
        inside = f"rank {dist.get_rank(outer)} of {dist.get_world_size(outer)}"
        print(f"rank {rank} in outer: {inside}, total {total(outer)}")
        print(f"rank {rank} outer's rank 1 is rank {dist.get_global_rank(outer, 1)} of all")
    else:
        member = outer is not dist.GroupMember.NON_GROUP_MEMBER
        print(f"rank {rank} in outer: {member}, get_rank(outer) is {dist.get_rank(outer)}")

    half, halves = dist.new_subgroups(group_size=2)  # neighbours: [0, 1] and [2, 3]
    print(f"rank {rank} half {dist.get_process_group_ranks(half)}, total {total(half)}")

    pair, pairs = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    print(f"rank {rank} pair {dist.get_process_group_ranks(pair)}, total {total(pair)}")

    for group in (half, pair):
        dist.destroy_process_group(group)
    print(f"rank {rank} everybody again: total {total(dist.group.WORLD)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
