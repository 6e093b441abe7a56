"""Many small tensors, one all-reduce: flatten them yourself. What torch has is going, or private.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_coalesced.py
"""

import sys
import warnings

import torch
import torch.distributed as dist


def make(rank: int) -> list[torch.Tensor]:
    return [torch.full(shape, rank + 1.0) for shape in ((2, 3), (4,), (1,))]


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    expected = make(rank)
    for tensor in expected:
        dist.all_reduce(tensor)

    # By hand: one flat tensor, then copied back. Horovod calls it fusion, DDP a bucket.
    tensors = make(rank)
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))
    torch.testing.assert_close(tensors, expected)
    say(f"flat: one all-reduce of {len(flat)} elements")

    # Public, but going: it warns.
    tensors = make(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.all_reduce_coalesced(tensors)
    torch.testing.assert_close(tensors, expected)
    say(f"all_reduce_coalesced: {caught[0].category.__name__}")

    # Private, and may change in any release: collectives inside wait for the end of the block.
    tensors = make(rank)
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
        say(f"inside of the block: {tensors[2].item():g}")
    torch.testing.assert_close(tensors, expected)
    say(f"after it: {tensors[2].item():g}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
