"""Mixed precision: what 04_apex does with torch.amp, and how it uses Apex.

torch.amp is tried for real: 16 bits, loss scaling and skipped steps work on CPUs too. Apex needs a
GPU for all that it does, so its part of the chapter runs against a stand-in (apex_stand_in.py)
that keeps Apex's rules. That shows the calls, their order and their arguments; what O1 to O3
calculate, the fused kernels and Apex's SyncBatchNorm only the last tests here show, on a GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import apex_stand_in as stand_in
import pytest
import torch
from crew import Crew, call_main
from harness import ROOT, Result, assert_same, load_chapter, load_state, rows, run
from models import Stateful
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

CHAPTER, PLAIN_CHAPTER = "04_apex", "02_distributed"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# 50 images are 4 batches of 12 an epoch; 12 images to evaluate, in one batch or in two.
IMAGES, BATCH, SIZE, SEED, DECAY, LR = 50, 12, 16, 3, 0.01, 2.0
ARGV = ["--synthetic", IMAGES, "--image-size", SIZE, "--batch-size", BATCH, "--seed", SEED]
ARGV += ["--weight-decay", DECAY, "--lr", LR, "--workers", 0, "--print-freq", 1]
LEVELS = ["O0", "O1", "O2", "O3"]


# ----------------------------------------------------------------------- what runs in the processes


class Small(nn.Module):
    """Nothing random, and no gradient that overflows in fp16 at the usual first scale of 2^16."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 5, stride=4), nn.Linear(54, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = nn.functional.adaptive_avg_pool2d(torch.tanh(self.conv(images)), 3)
        return self.head(0.5 * features.flatten(1))


class Normed(nn.Module):
    """With BatchNorm, and no dropout: what --sync-bn makes independent of the number of ranks."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.conv(images))).mean((2, 3)))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small": Small,
    "normed": Normed,
    "stateful": Stateful,
}


def work(
    argv: list,
    model: str = "small",
    chapter: str = CHAPTER,
    bursts: tuple[int, ...] = (),
    burst_ranks: tuple[int, ...] = (0, 1, 2),
    apex: Path | None = None,
    keep_all: bool = False,
    patches: dict[str, Any] | None = None,
) -> dict:
    """One rank of a run, and what was seen of it: types of logits, weights and gradients, and all
    weights after every step. In the training steps `bursts` (from 0) the gradients overflow, by
    this rank's share of the images. apex: the folder of the stand-in."""
    module, seen = load_chapter(chapter), SimpleNamespace(logits=set(), grads=set(), weights=[])
    steps, models = iter(range(10**6)), []

    def look(inner: nn.Module, images: tuple, logits: Tensor) -> None:
        kinds = {weight.dtype for weight in inner.parameters()}
        seen.logits.add((inner.training, logits.dtype, *sorted(map(str, kinds))))
        if inner.training:
            burst = next(steps) in bursts and int(os.environ["RANK"]) in burst_ranks
            if burst:
                logits.register_hook(lambda gradient: gradient * math.inf)

    def build(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
        built = MODELS[model](num_classes)
        built.register_forward_hook(look)
        for weight in built.parameters():
            weight.register_post_accumulate_grad_hook(lambda w: seen.grads.add(w.grad.dtype))
        models.append(built)
        return built

    class Watched(module.LossScale if chapter == CHAPTER else object):
        def step(self, *args: Any) -> Any:
            answer = super().step(*args)
            weights = [w.detach().double().flatten() for w in models[0].parameters()]
            seen.weights.append(torch.cat(weights).tolist())
            return answer

    def save(folder: Path, state: dict, is_best: bool) -> None:
        torch.save(state, folder / "checkpoint.pt")
        torch.save(state, folder / f"after{state['epoch']}.pt")

    patches = {"build_model": build} | (patches or {})
    patches |= {"LossScale": Watched} if chapter == CHAPTER else {}
    patches |= {"save_checkpoint": save} if keep_all else {}
    used = contextlib.nullcontext(stand_in.State())
    with used if apex is None else stand_in.in_use(module, apex) as state:
        answer = call_main(chapter, [str(word) for word in argv], patches)
    return answer | vars(seen) | {"calls": state.calls, "arguments": state.arguments}


def work_on_garbage(argv: list, **options: Any) -> dict:
    """work() where memory that nobody has written to is never by chance what one wishes."""
    real = torch.empty_like

    def full_of_nan(*args: Any, **kwargs: Any) -> Tensor:
        fresh = real(*args, **kwargs)
        return fresh.fill_(math.nan) if fresh.is_floating_point() else fresh

    with mock.patch("torch.empty_like", full_of_nan):
        return work(argv, **options)


def work_recorded(argv: list, **options: Any) -> dict:
    """work(), with the order in which a step calls what it is made of."""
    calls: list[str] = []

    def recorded(name: str, function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    scaler, places = torch.amp.GradScaler, []
    places += [(scaler, name) for name in ("scale", "unscale_", "step", "update")]
    places += [(nn.utils, "clip_grad_norm_"), (SGD, "zero_grad"), (Tensor, "backward")]
    with contextlib.ExitStack() as stack:
        for where, name in places:
            changed = recorded(name, getattr(where, name))
            stack.enter_context(mock.patch.object(where, name, changed))
        return work(argv, **options) | {"calls": calls}


# --------------------------------------------------------------------------------------------- help


def train(
    crew: Crew, argv: list, world_size: int = 1, function: Callable = work, **options: Any
) -> list[dict]:
    """A run that must end well; what each rank saw."""
    answers = crew.run(as_rank, function, argv, options, world_size=world_size, timeout=60)
    assert [answer["exit"] for answer in answers] == [None] * world_size, answers
    for answer in answers[1:]:
        assert answer["weights"] == answers[0]["weights"], "the ranks have different weights"
    return answers


def as_rank(function: Callable, argv: list, options: dict) -> dict:
    return function(argv, **options)


def weights_of(path: Path) -> Tensor:
    """All weights of a checkpoint in one row."""
    model = load_state(path)["model"]
    return torch.cat([value.double().flatten() for value in model.values()])


def train_by_hand(
    run_dir: Path, dtype: torch.dtype, skipped: tuple[int, ...] = (), clip: float = math.inf,
    scale: float = 1.0,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The steps of a run of one rank on the model Small, without the chapter's optimizer, scaler
    and clipping: a loop that is told which steps to leave out. Returns the weights after each
    step, and the momentum in the end."""
    logged = rows(run_dir, "train")
    rates = [row["lr"] for row in logged]
    module = load_chapter(CHAPTER)
    args = module.build_parser().parse_args([str(word) for word in ARGV])
    data, _, classes = module.build_datasets(args)
    images, targets = data.tensors
    mean, std = module.PIXELS
    images = ((images.float() - mean) / std).to(memory_format=torch.channels_last)
    torch.manual_seed(SEED)
    model = Small(classes).to(memory_format=torch.channels_last)
    weights, after = list(model.parameters()), []
    momentum = [torch.zeros_like(weight) for weight in weights]
    order = [
        batch
        for epoch in range(len(rates) // 4)
        for batch in torch.randperm(
            IMAGES, generator=torch.Generator().manual_seed(SEED + epoch)
        ).split(BATCH)[:4]
    ]
    for step, (rate, batch) in enumerate(zip(rates, order, strict=True)):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(images[batch]), targets[batch])
        gradients = torch.autograd.grad(loss.float() * scale, weights)
        with torch.no_grad():
            gradients = [gradient.double() / scale for gradient in gradients]
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
            if step not in skipped:
                for weight, gradient, speed in zip(weights, gradients, momentum, strict=True):
                    share = min(1.0, clip / norm)
                    speed.mul_(0.9).add_((share * gradient + DECAY * weight).float())
                    weight.sub_(rate * speed)
        after.append(torch.cat([weight.detach().double().flatten() for weight in weights]))
    return after, momentum


# --------------------------------------------------------------------------------------- native amp


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("name", DTYPES)
def test_types(name: str, world_size: int, crew: Crew, tmp_path: Path) -> None:
    """The arithmetic has the type that was asked for, in training and evaluation; weights and
    gradients stay fp32. And it learns."""
    argv = [*ARGV, "--epochs", 6, "--amp-dtype", name, "--output-dir", tmp_path / "run"]
    for seen in train(crew, argv, world_size):
        fp32 = str(torch.float32)
        assert seen["logits"] == {(True, DTYPES[name], fp32), (False, DTYPES[name], fp32)}
        assert seen["grads"] == {torch.float32}
    state = load_state(tmp_path / "run/checkpoint.pt")
    assert {value.dtype for value in state["model"].values()} == {torch.float32}
    slots = state["optimizer"]["state"].values()
    assert {slot["momentum_buffer"].dtype for slot in slots} == {torch.float32}
    losses = [row["loss"] for row in rows(tmp_path / "run", "eval")]
    accuracies = [row["acc1"] for row in rows(tmp_path / "run", "eval")]
    assert losses[-1] < 0.6 * losses[0] and accuracies[-1] > 90, (losses, accuracies)
    logged = rows(tmp_path / "run", "train")
    scale = 65536.0 if name == "fp16" else 1.0
    assert {(row["skipped"], row["loss_scale"]) for row in logged} == {(0, scale)}
    assert (state["scaler"] is None) == (name != "fp16")


def test_default_is_bf16(crew: Crew, tmp_path: Path) -> None:
    argv = [*ARGV, "--epochs", 1, "--output-dir", tmp_path / "run"]
    assert {kinds[1] for kinds in train(crew, argv)[0]["logits"]} == {torch.bfloat16}


# Largest difference of a weight in 12 steps, which move a weight by up to 0.1.
TOLERANCES = {"bf16": 2e-3, "fp16": 2e-4}


@pytest.mark.parametrize("name", TOLERANCES)
def test_close_to_fp32(name: str, crew: Crew, tmp_path: Path) -> None:
    seen = {}
    for dtype in (name, "fp32"):
        argv = [*ARGV, "--epochs", 3, "--amp-dtype", dtype, "--output-dir", tmp_path / dtype]
        seen[dtype] = torch.tensor(train(crew, argv, 2)[0]["weights"])
    difference = (seen[name] - seen["fp32"]).abs().amax(1)
    moved = (seen["fp32"][-1] - seen["fp32"][0]).abs().max()
    print(f"\n{name}: differs by {difference.max():.1e}, moved by {moved:.1e}")
    assert 0 < difference.max() < TOLERANCES[name]
    assert moved > 20 * TOLERANCES[name]


@pytest.mark.parametrize("world_size", [1, 2])
def test_overflow_by_a_huge_scale(world_size: int, crew: Crew, tmp_path: Path) -> None:
    """The scale is halved and the step left out until the gradients fit, and then it trains."""
    first = 2.0**30
    argv = [*ARGV, "--epochs", 12, "--amp-dtype", "fp16", "--loss-scale", first]
    argv += ["--output-dir", tmp_path / "run"]
    seen = train(crew, argv, world_size)[0]
    logged = rows(tmp_path / "run", "train")
    skipped = [row["skipped"] for row in logged]
    assert set(skipped) == {0, 1} and skipped[0] == 1 and 3 < sum(skipped) < 25, skipped
    scale = first
    for index, row in enumerate(logged):
        scale /= 2 ** row["skipped"]
        assert row["loss_scale"] == scale
        before = seen["weights"][index - 1] if index else None
        if before and row["skipped"]:
            assert seen["weights"][index] == before
        elif before:
            assert seen["weights"][index] != before
    state = load_state(tmp_path / "run/checkpoint.pt")
    assert state["scaler"]["scale"] == scale
    assert state["global_step"] == len(logged) == 48  # a step that is left out counts
    losses = [row["loss"] for row in rows(tmp_path / "run", "eval")]
    assert losses[-1] < 0.6 * losses[0], losses


@pytest.mark.parametrize("bursts", [(), (0, 1), (0, 5, 6)])
def test_skipped_steps_leave_no_trace(bursts: tuple[int, ...], crew: Crew, tmp_path: Path) -> None:
    """Weights and momentum are those of a loop that has never made these steps; a first step that
    is skipped leaves nothing in the momentum, where torch's fused SGD would leave whatever was
    in memory. Only the rate goes on."""
    argv = [*ARGV, "--epochs", 2, "--amp-dtype", "fp16", "--output-dir", tmp_path / "run"]
    seen = train(crew, argv, function=work_on_garbage, bursts=bursts)[0]
    logged = rows(tmp_path / "run", "train")
    assert tuple(i for i, row in enumerate(logged) if row["skipped"]) == bursts
    assert logged[-1]["loss_scale"] == 2.0 ** (16 - len(bursts))
    expected, momentum = train_by_hand(tmp_path / "run", torch.float16, bursts, scale=2.0**16)
    for step, (mine, theirs) in enumerate(zip(seen["weights"], expected, strict=True)):
        assert torch.allclose(torch.tensor(mine).double(), theirs, rtol=0, atol=2e-6), step
    slots = load_state(tmp_path / "run/checkpoint.pt")["optimizer"]["state"]
    for index, speed in enumerate(momentum):
        assert torch.allclose(slots[index]["momentum_buffer"], speed, rtol=0, atol=2e-5), index


def test_all_ranks_skip_alike(crew: Crew, tmp_path: Path) -> None:
    """One rank's images overflow: no rank makes the step, and none waits for another."""
    argv = [*ARGV, "--epochs", 2, "--amp-dtype", "fp16", "--output-dir", tmp_path / "run"]
    first, second = train(crew, argv, 2, bursts=(0, 3), burst_ranks=(1,))
    assert [row["skipped"] for row in rows(tmp_path / "run", "train")] == [1, 0, 0, 1, 0, 0, 0, 0]
    assert first["weights"][3] == first["weights"][2] != first["weights"][4]


@pytest.mark.parametrize(
    ("first", "count", "freq", "step"),
    [(0, 19, 1, None), (0, 20, 1, 20), (3, 20, 8, 24), (2, 20, 4, 24), (2, 30, 100, 24)],
)
def test_too_many_in_a_row(
    first: int, count: int, freq: int, step: int | None, crew: Crew, tmp_path: Path
) -> None:
    """Nineteen skipped steps are not an error, twenty are, also when they have ended before the
    next log line (steps 3 to 22, say, with a line at 24: the fourth case)."""
    argv = [*ARGV, "--epochs", 6, "--amp-dtype", "fp16", "--print-freq", freq]
    argv += ["--output-dir", tmp_path / "run"]
    options = {"bursts": tuple(range(first, first + count))}
    answer = crew.run(as_rank, work, argv, options)[0]
    if step is None:
        skipped = sum(row["skipped"] for row in rows(tmp_path / "run", "train"))
        assert (answer["exit"], skipped) == (None, count)
        return
    line = rf"04_apex: error: 20 steps in a row overflowed before step {step}, lower --lr or use"
    last = tmp_path / "run/checkpoint.pt"
    assert answer["exit"] == f"{line} --amp-dtype bf16; last checkpoint: {last}"
    assert load_state(last)["global_step"] == (step - 1) // 4 * 4


def test_bf16_counts_no_skips(crew: Crew, tmp_path: Path) -> None:
    """Without a scaler nothing is skipped: an overflow ends the run, with the usual line."""
    argv = [*ARGV, "--epochs", 1, "--output-dir", tmp_path / "run"]
    options = {"bursts": (1,)}
    answer = crew.run(as_rank, work, argv, options)[0]
    assert answer["exit"].startswith("04_apex: error: loss nan by step 3, lower --lr")


# ------------------------------------------------------------------------------ resuming, natively


def without_args(state: dict) -> dict:
    return {key: value for key, value in state.items() if key != "args"}


@pytest.mark.parametrize("name", DTYPES)
def test_resume_bit_for_bit(name: str, crew: Crew, tmp_path: Path) -> None:
    """Dropout, BatchNorm, momentum, and of fp16 the scale and the steps since it changed."""
    argv = [*ARGV, "--epochs", 4, "--amp-dtype", name, "--output-dir", tmp_path / "whole"]
    bursts = (0, 4, 6) if name == "fp16" else ()
    train(crew, argv, 2, model="stateful", keep_all=True, bursts=bursts)
    resume = ["--synthetic", IMAGES, "--workers", 0, "--print-freq", 1, "--amp-dtype", name]
    resume += ["--resume", tmp_path / "whole/after2.pt", "--output-dir", tmp_path / "cut"]
    train(crew, resume, 2, model="stateful")
    a, b = (load_state(tmp_path / n / "checkpoint.pt") for n in ("whole", "cut"))
    assert_same(without_args(a), without_args(b))
    assert load_state(tmp_path / "whole/after2.pt")["model"].keys() == b["model"].keys()
    if name == "fp16":
        assert (b["scaler"]["scale"], b["scaler"]["_growth_tracker"]) == (8192.0, 9)
    keys = ("epoch", "step", "loss", "lr", "skipped", "loss_scale")
    logs = [[[row[key] for key in keys] for row in rows(tmp_path / n, "train")] for n in
            ("whole", "cut")]  # fmt: skip
    assert logs[0][8:] == logs[1]


def go_on(crew: Crew, path: Path, folder: Path, *argv: Any, **options: Any) -> dict:
    """Resume for the rest of the epochs; the checkpoint in the end."""
    words = ["--synthetic", IMAGES, "--workers", 0, "--print-freq", 1, "--resume", path]
    train(crew, [*words, "--output-dir", folder, *argv], 2, **options)
    losses = [row["loss"] for row in rows(folder, "eval")]
    assert losses and all(map(math.isfinite, losses))
    return load_state(folder / "checkpoint.pt")


def test_resume_across_kinds(crew: Crew, tmp_path: Path) -> None:
    """Any precision goes on from any other's checkpoint, and so does another chapter."""
    argv = [*ARGV, "--epochs", 2, "--output-dir"]
    train(crew, [*argv, tmp_path / "two"], 2, chapter=PLAIN_CHAPTER, keep_all=True)
    fp16 = ["--amp-dtype", "fp16", "--loss-scale", 1024]
    train(crew, [*argv, tmp_path / "fp16", *fp16], 2, keep_all=True)
    two, half = tmp_path / "two/after1.pt", tmp_path / "fp16/after1.pt"
    assert load_state(two)["scaler"] is None
    assert load_state(half)["scaler"]["scale"] == 1024

    end = go_on(crew, two, tmp_path / "two-fp16", "--amp-dtype", "fp16")
    assert (end["global_step"], end["scaler"]["scale"]) == (8, 65536)
    end = go_on(crew, half, tmp_path / "fp16-bf16")
    assert (end["global_step"], end["scaler"]) == (8, None)
    end = go_on(crew, half, tmp_path / "fp16-two", chapter=PLAIN_CHAPTER)
    assert (end["global_step"], end["scaler"]) == (8, None)
    # It went on with the momentum: a run from the weights alone ends elsewhere.
    half_way = load_state(half)
    half_way["optimizer"]["state"] = {}
    torch.save(half_way, tmp_path / "forgetful.pt")
    other = go_on(crew, tmp_path / "forgetful.pt", tmp_path / "forgot", chapter=PLAIN_CHAPTER)
    assert not torch.allclose(
        other["model"]["head.weight"], end["model"]["head.weight"], rtol=0, atol=1e-3
    )
    # Apex's state says nothing to torch's scaler, which starts anew.
    state = load_state(half)
    state["scaler"] = {"loss_scaler0": {"loss_scale": 128.0, "unskipped": 7}}
    state["args"] |= {"impl": "apex", "amp_dtype": None, "loss_scale": 0.0}
    torch.save(state, tmp_path / "apex.pt")
    end = go_on(crew, tmp_path / "apex.pt", tmp_path / "apex-fp16", "--amp-dtype", "fp16")
    assert (end["scaler"]["scale"], end["scaler"]["_growth_tracker"]) == (65536, 4)


# ----------------------------------------------------------------------------------------- clipping


CLIP = 0.05  # of a norm around 1


@pytest.mark.parametrize("name", DTYPES)
def test_clip(name: str, crew: Crew, tmp_path: Path) -> None:
    """Clipped is what the weights are updated by, not its multiple by the loss scale."""
    argv = [*ARGV, "--epochs", 1, "--amp-dtype", name, "--clip-grad", CLIP]
    argv += ["--output-dir", tmp_path / "run"]
    scale = 4096.0 if name == "fp16" else 1.0
    argv += ["--loss-scale", scale] if name == "fp16" else []
    got = torch.tensor(train(crew, argv)[0]["weights"]).double()
    assert [row["skipped"] for row in rows(tmp_path / "run", "train")] == [0] * 4
    expected, _ = train_by_hand(tmp_path / "run", DTYPES[name], clip=CLIP, scale=scale)
    assert torch.allclose(got, torch.stack(expected), rtol=0, atol=1e-6)
    # And by hand in fp32, as far as 16 bits can tell.
    exact, _ = train_by_hand(tmp_path / "run", torch.float32, clip=CLIP)
    difference = (got - torch.stack(exact)).abs().max()
    assert difference < {"bf16": 2e-4, "fp16": 2e-5, "fp32": 1e-6}[name], difference
    free, _ = train_by_hand(tmp_path / "run", torch.float32)
    assert (got - torch.stack(free)).abs().max() > 1e-3  # the limit was one


@pytest.mark.parametrize("name", DTYPES)
def test_clip_bounds_the_step(name: str, crew: Crew, tmp_path: Path) -> None:
    """Two ranks: without momentum yet, and without weight decay, no step is longer than that."""
    argv = [*ARGV, "--epochs", 1, "--amp-dtype", name, "--weight-decay", 0, "--output-dir"]
    steps = {}
    for label, clip in (("free", []), ("bound", ["--clip-grad", CLIP])):
        weights = train(crew, [*argv, tmp_path / label, *clip], 2)[0]["weights"]
        start, _ = train_by_hand(tmp_path / label, torch.float32, skipped=(0, 1, 2, 3))
        steps[label] = (torch.tensor(weights[0]).double() - start[0]).norm().item()
    rate = rows(tmp_path / "bound", "train")[0]["lr"]
    assert steps["bound"] == pytest.approx(rate * CLIP, rel=1e-4)
    assert steps["free"] > 3 * rate * CLIP


def test_order_of_a_step(crew: Crew, tmp_path: Path) -> None:
    """Gradients are unscaled once, then bounded, then used, and the scale is updated last."""
    argv = [*ARGV, "--epochs", 1, "--amp-dtype", "fp16", "--clip-grad", 1]
    calls = train(crew, [*argv, "--output-dir", tmp_path], function=work_recorded)[0]["calls"]
    order = ["zero_grad", "scale", "backward", "unscale_", "clip_grad_norm_", "step", "update"]
    assert calls == 4 * order


# ----------------------------------------------------------------------- what is refused, by words


def refusal(argv: str, folder: Path | None, cuda: bool, output_dir: Path) -> str:
    """The one line by which the chapter ends, in a process that no launcher has started."""
    words = ["--synthetic", "24", "--output-dir", str(output_dir), *argv.split()]
    with (
        stand_in.on_path(folder),
        mock.patch("torch.cuda.is_available", lambda: cuda),
        mock.patch.dict("os.environ"),
    ):
        os.environ.pop("RANK", None)
        with pytest.raises(SystemExit) as ended:
            load_chapter(CHAPTER).main(words)
    assert isinstance(ended.value.code, str) and "\n" not in ended.value.code
    assert ended.value.code.startswith(f"{CHAPTER}: error: ")
    assert not output_dir.exists()
    return ended.value.code.removeprefix(f"{CHAPTER}: error: ")


PASSED = "start it by: torchrun"  # what comes after all checks: there is no launcher here
BUILD = "git clone -b 25.05 https://github.com/NVIDIA/apex"
PACKAGES = {
    "none": None,
    "pypi": (stand_in.PYPI, "nothing"),
    "new": (stand_in.FILES, ("apex/amp", "apex/parallel", "amp_C")),
    "new+kernels": (stand_in.FILES, ("apex/amp", "apex/parallel")),
    "25.05": (stand_in.FILES, "amp_C"),
    "25.05+kernels": (stand_in.FILES, "nothing"),
}
REFUSALS = {
    "apex-none": ("--impl apex", "none", True, ("Apex is not installed", BUILD)),
    "fused-none": ("--fused-sgd", "none", True, ("Apex is not installed", BUILD)),
    "both-none": ("--impl apex --fused-sgd", "none", True, ("Apex is not installed", BUILD)),
    "apex-pypi": ("--impl apex", "pypi", True, ("PyPI's, not NVIDIA's: pip uninstall", BUILD)),
    "fused-pypi": ("--fused-sgd", "pypi", True, ("PyPI's, not NVIDIA's: pip uninstall", BUILD)),
    "apex-new": ("--impl apex", "new", True, ("newer than 25.05 and has no amp", BUILD)),
    "apex-new-k": ("--impl apex", "new+kernels", True, ("newer than 25.05", "drop --impl apex")),
    "both-new": ("--impl apex --fused-sgd", "new+kernels", True, ("newer than 25.05",)),
    "fused-new-k": ("--fused-sgd", "new+kernels", True, (PASSED,)),
    "fused-new-cpu": ("--fused-sgd", "new+kernels", False, ("Apex needs a GPU", "native")),
    "fused-new": ("--fused-sgd", "new", True, ("needs Apex with its CUDA kernels", "cuda_ext")),
    "apex-cpu": ("--impl apex", "25.05+kernels", False, ("Apex needs a GPU", "--impl native")),
    "fused-cpu": ("--fused-sgd", "25.05", False, ("Apex needs a GPU",)),
    "apex": ("--impl apex", "25.05", True, (PASSED,)),
    "apex-fused": ("--impl apex --fused-sgd", "25.05", True, ("CUDA kernels", "cuda_ext")),
    "apex-fused-k": ("--impl apex --fused-sgd", "25.05+kernels", True, (PASSED,)),
    "fp16": ("--impl apex --amp-dtype fp16", "25.05", True, ("--amp-dtype", "--impl apex")),
    "fp32": ("--impl apex --amp-dtype fp32", "25.05", True, ("--amp-dtype", "--impl apex")),
    "bf16": ("--impl apex --amp-dtype bf16", "25.05", True, ("--amp-dtype", "--impl apex")),
    "compile": ("--impl apex --compile", "25.05", True, ("--compile", "--impl apex")),
    "level": ("--opt-level O2", "25.05", True, ("--opt-level needs --impl apex",)),
    "level-O0": ("--opt-level O0", "none", False, ("--opt-level needs --impl apex",)),
    "keep": ("--keep-batchnorm-fp32 True", "none", False, ("--keep-batchnorm-fp32 needs",)),
    "keep-O1": (
        "--impl apex --keep-batchnorm-fp32 False", "25.05", True,
        ("--keep-batchnorm-fp32 needs", "O2 or O3"),
    ),
    "keep-O0": (
        "--impl apex --opt-level O0 --keep-batchnorm-fp32 True", "25.05", True,
        ("--keep-batchnorm-fp32 needs", "O2 or O3"),
    ),
    "keep-O2": ("--impl apex --opt-level O2 --keep-batchnorm-fp32 True", "25.05", True, (PASSED,)),
    "scale-bf16": ("--loss-scale 8", "none", False, ("--loss-scale needs --amp-dtype fp16",)),
    "scale-fp32": ("--loss-scale 8 --amp-dtype fp32", "none", False, ("--loss-scale needs",)),
    "scale-fp16": ("--loss-scale 8 --amp-dtype fp16", "none", False, (PASSED,)),
    "scale-apex": ("--loss-scale 8 --impl apex", "25.05", True, (PASSED,)),
    "clip": ("--clip-grad -1", "none", False, ("--clip-grad -1.0 is out of range",)),
    "clip-nan": ("--clip-grad nan", "none", False, ("--clip-grad nan is out of range",)),
    "scale-less": ("--amp-dtype fp16 --loss-scale -1", "none", False, ("--loss-scale -1.0",)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str, tmp_path: Path) -> None:
    """Apex is missing, foreign, too new, without its kernels or without a GPU; flags contradict
    each other: one line says so, and nothing is trained in another precision than was asked for."""
    argv, package, cuda, words = REFUSALS[case]
    folder = None
    if PACKAGES[package]:
        files, without = PACKAGES[package]
        folder = stand_in.write_files(tmp_path / "packages", files, without)
    line = refusal(argv, folder, cuda, tmp_path / "run")
    for word in words:
        assert word in line, line


def test_the_packages_are_what_they_claim(tmp_path: Path) -> None:
    """PyPI's apex fails at its import, and the stand-in's can be imported as Apex's can."""
    with stand_in.on_path(stand_in.write_files(tmp_path / "pypi", stand_in.PYPI)):
        with pytest.raises(ModuleNotFoundError, match="pyramid_mailer"):
            importlib.import_module("apex")
    with stand_in.on_path(stand_in.write_files(tmp_path / "new", without=("apex/amp",))):
        importlib.import_module("apex.optimizers")
        with pytest.raises(ModuleNotFoundError, match="apex.amp"):
            importlib.import_module("apex.amp")
    with stand_in.on_path(None), pytest.raises(ModuleNotFoundError, match="apex"):
        importlib.import_module("apex")


# --------------------------------------------------------------------- Apex, against the stand-in


@pytest.fixture(scope="module")
def apex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in."""
    return stand_in.write_files(tmp_path_factory.mktemp("apex"))


APEX = [*ARGV, "--impl", "apex"]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("extra", [[], ["--fused-sgd"], ["--clip-grad", 0.1]], ids=str)
def test_apex_in_fp32_is_native_in_fp32(
    extra: list, world_size: int, crew: Crew, tmp_path: Path, apex: Path
) -> None:
    """O0 calculates in fp32: the same weights after every step."""
    argv = [*APEX, "--opt-level", "O0", "--epochs", 2, *extra, "--output-dir", tmp_path / "apex"]
    got = train(crew, argv, world_size, apex=apex)[0]
    argv = [*ARGV, "--amp-dtype", "fp32", "--epochs", 2, "--output-dir", tmp_path / "native"]
    argv += [word for word in extra if word != "--fused-sgd"]
    expected = train(crew, argv, world_size)[0]
    got, expected = (torch.tensor(seen["weights"]) for seen in (got, expected))
    assert torch.allclose(got, expected, rtol=0, atol=2e-6), (got - expected).abs().max()
    a, b = (rows(tmp_path / name, "eval")[-1] for name in ("apex", "native"))
    assert a["acc1"] == b["acc1"] and a["loss"] == pytest.approx(b["loss"], abs=1e-5)


@pytest.mark.parametrize("argv", [*LEVELS, "O1 --fused-sgd", "O2 --fused-sgd"])
def test_apex_calls(argv: str, crew: Crew, tmp_path: Path, apex: Path) -> None:
    """What Apex is asked to do, in which order; and it learns, in the types of its level."""
    level, *fused = argv.split()
    words = [*APEX, "--opt-level", level, "--epochs", 6, *fused, "--output-dir", tmp_path / "run"]
    for seen in train(crew, words, 2, apex=apex):
        start = ["set_device", "init_process_group", *(["FusedSGD"] if fused else [])]
        start += ["initialize", "DistributedDataParallel"]
        begun = seen["calls"].index("DistributedDataParallel")
        calls = [c for c in seen["calls"][:begun] if c != "zero_grad"] + seen["calls"][begun:]
        step = ["zero_grad", "scale_loss", "backward", "master_params", "step"]
        assert calls == start + 24 * step
        assert seen["arguments"] == {
            "opt_level": level, "loss_scale": None, "keep_batchnorm_fp32": None,
        }  # fmt: skip
        weights = torch.float16 if level in ("O2", "O3") else torch.float32
        logits = torch.float16 if level == "O1" else torch.float32
        assert seen["logits"] == {(mode, logits, str(weights)) for mode in (True, False)}
    logged = rows(tmp_path / "run", "train")
    scale = 65536.0 if level in ("O1", "O2") else 1.0
    assert {(row["skipped"], row["loss_scale"]) for row in logged} == {(0, scale)}
    losses = [row["loss"] for row in rows(tmp_path / "run", "eval")]
    assert losses[-1] < 0.6 * losses[0], losses
    state = load_state(tmp_path / "run/checkpoint.pt")
    if scale > 1:
        assert state["scaler"] == {"loss_scaler0": {"loss_scale": scale, "unskipped": 24}}
    assert {value.dtype for value in state["model"].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("argv", "arguments"),
    [
        ("--opt-level O2 --keep-batchnorm-fp32 True", ("O2", None, "True")),
        ("--opt-level O3 --keep-batchnorm-fp32 False", ("O3", None, "False")),
        ("--opt-level O1 --loss-scale 128", ("O1", 128.0, None)),
    ],
)
def test_apex_arguments(
    argv: str, arguments: tuple, crew: Crew, tmp_path: Path, apex: Path
) -> None:
    """What is typed comes to amp.initialize, and BatchNorm is of the type that was asked for."""
    words = [*APEX, "--epochs", 1, *argv.split(), "--output-dir", tmp_path / "run"]
    seen = train(crew, words, 2, apex=apex, model="normed")[0]
    assert tuple(seen["arguments"].values()) == arguments
    kinds = {"O1": ["torch.float32"], "O2": ["torch.float16", "torch.float32"]}
    expected = kinds.get(arguments[0], ["torch.float16"])
    assert {kinds[2:] for kinds in seen["logits"]} == {tuple(expected)}
    if arguments[1]:
        assert {row["loss_scale"] for row in rows(tmp_path / "run", "train")} == {128.0}


@pytest.mark.parametrize("level", LEVELS)
def test_apex_sync_bn(level: str, crew: Crew, tmp_path: Path, apex: Path) -> None:
    """Layers are swapped before the optimizer takes the weights; with fp32 then one rank and two
    train alike, which they do not without."""
    seen = {}
    cases = [(2, ["--sync-bn"]), (1, ["--sync-bn"]), (2, [])]
    for world_size, extra in cases if level == "O0" else cases[:1]:
        argv = [*APEX, "--opt-level", level, "--epochs", 2, *extra]
        argv += ["--output-dir", tmp_path / f"{world_size}{len(extra)}"]
        answer = train(crew, argv, world_size, model="normed", apex=apex)[0]
        seen[world_size, len(extra)] = torch.tensor(answer["weights"])
        order = [c for c in answer["calls"] if c in ("convert_syncbn_model", "initialize")]
        assert order == [*(["convert_syncbn_model"] if extra else []), "initialize"]
    if level == "O0":
        assert torch.allclose(seen[1, 1], seen[2, 1], rtol=0, atol=2e-5)
        assert not torch.allclose(seen[1, 1], seen[2, 0], rtol=0, atol=1e-3)


@pytest.mark.parametrize("argv", ["O1", "O2", "O2 --fused-sgd"])
def test_apex_overflow(argv: str, crew: Crew, tmp_path: Path, apex: Path) -> None:
    """On one rank of two, in the first step too: all leave the step out, log it, and go on."""
    words = [*APEX, "--epochs", 6, "--output-dir", tmp_path / "run", "--opt-level", *argv.split()]
    answers = train(crew, words, 2, apex=apex, bursts=(0, 3), burst_ranks=(1,))
    logged = rows(tmp_path / "run", "train")
    assert [row["skipped"] for row in logged] == [1, 0, 0, 1] + [0] * 20
    assert [row["loss_scale"] for row in logged] == [2.0**15] * 3 + [2.0**14] * 21
    for seen in answers:
        steps = [call for call in seen["calls"] if call in ("step", "skip")]
        assert steps == ["skip", "step", "step", "skip"] + ["step"] * 20
        assert seen["weights"][3] == seen["weights"][2] != seen["weights"][4]
    losses = [row["loss"] for row in rows(tmp_path / "run", "eval")]
    assert losses[-1] < 0.6 * losses[0], losses


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_apex_clip(level: str, crew: Crew, tmp_path: Path, apex: Path) -> None:
    """The weights that are updated have the bounded gradients, unscaled."""
    argv = [*APEX, "--opt-level", level, "--epochs", 1, "--clip-grad", CLIP]
    argv += ["--output-dir", tmp_path / "run"]
    got = torch.tensor(train(crew, argv, apex=apex)[0]["weights"]).double()
    exact, _ = train_by_hand(tmp_path / "run", torch.float32, clip=CLIP)
    difference = (got - torch.stack(exact)).abs().max()
    assert difference < {"O1": 2e-5, "O2": 1e-3}[level], difference  # O2: weights of 11 bits
    start, _ = train_by_hand(tmp_path / "run", torch.float32, skipped=(0, 1, 2, 3))
    free, _ = train_by_hand(tmp_path / "run", torch.float32)
    moved = (got[-1] - start[-1]).norm(), (free[-1] - start[-1]).norm()
    assert moved[0] < moved[1] / 3, moved


@pytest.mark.parametrize("level", LEVELS)
def test_apex_resume_bit_for_bit(level: str, crew: Crew, tmp_path: Path, apex: Path) -> None:
    """amp's state, weights and momentum. With O2 nearly so: Apex makes the fp32 weights behind the
    model's fp16 ones anew, from those, so what fp16 has rounded away is lost in a resume."""
    argv = [*APEX, "--opt-level", level, "--epochs", 4, "--output-dir", tmp_path / "whole"]
    bursts = (0, 4, 6) if level in ("O1", "O2") else ()
    train(crew, argv, 2, model="stateful", keep_all=True, bursts=bursts, apex=apex)
    argv = ["--synthetic", IMAGES, "--workers", 0, "--impl", "apex", "--opt-level", level]
    argv += ["--resume", tmp_path / "whole/after2.pt", "--output-dir", tmp_path / "cut"]
    seen = train(crew, argv, 2, model="stateful", apex=apex)[0]
    a, b = (load_state(tmp_path / n / "checkpoint.pt") for n in ("whole", "cut"))
    if level == "O2":
        for name, weight in a["model"].items():
            assert torch.allclose(weight.float(), b["model"][name].float(), atol=5e-3), name
        assert a["scaler"] == b["scaler"]
    else:
        assert_same(without_args(a), without_args(b))
    if bursts:
        assert a["scaler"] == {"loss_scaler0": {"loss_scale": 8192.0, "unskipped": 9}}
        assert seen["calls"].count("load_state_dict") == 1
    for word in ("loss", "acc1") if level != "O2" else ():
        assert [row[word] for row in rows(tmp_path / "whole", "eval")][2:] == [
            row[word] for row in rows(tmp_path / "cut", "eval")
        ]


def test_apex_resume_across_kinds(crew: Crew, tmp_path: Path, apex: Path) -> None:
    """From native fp16 to Apex, from every level to chapter 02 and to native, and a scale of one
    kind of scaling is not taken for another's."""
    argv = [*ARGV, "--epochs", 2, "--output-dir"]
    fp16 = ["--amp-dtype", "fp16", "--loss-scale", 1024]
    train(crew, [*argv, tmp_path / "fp16", *fp16], 2, keep_all=True)
    impl = ["--impl", "apex"]
    end = go_on(crew, tmp_path / "fp16/after1.pt", tmp_path / "fp16-O1", *impl, apex=apex)
    assert end["scaler"] == {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 4}}
    for level, (*words, chapter) in {
        "O1": ("--amp-dtype", "fp16", CHAPTER),
        "O2": (PLAIN_CHAPTER,),
        "O3": (PLAIN_CHAPTER,),
    }.items():
        first = [*argv, tmp_path / level, *impl, "--opt-level", level]
        train(crew, first, 2, keep_all=True, apex=apex)
        path = tmp_path / level / "after1.pt"
        whole = weights_of(tmp_path / level / "checkpoint.pt")
        go_on(crew, path, tmp_path / f"{level}-on", *words, chapter=chapter)
        other = weights_of(tmp_path / f"{level}-on/checkpoint.pt")
        # On from there, with the momentum: not far from where Apex itself got to.
        assert (whole - other).abs().max() < 5e-3, level
        assert (whole - weights_of(path)).abs().max() > 2e-2


def test_apex_resume_with_another_scale(crew: Crew, tmp_path: Path, apex: Path) -> None:
    """The scale of another kind of scaling is not taken over: a fixed one stays what it is, and
    what fp16 begins with is not the 1 of O0."""
    cases = {
        "O0": [("O1", 65536.0)],
        "O1 --loss-scale 128": [("O1", 65536.0)],
        "O1 --loss-scale 0": [("O1 --loss-scale 128", 128.0), ("O3", 1.0)],
    }
    for number, (first, then) in enumerate(cases.items()):
        argv = [*APEX, "--epochs", 2, "--opt-level", *first.split(), "--output-dir"]
        bursts = (1,) if len(then) > 1 else ()
        train(crew, [*argv, tmp_path / str(number)], 2, apex=apex, keep_all=True, bursts=bursts)
        for last, scale in then:
            folder = tmp_path / f"{number}-{last}"
            words = ["--impl", "apex", "--opt-level", *last.split()]
            go_on(crew, tmp_path / str(number) / "after1.pt", folder, *words, apex=apex)
            scales = {row["loss_scale"] for row in rows(folder, "train")}
            assert scales == {scale}, (first, last, scales)


def test_apex_evaluates(crew: Crew, tmp_path: Path, apex: Path) -> None:
    argv = [*APEX, "--epochs", 1, "--output-dir", tmp_path / "run"]
    train(crew, argv, 2, apex=apex)
    again = ["--synthetic", IMAGES, "--workers", 0, "--resume", tmp_path / "run/checkpoint.pt"]
    again += ["--impl", "apex", "--evaluate", "--output-dir", tmp_path / "other"]
    train(crew, again, 2, apex=apex)
    a = rows(tmp_path / "run", "eval")[-1]
    b = rows(tmp_path / "other", "eval", "evaluate.jsonl")[-1]
    assert (a["loss"], a["acc1"]) == (b["loss"], b["acc1"])


# ------------------------------------------------------------- the stand-in keeps the rules of Apex


class Site:
    """A model, an optimizer and a loss in the state in which the chapter has them, for one rule to
    be broken."""

    def __init__(self, level: str | None = "O1", wrap: bool = True, **options: Any) -> None:
        stand_in.set_device(torch.device("cuda", 0))
        self.model = Normed(10)
        self.optimizer = SGD(self.model.parameters(), 0.1, 0.9)
        self.call = self.model
        if level:
            self.initialize(opt_level=level, **options)
            self.call = stand_in.DistributedDataParallel(self.model) if wrap else self.model

    def initialize(self, **options: Any) -> Any:
        return stand_in.initialize(self.model, self.optimizer, **options)

    def loss(self) -> Tensor:
        images = torch.randn(4, 3, 16, 16)
        return nn.functional.cross_entropy(self.call(images), torch.tensor([1, 2, 3, 4]))

    def backward(self) -> None:
        with stand_in.scale_loss(self.loss(), self.optimizer) as scaled:
            scaled.backward()

    def whole_step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        norm = clip_grad_norm_(stand_in.master_params(self.optimizer), 1.0)
        assert norm.isfinite()
        self.optimizer.step()


def without_device() -> None:
    site = Site(None)
    stand_in.state.device = None
    site.initialize()


def without_group() -> None:
    with mock.patch("torch.distributed.is_initialized", lambda: False):
        Site()


def wrapped_by(wrapper: Callable) -> Callable:
    def broken() -> None:
        site = Site(None)
        site.model = wrapper(site.model)
        site.initialize()

    return broken


def initialize_after_own_wrapper() -> None:
    site = Site()
    wrapped, stand_in.state.optimizer = site.call, None
    stand_in.initialize(wrapped, site.optimizer)


def half_before() -> None:
    site = Site(None)
    site.model.half()
    site.initialize()


def half_buffer_before() -> None:
    site = Site(None)
    site.model.norm.running_mean = site.model.norm.running_mean.half()
    site.initialize()


def syncbn_after_optimizer() -> None:
    site = Site(None)
    stand_in.convert_syncbn_model(site.model)
    site.initialize()


def schedule_before() -> None:
    site = Site(None)
    torch.optim.lr_scheduler.LambdaLR(site.optimizer, lambda step: 1.0)
    site.initialize()


def twice() -> None:
    Site().initialize()


def nested() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer):
        site.backward()


def late_backward() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer) as scaled:
        scaled.backward(retain_graph=True)
    scaled.backward()


def two_backwards() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer) as scaled:
        scaled.backward(retain_graph=True)
        scaled.backward()


def no_backward() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer):
        pass


def unscaled_backward() -> None:
    site = Site()
    loss = site.loss()
    with stand_in.scale_loss(loss, site.optimizer):
        loss.backward()


def step_inside() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer) as scaled:
        scaled.backward()
        site.optimizer.step()


def clip_inside() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer) as scaled:
        scaled.backward()
        clip_grad_norm_(stand_in.master_params(site.optimizer), 1.0)


def zero_grad_inside() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), site.optimizer) as scaled:
        scaled.backward()
        site.optimizer.zero_grad()


def after_a_step(what: Callable[[Site], None]) -> Callable:
    def broken() -> None:
        site = Site()
        site.whole_step()
        what(site)

    return broken


def zero_grad_before_step() -> None:
    site = Site()
    site.backward()
    site.optimizer.zero_grad()


def two_backwards_before_step() -> None:
    site = Site()
    site.backward()
    site.backward()


def loss_of_another_optimizer() -> None:
    site = Site()
    with stand_in.scale_loss(site.loss(), SGD(site.model.parameters(), 0.1)):
        pass


def double_and_float() -> None:
    Site()
    totals = torch.zeros(4, dtype=torch.float64)
    totals[0] += torch.ones(())


def fused_zero_grad_with_argument() -> None:
    stand_in.FusedSGD(Normed(10).parameters(), 0.1).zero_grad(set_to_none=True)


RULES: dict[str, tuple[Callable, str]] = {
    "no set_device": (without_device, "before torch.cuda.set_device"),
    "no process group": (without_group, "before init_process_group"),
    "torch's DDP": (wrapped_by(nn.parallel.DistributedDataParallel), "AFTER amp.initialize"),
    "DataParallel": (wrapped_by(nn.DataParallel), "AFTER amp.initialize"),
    "a wrapped part": (wrapped_by(lambda m: nn.Sequential(nn.DataParallel(m))), "AFTER"),
    "its own DDP": (initialize_after_own_wrapper, "AFTER amp.initialize"),
    "DDP first": (lambda: stand_in.DistributedDataParallel(Site(None).model), "before amp.init"),
    "DDP of another": (lambda: stand_in.DistributedDataParallel(Site() and Normed(3)), "another"),
    "device_ids": (lambda: stand_in.DistributedDataParallel(Site().model, [0]), "no device_ids"),
    "device_ids=": (
        lambda: stand_in.DistributedDataParallel(Site().model, device_ids=[0]), "device_ids"
    ),
    "half before": (half_before, "wants a model that is fp32"),
    "half buffer before": (half_buffer_before, "wants a model that is fp32"),
    "no optimizer": (lambda: stand_in.initialize(Site(None).model), "needs the optimizer"),
    "SyncBN after the optimizer": (syncbn_after_optimizer, "convert_syncbn_model comes first"),
    "SyncBN after initialize": (
        lambda: stand_in.convert_syncbn_model(Site().model), "comes before amp.initialize"
    ),
    "schedule before": (schedule_before, "schedules come after"),
    "initialize twice": (twice, "once"),
    "O4": (lambda: Site("O4"), "unexpected optimization level"),
    "00": (lambda: Site("00"), "unexpected optimization level"),
    "keep_batchnorm with O1": (lambda: Site("O1", keep_batchnorm_fp32="True"), "should be None"),
    "keep_batchnorm=yes": (lambda: Site("O2", keep_batchnorm_fp32="yes"), "is no boolean"),
    "loss_scale=auto": (lambda: Site("O2", loss_scale="auto"), "could not convert"),
    "loss_scale=0": (lambda: Site("O2", loss_scale=0.0), "a loss scale of 0.0"),
    "scale_loss first": (lambda: Site(None).backward(), "scale_loss before amp.initialize"),
    "another optimizer": (loss_of_another_optimizer, "has not been through amp.initialize"),
    "nested": (nested, "scale_loss inside of scale_loss"),
    "backward after the block": (late_backward, "backward outside of scale_loss"),
    "two backward": (two_backwards, "2 backward in one scale_loss"),
    "no backward": (no_backward, "0 backward in one scale_loss"),
    "backward of the plain loss": (unscaled_backward, "loss that is not scaled"),
    "step inside": (step_inside, "optimizer.step inside of scale_loss"),
    "clip inside": (clip_inside, "still scaled inside of scale_loss"),
    "zero_grad inside": (zero_grad_inside, "zero_grad inside of scale_loss"),
    "zero_grad before the step": (zero_grad_before_step, "between scale_loss and step"),
    "no step": (two_backwards_before_step, "scale_loss again, before the step"),
    "no zero_grad": (after_a_step(Site.backward), "step before are still there"),
    "step twice": (after_a_step(lambda s: s.optimizer.step()), "without a scale_loss"),
    "clip after the step": (
        after_a_step(lambda s: list(stand_in.master_params(s.optimizer))), "no new gradients"
    ),
    "master_params first": (
        lambda: list(stand_in.master_params(Site(None).optimizer)), "before amp.initialize"
    ),
    "zero_grad(set_to_none)": (
        lambda: Site().optimizer.zero_grad(set_to_none=True), "set_to_none"
    ),
    "FusedSGD.zero_grad(set_to_none)": (fused_zero_grad_with_argument, "set_to_none"),
    "FusedSGD without kernels": (
        lambda: stand_in.FusedSGD(Normed(10).parameters(), 0.1), "requires cuda extensions"
    ),
    "state_dict first": (stand_in.state_dict, "state_dict before amp.initialize"),
    "load_state_dict first": (
        lambda: stand_in.load_state_dict({}), "load_state_dict before amp.initialize"
    ),
    "torch's state": (
        lambda: Site() and stand_in.load_state_dict({"scale": 1.0}), "unexpected keys"
    ),
    "double and float": (double_and_float, "do not know how to handle these types"),
    "nothing": (lambda: [Site(level).whole_step() for level in ("O2",)], "no error"),
}  # fmt: skip


def break_rules(folder: Path) -> dict[str, str]:
    """In a crew member: what the stand-in says to each mistake."""
    torch.distributed.init_process_group("gloo", "env://", world_size=1, rank=0)
    said = {}
    for name, (broken, _) in RULES.items():
        stand_in.state.reset()
        without = {"FusedSGD without kernels": None}
        with stand_in.on_path(without.get(name, folder)):
            try:
                broken()
                said[name] = "no error"
            except (RuntimeError, TypeError, ValueError) as error:
                said[name] = f"{type(error).__name__}: {error}"
    stand_in.state.reset()
    return said


def test_the_stand_in_is_strict(crew: Crew, apex: Path) -> None:
    """Each rule, broken, is an error, so that a run without one has kept them all."""
    said = crew.run(break_rules, apex, timeout=60)[0]
    for name, (_, words) in RULES.items():
        assert words in said[name], (name, said[name])
    assert len(RULES) >= 46


# ------------------------------------------------------------------------- Apex itself, on its GPUs


def found(name: str) -> Path | None:
    """The folder of a package that can be imported here, without importing it."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


GPUS = torch.cuda.device_count()
AMP = bool(GPUS and found("apex") and Path(found("apex"), "amp").is_dir())
KERNELS = bool(GPUS and found("apex") and importlib.util.find_spec("amp_C"))
needs_apex = pytest.mark.skipif(not AMP, reason="needs a GPU and Apex tag 25.05")
needs_kernels = pytest.mark.skipif(not KERNELS, reason="needs a GPU and Apex with its CUDA kernels")
GPU_RUN = ["--arch", "resnet18", "--synthetic", 256, "--image-size", 64, "--batch-size", 64]
GPU_RUN += ["--workers", 0, "--print-freq", 1, "--lr", 0.2, "--epochs", 4]


def launch_on_gpus(cwd: Path, argv: list, script: Path = ROOT / CHAPTER / "main.py") -> Result:
    """The chapter as a reader starts it. Apex warns that it is deprecated, which is no error."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", max(1, GPUS), script, *GPU_RUN, *argv]
    result = run([str(word) for word in command], cwd, 300, {"PYTHONWARNINGS": "default"})
    assert result.returncode == 0, result.output
    return result


def learns(run_dir: Path) -> None:
    logged, evals = rows(run_dir, "train"), rows(run_dir, "eval")
    assert all(math.isfinite(row["loss"]) for row in logged + evals)
    assert logged[-1]["loss"] < 0.7 * logged[0]["loss"], [row["loss"] for row in logged]
    assert sum(row["skipped"] for row in logged) < len(logged) / 2


@needs_apex
@pytest.mark.parametrize(
    "argv",
    ["O0", "O1", "O2", "O3", "O1 --sync-bn", "O2 --keep-batchnorm-fp32 True", "O1 --clip-grad 1",
     "O2 --clip-grad 1", "O1 --loss-scale 128"],
)  # fmt: skip
def test_real_apex(argv: str, tmp_path: Path) -> None:
    """Every level trains, and what it saved is fp32 that torch alone can go on from."""
    launch_on_gpus(
        tmp_path, ["--impl", "apex", "--opt-level", *argv.split(), "--output-dir", "run"]
    )
    learns(tmp_path / "run")
    state = load_state(tmp_path / "run/checkpoint.pt")
    floats = [value for value in state["model"].values() if value.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.float32}
    go_on = ["--resume", "run/checkpoint.pt", "--epochs", 5, "--output-dir", "on"]
    launch_on_gpus(tmp_path, [*go_on, "--amp-dtype", "bf16"])
    assert rows(tmp_path / "on", "train")[0]["loss"] < rows(tmp_path / "run", "train")[0]["loss"]


@needs_apex
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_real_apex_resumes(level: str, tmp_path: Path) -> None:
    """It goes on with its scale, near to where the uninterrupted run gets: cuDNN adds in an order
    of its own, so not bit for bit."""
    argv = ["--impl", "apex", "--opt-level", level, "--output-dir"]
    launch_on_gpus(tmp_path, [*argv, "run"])
    resume = ["--resume", "run/checkpoint.pt", "--epochs", 6]
    launch_on_gpus(tmp_path, [*argv, "on", *resume])
    saved = load_state(tmp_path / "run/checkpoint.pt")["scaler"]["loss_scaler0"]
    end = load_state(tmp_path / "on/checkpoint.pt")["scaler"]["loss_scaler0"]
    skipped = sum(row["skipped"] for row in rows(tmp_path / "on", "train"))
    assert end["loss_scale"] == saved["loss_scale"] / 2**skipped
    assert rows(tmp_path / "on", "train")[0]["loss"] < rows(tmp_path / "run", "train")[0]["loss"]
    assert skipped or end["unskipped"] == saved["unskipped"] + 8


@needs_apex
def test_real_apex_is_near_to_native(tmp_path: Path) -> None:
    """O0 and native fp32 go the same way; a few steps, before rounding tells."""
    short = ["--epochs", 1, "--lr", 0.02]
    launch_on_gpus(tmp_path, [*short, "--amp-dtype", "fp32", "--output-dir", "native"])
    apex = ["--impl", "apex", "--opt-level", "O0", "--output-dir", "apex"]
    launch_on_gpus(tmp_path, [*short, *apex])
    losses = [[row["loss"] for row in rows(tmp_path / n, "train")] for n in ("native", "apex")]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@needs_kernels
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_real_fused_sgd(dtype: str, tmp_path: Path) -> None:
    """FusedSGD, of any Apex, is torch's SGD: few steps of both have the same losses."""
    argv = ["--epochs", 1, "--lr", 0.02, "--amp-dtype", dtype, "--output-dir"]
    launch_on_gpus(tmp_path, [*argv, "native"])
    launch_on_gpus(tmp_path, [*argv, "fused", "--fused-sgd"])
    losses = [[row["loss"] for row in rows(tmp_path / n, "train")] for n in ("native", "fused")]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    launch_on_gpus(tmp_path, ["--amp-dtype", dtype, "--fused-sgd", "--output-dir", "run"])
    learns(tmp_path / "run")


@needs_apex
@needs_kernels
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_real_apex_with_its_fused_sgd(level: str, tmp_path: Path) -> None:
    argv = ["--impl", "apex", "--opt-level", level, "--fused-sgd", "--output-dir", "run"]
    launch_on_gpus(tmp_path, argv)
    learns(tmp_path / "run")
