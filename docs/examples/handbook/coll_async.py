"""async_op=True: the call returns a Work at once; the tensor is to be left alone until wait().

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_async.py
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

    tensor = torch.ones(2)
    say(f"sync returns {dist.all_reduce(tensor)}, tensor {tensor.tolist()}")

    # Rank 1 comes only after rank 0's message, so rank 0's all-reduce cannot be done before.
    tensor, signal = torch.ones(2), torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        say(f"begun, completed: {work.is_completed()}")
        dist.send(signal, 1)  # anything else goes here: the next layer's gradients, for one
    else:
        dist.recv(signal, 0)
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    say(f"waited, completed: {work.is_completed()}, tensor {tensor.tolist()}")

    # Several at once, in the same order on all ranks; wait for each before its tensor is read.
    gradients = [torch.full((2,), float(rank + layer)) for layer in range(3)]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for work in works:
        work.wait()
    say(f"sums {[gradient[0].item() for gradient in gradients]}")

    # A future takes what is to be done with the result: here the mean, as DDP's hooks do.
    future = dist.all_reduce(torch.full((2,), float(rank)), async_op=True).get_future()
    mean = future.then(lambda done: done.value()[0] / world_size).wait()
    say(f"mean {mean.tolist()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
