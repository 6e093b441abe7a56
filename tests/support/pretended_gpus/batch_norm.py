"""The kernels of SyncBatchNorm, which torch has for GPUs only, in the words of torch.

nn.SyncBatchNorm itself is torch's: what it sends, and when.
"""

from typing import Any

import torch
from torch import Tensor


def over_channels(values: Tensor, like: Tensor) -> Tensor:
    """One number for each channel, in the shape of a batch."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def others(batch: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dim for dim in range(batch.dim()) if dim != 1]


def batch_norm_stats(batch: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(batch, others(batch), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    batch: Tensor, means: Tensor, invstds: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and deviation of all ranks' batches together."""
    shares = (counts / counts.sum())[:, None]
    mean = (shares * means).sum(0)
    squares = invstds**-2 - eps + means**2
    variance = (shares * squares).sum(0) - mean**2
    if running_mean is not None:
        total = counts.sum()
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * total / (total - 1), momentum)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(
    batch: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    result = (batch - over_channels(mean, batch)) * over_channels(invstd, batch)
    if weight is not None:
        result = result * over_channels(weight, batch) + over_channels(bias, batch)
    return result.to(batch.dtype)


def batch_norm_backward_reduce(
    gradient: Tensor, batch: Tensor, mean: Tensor, invstd: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over this rank's batch, and the gradients of weight and bias."""
    sum_dy = gradient.sum(others(batch))
    centred = batch - over_channels(mean, batch)
    sum_dy_xmu = (gradient * centred).sum(others(batch))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def batch_norm_backward_elemt(
    gradient: Tensor, batch: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    sum_dy: Tensor, sum_dy_xmu: Tensor, counts: Tensor,
) -> Tensor:  # fmt: skip
    total = counts.sum()
    centred = batch - over_channels(mean, batch)
    along = over_channels(sum_dy_xmu / total * invstd**2, batch) * centred
    result = (gradient - over_channels(sum_dy / total, batch) - along) * over_channels(
        invstd, batch
    )
    if weight is not None:
        result = result * over_channels(weight, batch)
    return result.to(batch.dtype)


def install() -> None:
    for function in (
        batch_norm_stats, batch_norm_gather_stats_with_counts, batch_norm_elemt,
        batch_norm_backward_reduce, batch_norm_backward_elemt,
    ):  # fmt: skip
        setattr(torch, function.__name__, function)
