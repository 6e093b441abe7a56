"""A home-made DDP: hooks, buckets, overlap, buffers, no_sync; equal to torch's own.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/hand_home_made_ddp.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CAP = 2048  # bytes; torch's default is 25 MiB


class Bucket:
    """Parameters whose gradients travel together, and the flat tensor in which they do."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.flat = parameters[0].new_zeros(sum(p.numel() for p in parameters))
        pieces = self.flat.split([p.numel() for p in parameters])
        self.views = {p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
        self.missing = set(parameters)  # whose gradients are not there yet
        self.work: dist.Work | None = None


class HomeMadeDDP(nn.Module):
    """Averages gradients during backward. One type of parameters, all of them used."""

    def __init__(self, module: nn.Module, cap: int = CAP) -> None:
        super().__init__()
        self.module, self.cap = module, cap
        self.synchronizing = self.copy_buffers = True
        self.trained = [p for p in module.parameters() if p.requires_grad]
        self.log: list[str] = []
        shapes: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(shapes, [tuple(p.shape) for p in self.trained])
        if any(other != shapes[0] for other in shapes):
            raise RuntimeError("the ranks have different models")
        self.copy_from_rank_0([*module.parameters(), *module.buffers()])
        self.buckets = [Bucket(self.trained)]  # one, until the order is known
        self.order_is_known = False
        self.expect_gradients()
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.copy_buffers:  # torch's rule: the forward before this one was for training
            self.copy_from_rank_0(self.module.buffers())
        self.copy_buffers = self.synchronizing and torch.is_grad_enabled()
        return self.module(*inputs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay where they are and add up; the next backward outside averages them."""
        self.synchronizing = False
        try:
            yield
        finally:
            self.synchronizing = True

    def copy_from_rank_0(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def expect_gradients(self) -> None:
        """Before each backward: every bucket is empty, and none has been sent."""
        self.arrived: list[nn.Parameter] = []
        self.next = 0  # the bucket to be sent next
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}
        for bucket in self.buckets:
            bucket.missing = set(bucket.views)

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """Called by autograd, in backward, as soon as parameter.grad is complete."""
        if not self.synchronizing:
            return
        if not self.arrived:
            torch.autograd.graph.queue_callback(self.on_end_of_backward)
        self.arrived.append(parameter)
        bucket = self.bucket_of[parameter]
        torch.div(parameter.grad, dist.get_world_size(), out=bucket.views[parameter])
        bucket.missing.remove(parameter)
        self.log.append(f"g{len(self.arrived)}")
        # Full buckets are sent in their order, not in that of filling: the latter may differ
        # from rank to rank, and then one rank's bucket 1 would be added to another's bucket 2.
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            full = self.buckets[self.next]
            full.work = dist.all_reduce(full.flat, async_op=True)  # backward goes on meanwhile
            self.log.append(f"send{self.next}")
            self.next += 1

    def on_end_of_backward(self) -> None:
        """Called by autograd when nothing is left to compute: wait, and hand out the averages."""
        if self.next < len(self.buckets):
            count = sum(len(bucket.missing) for bucket in self.buckets)
            raise RuntimeError(f"{count} parameters got no gradient")
        for number, bucket in enumerate(self.buckets):
            bucket.work.wait()
            self.log.append(f"wait{number}")
            for parameter, average in bucket.views.items():
                parameter.grad.copy_(average)
        if not self.order_is_known:
            self.buckets, self.order_is_known = self.fill_buckets(), True
        self.expect_gradients()

    def fill_buckets(self) -> list[Bucket]:
        """In the order in which gradients came on rank 0; closed once the cap is reached."""
        number = {parameter: i for i, parameter in enumerate(self.trained)}
        order = torch.tensor([number[parameter] for parameter in self.arrived])
        dist.broadcast(order, src=0)
        lists: list[list[nn.Parameter]] = [[]]
        for i in order.tolist():
            if sum(p.nbytes for p in lists[-1]) >= self.cap:
                lists.append([])
            lists[-1].append(self.trained[i])
        return [Bucket(parameters) for parameters in lists]


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    blocks = [m for _ in range(3) for m in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, 32), *blocks, nn.Linear(32, 4)).double()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # Each rank begins with other weights; both wrappers must give it rank 0's.
    ours = HomeMadeDDP(make_model(seed=rank))
    theirs = DistributedDataParallel(make_model(seed=rank), bucket_cap_mb=CAP / 2**20)
    models = (ours, theirs)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    torch.manual_seed(100 + rank)  # from here on, data of its own
    for step in range(1, 7):
        accumulate = step == 4  # one step from two batches
        batches = torch.randn(1 + accumulate, 8, 16, dtype=torch.float64)
        ours.log.clear()
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            with model.no_sync() if accumulate else contextlib.nullcontext():
                model(batches[0]).square().mean().backward()
            if accumulate:
                model(batches[1]).square().mean().backward()
            optimizer.step()
        for name, value in ours.state_dict().items():  # parameters and buffers
            torch.testing.assert_close(value, theirs.state_dict()[name], rtol=0, atol=1e-12)
        if rank == 0 and step <= 2:
            print(f"step {step}:", *ours.log)
    if rank == 0:
        print("bytes in a bucket, ours: ", *(bucket.flat.nbytes for bucket in ours.buckets))
        print("bytes in a bucket, torch:", theirs._get_ddp_logging_data()["rebuilt_bucket_sizes"])
        print(f"{step} steps: all parameters and buffers are equal")
    dist.barrier()
    dist.destroy_process_group()
