"""The recipe of the chapters as a plain loop in one process, with which every chapter agrees."""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from crew import call_main
from harness import AS_OTHERS, CHAPTERS, FSDP, events, load_chapter, load_state, rows
from torch import Tensor, nn
from with_tiny_model import tiny_float64

# 50 images are 4 batches of 12, which 1, 2 and 3 ranks divide, and a rest of 2 to drop. The warm-up
# (a tenth of the epochs) ends inside an epoch, and nothing is zero that a chapter might forget.
IMAGES, BATCH, EPOCHS, SEED = 50, 12, 3, 7
STEPS = IMAGES // BATCH  # of an epoch
WEIGHT_DECAY, LABEL_SMOOTHING, CLIP_GRAD = 0.01, 0.1, 0.5
ARGV = ["--synthetic", IMAGES, "--image-size", 8, "--batch-size", BATCH, "--epochs", EPOCHS]
ARGV += ["--seed", SEED, "--weight-decay", WEIGHT_DECAY, "--clip-grad", CLIP_GRAD]
ARGV += ["--label-smoothing", LABEL_SMOOTHING, "--workers", 0]
# A rate at which a small mistake grows, and one at which float32's rounding errors do not.
HIGH_RATE, LOW_RATE = 4.0, 1.0


def arguments(output_dir: Path, lr: float, chapter: str = "") -> list[str]:
    own = AS_OTHERS.get(chapter, [])
    return [str(word) for word in [*ARGV, "--lr", lr, "--output-dir", output_dir, *own]]


def normalised(images: Tensor) -> Tensor:
    """Bytes as what ImageNet models expect. In float32, as everywhere: its rounding errors would
    otherwise be the largest difference of all."""
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return (images.float() - 255 * mean) / (255 * std)


def train_plainly(
    build: Callable, lr: float, epochs: int = EPOCHS, skipped: Collection[int] = ()
) -> tuple[nn.Module, list]:
    """The recipe of the chapters without any of their code, nor torch's optimizers, schedules,
    losses, loaders and samplers. Steps that are skipped, counted from 0, leave weights and momentum
    as they are. Returns the model and the momentum of each parameter."""
    data, _, classes = load_chapter(CHAPTERS[0]).build_datasets(
        load_chapter(CHAPTERS[0]).build_parser().parse_args(arguments(Path("unused"), lr))
    )
    images = torch.stack([image for image, _ in data])
    targets = torch.tensor([int(target) for _, target in data])
    assert len(images) == IMAGES and images.dtype == torch.uint8
    torch.manual_seed(SEED)
    model = build(None, len(classes))
    model.train()
    parameters = list(model.parameters())
    momentum = [torch.zeros_like(parameter) for parameter in parameters]
    warmup, total = EPOCHS / 10 * STEPS, EPOCHS * STEPS
    step = 0
    for epoch in range(epochs):
        # What DistributedSampler documents: one permutation for all ranks, from its seed + epoch.
        number = SEED * 1_000_003 + epoch
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(number))
        for batch in order.split(BATCH)[:STEPS]:
            middle = step + 0.5
            share = middle / warmup
            if middle >= warmup:
                share = (1 + math.cos(math.pi * (middle - warmup) / (total - warmup))) / 2
            rate = share * lr * BATCH / 256
            logs = model(normalised(images[batch])).log_softmax(1)
            right = logs[torch.arange(BATCH), targets[batch]]
            smooth = LABEL_SMOOTHING * logs.mean(1)
            loss = -((1 - LABEL_SMOOTHING) * right + smooth).mean()
            with torch.no_grad():
                gradients = torch.autograd.grad(loss, parameters)
                norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
                clip = min(1, CLIP_GRAD / (norm + 1e-6))
                for p, gradient, speed in zip(parameters, gradients, momentum, strict=True):
                    if step not in skipped:
                        speed.mul_(0.9).add_(clip * gradient + WEIGHT_DECAY * p)
                        p -= rate * speed
            step += 1
    return model, momentum


def difference(model: nn.Module, state: dict) -> float:
    """The largest one between a model's parameters and a checkpoint's; nan if any is."""
    saved = state["model"]
    assert saved.keys() == model.state_dict().keys()
    largest = [(p - saved[name]).abs().max() for name, p in model.named_parameters()]
    return torch.stack(largest).max().item()


def train(chapter: str, argv: list[str], build: Callable) -> dict:
    """In a crew member: train, and return the parameters that this rank ends with."""
    built, ended = [], {}

    def note_end() -> None:
        """In place of the last call that all ranks of 08 make, whose weights are gathered."""
        for name, parameter in built[0].named_parameters():
            ended[name] = parameter.full_tensor().tolist()

    def build_and_keep(args: object, num_classes: int) -> nn.Module:
        built.append(build(args, num_classes))
        return built[0]

    module = load_chapter(chapter)
    sharded = {"wait_for_gloo": note_end} if chapter == FSDP else {}
    patient = {}
    if hasattr(module, "Meetings"):  # on a slow machine, too, where a step takes seconds
        patient = {"Meetings": type("Meetings", (module.Meetings,), {"seconds": 1e6})}
    patches = {"build_model": build_and_keep} | sharded | patient
    answer = call_main(chapter, argv, patches)
    assert answer["exit"] is None, answer
    if sharded:
        return ended
    # As lists: a tensor in a pipe is a file handle that the sender must keep open.
    return {name: parameter.tolist() for name, parameter in built[0].named_parameters()}


def assert_is_plain_training(
    state: dict, build: Callable, lr: float, tolerance: float, run_dir: Path
) -> None:
    """Parameters and momentum are those of the plain loop; and the run did all the steps."""
    model, momentum = train_plainly(build, lr)
    assert (state["epoch"], state.get("step", 0)) == (EPOCHS, 0)
    assert [row["images"] for row in rows(run_dir, "eval")] == [IMAGES // 4] * EPOCHS
    # Or two loops that do not train would agree as well.
    untrained, _ = train_plainly(build, lr, epochs=0)
    assert difference(untrained, state) > 1000 * tolerance
    assert difference(model, state) < tolerance
    kept = state["optimizer"]["state"]
    assert len(kept) == len(momentum)
    for index, speed in enumerate(momentum):
        assert (kept[index]["momentum_buffer"] - speed).abs().max() < tolerance, index


def assert_one_run(run_dir: Path, sizes: Sequence[int], done: Sequence[int]) -> None:
    """Starts of so many ranks, each after so many steps of the run, are one run of the tiny float64
    model: each step trained and each epoch evaluated once, and the parameters are the plain loop's.
    """
    starts = rows(run_dir, "start")
    assert [row["world_size"] for row in starts] == list(sizes)
    assert [row["epoch"] * STEPS + row.get("step", 0) for row in starts] == list(done)
    steps = [row["epoch"] * STEPS + row["step"] for row in rows(run_dir, "train")]
    assert steps == list(range(1, EPOCHS * STEPS + 1))
    assert [row["epoch"] for row in rows(run_dir, "eval")] == list(range(EPOCHS))
    assert events(run_dir)[-1]["event"] == "end"
    state = load_state(run_dir / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, run_dir)
