"""SyncBatchNorm: what a CPU answers, and its algebra by hand, equal to the whole batch.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_sync_batchnorm.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

EPS = 1e-5


class Normalize(torch.autograd.Function):
    """(x - mean) / std over the images of all ranks: one all-reduce in each direction."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, inputs: Tensor) -> Tensor:
        count = torch.full((1,), len(inputs), dtype=inputs.dtype)
        # Sums and a count, not means: the ranks need not have equally many images.
        sums = torch.cat([count, inputs.sum(0), inputs.square().sum(0)])
        dist.all_reduce(sums)
        count, (mean, mean_square) = sums[0], (sums[1:] / sums[0]).chunk(2)
        std = (mean_square - mean.square() + EPS).sqrt()
        outputs = (inputs - mean) / std
        ctx.save_for_backward(outputs, std, count)
        return outputs

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        outputs, std, count = ctx.saved_tensors
        # Every output depends on every input through mean and std, on all ranks.
        sums = torch.cat([gradient.sum(0), (gradient * outputs).sum(0)])
        dist.all_reduce(sums)
        through_mean, through_std = (sums / count).chunk(2)
        return (gradient - through_mean - outputs * through_std) / std


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)))
    print(f"rank {rank} converted to {type(model[0]).__name__}")
    for what in (lambda: DistributedDataParallel(model), lambda: model(torch.ones(2, 3))):
        try:
            what()
        except ValueError as error:
            print(f"rank {rank} ValueError: {str(error)[:54]}")

    torch.manual_seed(0)  # the same on all ranks
    whole, weights = torch.randn(2, 8, 3, dtype=torch.float64)
    mine = slice(0, 3) if rank == 0 else slice(3, 8)  # three images here, five there
    whole.requires_grad_()
    expected = nn.BatchNorm1d(3, eps=EPS, affine=False).double()(whole)
    (expected * weights).sum().backward()

    inputs = whole.detach()[mine].requires_grad_()
    outputs = Normalize.apply(inputs)
    (outputs * weights[mine]).sum().backward()
    torch.testing.assert_close(outputs, expected[mine], rtol=0, atol=1e-12)
    torch.testing.assert_close(inputs.grad, whole.grad[mine], rtol=0, atol=1e-12)

    alone = nn.BatchNorm1d(3, eps=EPS, affine=False).double()(inputs)
    print(f"rank {rank} by hand: outputs and gradients are those of the whole batch")
    print(f"rank {rank} plain BatchNorm: off by up to {(alone - outputs).abs().max():.2f}")
    dist.barrier()
    dist.destroy_process_group()
