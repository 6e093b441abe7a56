"""PowerSGD: how much less is sent, how wrong one gradient is, and what error feedback repairs.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_powersgd.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

STEPS, SIZE, BEFORE = 50, 64, 2  # the first two steps are plain all-reduces


def train(matrix_rank: int, feedback: bool) -> tuple[float, float, float]:
    """Relative errors of the last gradient and of the mean of all; how much less was sent."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(SIZE, SIZE, bias=False).double())
    state = powersgd.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=matrix_rank,
        start_powerSGD_iter=BEFORE,
        use_error_feedback=feedback,
    )
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    inputs, targets = torch.randn(2, 2, 32, SIZE, dtype=torch.float64)[dist.get_rank()]
    inputs *= 0.8 ** torch.arange(SIZE)  # a few directions matter, as in real gradients
    total = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for step in range(BEFORE + STEPS):
        model.zero_grad()
        # Linear in the weights, so that the true gradient is the same in every step.
        (model(inputs) * targets).sum().backward()
        gradient = model.module.weight.grad
        if step < BEFORE:
            exact = gradient.clone()
        else:
            total += gradient
    one = (gradient - exact).norm() / exact.norm()
    mean = (total / STEPS - exact).norm() / exact.norm()
    return one.item(), mean.item(), state.compression_stats()[0]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for matrix_rank in (1, 4, 16):
        for feedback in (False, True):
            one, mean, less = train(matrix_rank, feedback)
            if dist.get_rank() == 0:
                print(
                    f"matrix rank {matrix_rank}, 1/{less:.0f} of the numbers sent, error feedback "
                    f"{feedback}: one gradient {one:.2f} off, the mean of {STEPS} {mean:.2f}"
                )
    dist.barrier()
    dist.destroy_process_group()
