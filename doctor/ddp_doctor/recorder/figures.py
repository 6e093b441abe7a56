"""Tensors in a few numbers: computed on the device, read when they have come to the CPU."""

import time
from collections import deque
from collections.abc import Callable

import torch

from .notes import notes

GROUPS = 16  # of parameters: figures for each of them


class Figures:
    def __init__(self) -> None:
        self.waiting = deque()  # those on their way from a GPU

    def write(self, what: str, n: int, values: object) -> None:
        self.send(values, lambda rows: notes.event("figures", what=what, n=n, values=rows))

    def send(self, values: object, tell: Callable) -> None:
        """tell(values as a list), as soon as they are on the CPU, which does not wait for them."""
        done = None
        if values.device.type == "cuda":
            stream = torch.cuda.current_stream(values.device)
            values = values.to("cpu", non_blocking=True)  # into pinned memory
            done = stream.record_event()
        self.waiting.append((tell, values, done))
        self.drain(wait=False)

    def drain(self, wait: bool) -> None:
        while self.waiting:
            tell, values, done = self.waiting[0]
            limit = time.monotonic() + 5 * wait
            while done is not None and not done.query():
                if time.monotonic() > limit:
                    return  # not yet; at the end: a GPU that stands still
                time.sleep(0.01)
            self.waiting.popleft()
            tell(values.tolist())


figures = Figures()


def figures_of(tensors: list, groups: int = GROUPS) -> object:
    """Sums of norms and of weighted samples, in groups: float64 (groups, 2), on the device.

    tensors: None counts as zeros.
    """
    device = next((tensor.device for tensor in tensors if tensor is not None), "cpu")
    totals = torch.zeros(groups, 2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for n, tensor in enumerate(tensors):
            if tensor is None:
                continue
            values = tensor.detach()
            if hasattr(values, "to_local"):
                values = values.to_local()
            if values.is_sparse:
                values = values.coalesce().values()
            if not values.is_floating_point():
                values = values.float()
            if values.untyped_storage().size() < values.numel():
                continue  # FSDP has freed it: reading it would crash

            norm = torch.linalg.vector_norm(values).double()
            sample = in_memory_order(values)
            sample = sample[:: max(1, sample.numel() // 64)].double()

            weights = torch.arange(1, len(sample) + 1, dtype=torch.float64, device=values.device)
            row = torch.stack([norm, (sample * weights).sum()])
            totals[n * groups // len(tensors)] += row.to(device)
    return totals


def in_memory_order(values: object) -> object:
    """A dense tensor as one dimension without a copy, channels_last ones too."""
    last = values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last)
    return values.as_strided((values.numel(),), (1,)) if last else values.reshape(-1)


def capturing() -> bool:
    """Whether a CUDA graph is being made, which must not contain what we would add."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
