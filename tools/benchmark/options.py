"""Part of the benchmark: steps with one measure each, against the same step without it.

A rank, started by torchrun: options.py GROUP OUT ARCH IMAGE_SIZE BATCH_SIZE STEPS ROUNDS. All
measures of a group take turns in one process, on one batch that is in memory; rank 0 writes the
seconds of each turn to OUT, as JSON.
"""

import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import MappingProxyType

import torch
import torch.distributed as dist
from parts import Works, hand_over, has_bf16, in_turns, own_device, seconds_of
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torchvision import models

# Its new name in torch 2.15, where the old one warns.
NEW = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
NO_BUFFERS = {"forward_sync_buffers" if NEW else "broadcast_buffers": False}
VIEW = {"gradient_as_bucket_view": True}

# What a step does differently, as arguments of Trainer; `plain` is what the others of its group
# are compared with: fp32, PyTorch's own memory layout and its plainest SGD.
PLAIN = {"plain": {}}
FORWARD = {
    "channels_last": {"channels_last": True},
    "channels_last for images only": {"only_images": True},
    "bf16": {"bf16": True},
    "channels_last, bf16": {"channels_last": True, "bf16": True},
}
OPTIMIZERS = {"fused SGD": {"sgd": "fused"}, "foreach SGD": {"sgd": "foreach"}}
STEP = {
    "compile": {"compile": True},
    "compile, channels_last": {"channels_last": True, "compile": True},
    **OPTIMIZERS,
    "zero_grad(set_to_none=False)": {"keep_gradients": True},
}
DDP = {
    "without DDP": {"ddp": None},
    "gradient_as_bucket_view": {"ddp": VIEW},
    "static_graph": {"ddp": {"static_graph": True}},
    "no buffers": {"ddp": NO_BUFFERS},
    "bucket_cap_mb=5": {"ddp": {"bucket_cap_mb": 5}},
    "bucket_cap_mb=100": {"ddp": {"bucket_cap_mb": 100}},
    "fp16_compress_hook": {"hook": default_hooks.fp16_compress_hook},
    "bf16_compress_hook": {"hook": default_hooks.bf16_compress_hook},
    "bucket view, no buffers, fused SGD": {"ddp": VIEW | NO_BUFFERS, "sgd": "fused"},
    "barrier and 3 all_reduce": {"metrics": True},
}
GROUPS = {
    "step": PLAIN | FORWARD | STEP,
    "evaluation": PLAIN | FORWARD,
    "optimizer": PLAIN | OPTIMIZERS,
    "ddp": PLAIN | DDP,
}


class Trainer:
    """A model of its own for a measure, from the same seed, and what can be timed with it."""

    def __init__(
        self,
        arch: str,
        images: Tensor,
        targets: Tensor,
        channels_last: bool = False,
        only_images: bool = False,  # channels_last for them, not for the weights
        bf16: bool = False,
        compile: bool = False,
        sgd: str = "",  # the argument of SGD that is True
        keep_gradients: bool = False,  # zero them, where PyTorch would free them
        ddp: dict | None = MappingProxyType({}),  # its arguments, where there are ranks
        hook: Callable | None = None,
        metrics: bool = False,  # three means over all ranks after each step, as many scripts do
    ) -> None:
        torch.manual_seed(0)
        self.targets, self.bf16, self.metrics = targets, bf16, metrics
        self.keep_gradients = keep_gradients
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = models.get_model(arch, num_classes=1000).to(images.device, memory_format=layout)
        if dist.is_initialized() and ddp is not None:
            model = DistributedDataParallel(model, **ddp)
            if hook:
                model.register_comm_hook(None, hook)
        # On GPUs PyTorch takes foreach unless told: without a name here it is the plain loop.
        ways = {way: way == sgd for way in ("fused", "foreach")}
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, **ways)
        self.model = torch.compile(model) if compile else model
        layout = torch.channels_last if only_images else layout
        self.images = images.contiguous(memory_format=layout)

    def loss(self) -> Tensor:
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.bf16):
            return nn.functional.cross_entropy(self.model(self.images), self.targets)

    def step(self) -> None:
        loss = self.loss()
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)
        loss.backward()
        self.optimizer.step()
        if self.metrics:
            dist.barrier()
            for _ in range(3):
                mean = loss.detach() / dist.get_world_size()
                dist.all_reduce(mean)
                mean.item()

    @torch.inference_mode()
    def evaluation(self) -> None:
        self.model.eval()
        self.loss()

    def optimizer_alone(self) -> None:
        if next(self.model.parameters()).grad is None:
            self.loss().backward()
        self.optimizer.step()


def timed(work: Callable[[], None], steps: int) -> dict[str, float]:
    """seconds_of so many steps; ranks begin together."""
    if dist.is_initialized():
        dist.barrier()
    return seconds_of(lambda: [work() for _ in range(steps)])


def compare(works: Works, steps: int, rounds: int) -> dict:
    """Seconds of the very first step of each, which compiles and allocates, and of its turns."""
    first = {name: timed(work, 1)["wall"] for name, work in works.items()}
    in_turns(works, 1, lambda work: timed(work, 1))  # DDP orders its buckets anew after the first
    rows = in_turns(works, rounds, lambda work: timed(work, steps))
    return {"steps": steps, "first_step": first, "rounds": [{"turns": row} for row in rows]}


def main(
    group: str, out: Path, arch: str, image_size: int, batch_size: int, steps: int, rounds: int
) -> None:
    """One rank: all measures of a group."""
    torch.set_num_threads(1)
    device = own_device()
    if group == "ddp":
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    targets = torch.randint(1000, (batch_size,), device=device)
    works = {}
    for name, measure in GROUPS[group].items():
        if "bf16" in measure and not has_bf16():
            continue
        trainer = Trainer(arch, images, targets, **measure)
        ways = {"evaluation": trainer.evaluation, "optimizer": trainer.optimizer_alone}
        works[name] = ways.get(group, trainer.step)
    sizes = {"batch_size": batch_size, "image_size": image_size}
    hand_over(compare(works, steps, rounds) | sizes, out)


if __name__ == "__main__":
    group, out, arch, *numbers = sys.argv[1:]
    main(group, Path(out), arch, *map(int, numbers))
