"""Communication hooks: gradients sent in 16 bits, and what that costs in precision.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_compress.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

SENT: list[Tensor] = []  # what the hook of our own has given to all_reduce


def send_as(dtype: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A hook of our own: called with a full bucket, returns a future of the average."""
    small = bucket.buffer().to(dtype)
    small /= dist.get_world_size()  # DDP does not divide for a hook
    SENT.append(small)
    future = dist.all_reduce(small, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def gradient(scale: float, hook: object = None, state: object = None) -> Tensor:
    """The averaged gradient of one backward, its size multiplied by scale."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
    if hook:
        model.register_comm_hook(state, hook)
    inputs = torch.randn(2, 32, 64)[dist.get_rank()]
    (scale * model(inputs).square().mean()).backward()
    return model.module.weight.grad


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for scale in (1.0, 1e-6, 1e9):
        exact = gradient(scale)
        assert torch.equal(gradient(scale, default_hooks.allreduce_hook), exact)
        errors = {}
        for name, hook, state in (
            ("library's fp16", default_hooks.fp16_compress_hook, None),
            ("our fp16", send_as, torch.float16),
            ("our bf16", send_as, torch.bfloat16),
        ):
            difference = gradient(scale, hook, state) - exact
            errors[name] = (difference.norm() / exact.norm()).item()
        if dist.get_rank() == 0:
            print(f"gradients times {scale:.0e}:", {k: f"{e:.0e}" for k, e in errors.items()})
    if dist.get_rank() == 0:
        print(f"sent: {SENT[0].nbytes} bytes in place of {exact.nbytes}")
    dist.barrier()
    dist.destroy_process_group()
