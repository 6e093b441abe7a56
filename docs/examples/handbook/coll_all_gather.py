"""all_gather into a list and into one tensor, and what to do where sizes differ.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_all_gather.py
"""

import sys

import torch
import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    mine = torch.tensor([10 * rank, 10 * rank + 1])
    as_list = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(as_list, mine)
    say(f"list:   {[part.tolist() for part in as_list]}")

    # One tensor: the parts joined along dimension 0, as torch.cat does it.
    joined = torch.empty(world_size * 2, dtype=torch.int64)
    dist.all_gather_into_tensor(joined, mine)
    say(f"tensor: {joined.tolist()}")
    torch.testing.assert_close(joined, torch.cat(as_list))

    # Rank r has r + 1 elements. gloo wants equal sizes, and says so on every rank.
    uneven = torch.full((rank + 1,), rank)
    try:
        dist.all_gather([torch.empty(r + 1, dtype=torch.int64) for r in range(world_size)], uneven)
    except RuntimeError as error:
        say(f"{type(error).__name__}: {str(error).split(' at ')[0]}")

    # So: sizes first, pad to the largest, gather, cut off the padding.
    sizes = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(uneven)]))
    padded = torch.zeros(int(sizes.max()), dtype=torch.int64)
    padded[: len(uneven)] = uneven
    rows = torch.empty(world_size, len(padded), dtype=torch.int64)
    dist.all_gather_into_tensor(rows.view(-1), padded)  # flat: gloo takes no (ranks, size)
    parts = [row[:size].tolist() for row, size in zip(rows, sizes.tolist(), strict=True)]
    say(f"uneven: {parts}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
