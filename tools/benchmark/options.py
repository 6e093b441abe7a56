"""Part of the benchmark: steps with one measure each, against the same step without it.

A rank, started by torchrun with the name of a group. All ways of a group take turns in one process,
on one batch that is in memory; rank 0 writes the seconds of each turn.
"""

import json
import os
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path

import torch
import torch.distributed as dist
from parts import rotated, seconds_of
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torchvision import models

_ddp_arguments = signature(nn.parallel.DistributedDataParallel).parameters
# Its new name in torch 2.15, where the old one warns.
BUFFERS = next(x for x in ("forward_sync_buffers", "broadcast_buffers") if x in _ddp_arguments)
PLAIN = "plain"  # what the others of its group are compared with


@dataclass(frozen=True)
class Measure:
    """What a step does differently from fp32, PyTorch's own memory layout and its plainest SGD."""

    channels_last: bool = False
    only_images: bool = False  # channels_last for them, not for the weights
    bf16: bool = False
    compile: bool = False
    sgd: str | None = None  # the argument of SGD that is True
    keep_gradients: bool = False  # zero them, where PyTorch would free them
    ddp: dict | None = field(default_factory=dict)  # its arguments, where there are ranks
    hook: Callable | None = None
    metrics: bool = False  # three means over all ranks after each step, as many scripts take them


FORWARD = {
    "channels_last": Measure(channels_last=True),
    "channels_last for images only": Measure(only_images=True),
    "bf16": Measure(bf16=True),
    "channels_last, bf16": Measure(channels_last=True, bf16=True),
}
OPTIMIZERS = {"fused SGD": Measure(sgd="fused"), "foreach SGD": Measure(sgd="foreach")}
GROUPS: dict[str, dict[str, Measure]] = {
    "step": {
        PLAIN: Measure(),
        **FORWARD,
        "compile": Measure(compile=True),
        "compile, channels_last": Measure(channels_last=True, compile=True),
        **OPTIMIZERS,
        "zero_grad(set_to_none=False)": Measure(keep_gradients=True),
    },
    "evaluation": {PLAIN: Measure(), **FORWARD},
    "optimizer": {PLAIN: Measure(), **OPTIMIZERS},
    "ddp": {
        PLAIN: Measure(),
        "without DDP": Measure(ddp=None),
        "gradient_as_bucket_view": Measure(ddp={"gradient_as_bucket_view": True}),
        "static_graph": Measure(ddp={"static_graph": True}),
        "no buffers": Measure(ddp={BUFFERS: False}),
        "bucket_cap_mb=5": Measure(ddp={"bucket_cap_mb": 5}),
        "bucket_cap_mb=100": Measure(ddp={"bucket_cap_mb": 100}),
        "fp16_compress_hook": Measure(hook=default_hooks.fp16_compress_hook),
        "bf16_compress_hook": Measure(hook=default_hooks.bf16_compress_hook),
        "bucket view, no buffers, fused SGD": Measure(
            ddp={"gradient_as_bucket_view": True, BUFFERS: False}, sgd="fused"
        ),
        "barrier and 3 all_reduce": Measure(metrics=True),
    },
}


class Trainer:
    """A model of its own for a measure, from the same seed, and what can be timed with it."""

    def __init__(self, measure: Measure, arch: str, images: Tensor, targets: Tensor) -> None:
        torch.manual_seed(0)
        self.measure, self.targets = measure, targets
        layout = torch.channels_last if measure.channels_last else torch.contiguous_format
        model = models.get_model(arch, num_classes=1000).to(images.device, memory_format=layout)
        if dist.is_initialized() and measure.ddp is not None:
            model = nn.parallel.DistributedDataParallel(model, **measure.ddp)
            if measure.hook:
                model.register_comm_hook(None, measure.hook)
        # On GPUs PyTorch takes foreach unless told: without a name here it is the plain loop.
        ways = {way: way == measure.sgd for way in ("fused", "foreach")}
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, **ways)
        self.model = torch.compile(model) if measure.compile else model
        layout = torch.channels_last if measure.only_images else layout
        self.images = images.contiguous(memory_format=layout)

    def loss(self) -> Tensor:
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.measure.bf16):
            return nn.functional.cross_entropy(self.model(self.images), self.targets)

    def step(self) -> None:
        loss = self.loss()
        self.optimizer.zero_grad(set_to_none=not self.measure.keep_gradients)
        loss.backward()
        self.optimizer.step()
        if self.measure.metrics:
            dist.barrier()
            for _ in range(3):
                mean = loss.detach() / dist.get_world_size()
                dist.all_reduce(mean)
                mean.item()

    def evaluation(self) -> None:
        self.model.eval()
        with torch.inference_mode():
            self.loss()

    def optimizer_alone(self) -> None:
        if self.model.conv1.weight.grad is None:
            self.loss().backward()
        self.optimizer.step()


def timed(work: Callable[[], None], steps: int) -> dict[str, float]:
    """seconds_of so many steps; between ranks all begin together and none of them is foreign."""
    ranks = dist.is_initialized()
    if ranks:
        dist.barrier()
    seconds = seconds_of(lambda: [work() for _ in range(steps)])
    if ranks:
        cpu = torch.tensor(seconds["cpu"], dtype=torch.float64)
        if torch.cuda.is_available():
            cpu = cpu.cuda()
        dist.all_reduce(cpu)
        others = (cpu.item() - seconds["cpu"]) / seconds["wall"]
        seconds["foreign"] = max(0.0, seconds["foreign"] - others)
    return seconds


def compare(works: dict[str, Callable[[], None]], steps: int, rounds: int) -> dict:
    """Seconds of the very first step of each, which compiles and allocates, and of its turns."""
    first = {name: timed(work, 1)["wall"] for name, work in works.items()}
    for work in works.values():
        timed(work, 1)  # DDP orders its buckets anew after the first backward
    rows = []
    for number in range(rounds):
        turns = {name: timed(works[name], steps) for name in rotated(list(works), number)}
        rows.append({"round": number, "turns": turns})
    return {"steps": steps, "first_step": first, "rounds": rows}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("out", type=Path, help="the JSON file that rank 0 writes")
    parser.add_argument("arch")
    for name in ("image_size", "batch_size", "steps", "rounds"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if args.group == "ddp":
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    targets = torch.randint(1000, (args.batch_size,), device=device)
    works = {}
    for name, measure in GROUPS[args.group].items():
        trainer = Trainer(measure, args.arch, images, targets)
        ways = {"evaluation": trainer.evaluation, "optimizer": trainer.optimizer_alone}
        works[name] = ways.get(args.group, trainer.step)
    row = compare(works, args.steps, args.rounds)
    if os.environ["RANK"] == "0":
        row |= {"batch_size": args.batch_size, "image_size": args.image_size}
        args.out.write_text(json.dumps(row))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
