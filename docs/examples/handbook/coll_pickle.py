"""Object collectives run what a sender wants: unpickling is code. weights_only=True refuses it.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_pickle.py
"""

import pickle

import torch.distributed as dist


class Surprise:
    """Tells pickle to call a function in order to build it again. Any function: here print."""

    def __reduce__(self) -> tuple:
        return print, ("rank 1 ran code that rank 0 chose",)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    # gather_object: only rank 1 unpickles.
    received = [None, None] if rank == 1 else None
    dist.gather_object(Surprise() if rank == 0 else "harmless", received, dst=1)
    if rank == 1:
        print(f"rank {rank} received {received}")

    # The same with torch.save and torch.load(weights_only=True) in place of pickle.
    received = [None, None] if rank == 1 else None
    try:
        dist.gather_object(Surprise() if rank == 0 else 0, received, dst=1, weights_only=True)
    except pickle.UnpicklingError as error:
        print(f"rank {rank} {type(error).__name__}: {str(error)[:24]}")

    # Numbers, texts, lists, dicts and tensors pass.
    received = [None, None] if rank == 1 else None
    dist.gather_object({"loss": 0.5, "rank": rank}, received, dst=1, weights_only=True)
    if rank == 1:
        print(f"rank {rank} received {received}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
