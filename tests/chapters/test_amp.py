"""Mixed precision: torch.amp for real, on CPUs; Apex, which needs a GPU, against a stand-in that
keeps its rules (apex_stand_in.py), and for real in the last tests here, on a GPU."""

import math
import os
from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import apex_stand_in as stand_in
import pytest
import torch
from crew import Crew, call_main
from harness import assert_same, launch, load_chapter, load_state, rows
from plain_training import LOW_RATE, arguments, difference, train_plainly
from torch import Tensor, nn
from with_tiny_model import Stateful, TinyModel, save_every_epoch, tiny_float32

CHAPTER, PLAIN_CHAPTER = "04_apex", "02_distributed"
CLIP = 0.05  # of a norm around 1


def work(
    chapter: str,
    argv: list[str],
    model: type[nn.Module] = TinyModel,
    bursts: Collection[int] = (),
    first_scale: float = 0.0,
) -> dict:
    """In a crew member: one rank of a run, and what was seen of it, its last weights among that. In
    the training steps `bursts` (from 0) the gradients overflow, by the last rank's share of the
    images."""
    module, empty_like = load_chapter(chapter), torch.empty_like
    built, seen = [], {"types": set(), "steps": 0}
    is_last = int(os.environ["CREW_RANK"]) + 1 == int(os.environ["CREW_SIZE"])

    def look(inner: nn.Module, images: tuple, logits: Tensor) -> None:
        kinds = sorted({str(weight.dtype) for weight in inner.parameters()})
        seen["types"].add((inner.training, logits.dtype, *kinds))
        if inner.training and is_last and seen["steps"] in bursts:
            logits.register_hook(lambda gradient: gradient * math.inf)
        seen["steps"] += inner.training

    def build(args: object, num_classes: int) -> nn.Module:
        built.append(model(num_classes))
        built[0].register_forward_hook(look)
        return built[0]

    def full_of_nan(*args: Any, **kwargs: Any) -> Tensor:
        """Memory that nobody has written to is never by chance what one wishes."""
        fresh = empty_like(*args, **kwargs)
        return fresh.fill_(math.nan) if fresh.is_floating_point() else fresh

    used = stand_in.in_use(module) if "--apex" in argv else nullcontext(stand_in.state)
    patches = {"build_model": build, "save_checkpoint": save_every_epoch}
    if first_scale:
        patches["GradScaler"] = partial(torch.amp.GradScaler, init_scale=first_scale)
    with used as apex, mock.patch("torch.empty_like", full_of_nan):
        answer = call_main(chapter, argv, patches)
    seen["weights"] = [weight.tolist() for weight in built[0].parameters()]
    return seen | answer | {"calls": apex.calls, "apex": apex.arguments}


def train(
    crew: Crew, run_dir: Path, kind: str, *argv: Any, world_size: int = 1, **options: Any
) -> list[dict]:
    """A run, and what each rank saw; all must have the same weights. kind: a native type ("fp16"),
    a level of Apex ("O1"), "default", or "02", a chapter without both; more flags may follow."""
    first, *more = kind.split()
    own = ["--apex", first] if "O" in first else ["--amp-dtype", first]
    own = [] if first in ("default", "02") else own
    chapter = PLAIN_CHAPTER if first == "02" else CHAPTER
    words = [*arguments(run_dir, LOW_RATE), "--print-freq", "1", *own, *more, *map(str, argv)]
    task = partial(work, **options)
    answers = crew.run(task, chapter, words, world_size=world_size)
    for answer in answers:
        assert answer["exit"] is None, answer
        assert answer["weights"] == answers[0]["weights"]
    return answers


def column(run_dir: Path, event: str, name: str) -> list:
    return [row[name] for row in rows(run_dir, event)]


# --------------------------------------------------------------------------------------- native amp


@pytest.mark.parametrize(("name", "world_size"), [("fp16", 1), ("default", 2)])
def test_types(name: str, world_size: int, crew: Crew, tmp_path: Path) -> None:
    """The arithmetic has the type that was asked for, bf16 if none was, in training and
    evaluation; weights (and so gradients) and momentum stay fp32."""
    dtype = {"fp16": torch.float16, "default": torch.bfloat16}[name]
    for seen in train(crew, tmp_path, name, world_size=world_size):
        assert seen["types"] == {(mode, dtype, "torch.float32") for mode in (True, False)}
    state = load_state(tmp_path / "checkpoint.pt")
    assert {value.dtype for value in state["model"].values()} == {torch.float32}
    slots = state["optimizer"]["state"].values()
    assert {slot["momentum_buffer"].dtype for slot in slots} == {torch.float32}
    scale = 65536.0 if name == "fp16" else 1.0
    assert set(column(tmp_path, "train", "loss_scale")) == {scale}
    assert bool(state["scaler"]) == (name == "fp16")


def test_overflow_by_a_huge_scale(crew: Crew, tmp_path: Path) -> None:
    """The scale is halved and the step left out until the gradients fit. Weights and momentum are
    those of a loop that never made such steps; the first leaves nothing in the momentum, where
    torch's fused SGD would leave whatever was in memory. Only rate and count go on."""
    train(crew, tmp_path, "fp16", bursts=(10,), first_scale=2.0**22)
    scales = [2.0**22, *column(tmp_path, "train", "loss_scale")]
    skipped = [step for step, (a, b) in enumerate(pairwise(scales)) if b == a / 2]
    assert skipped[0] == 0 and skipped[-1] == 10 and len(skipped) < 10, skipped
    state = load_state(tmp_path / "checkpoint.pt")
    expected, momentum = train_plainly(tiny_float32, LOW_RATE, skipped=skipped)
    assert difference(expected, state) < 2e-4
    assert difference(train_plainly(tiny_float32, LOW_RATE, skipped=skipped[:-1])[0], state) > 5e-4
    assert state["scaler"]["scale"] == scales[-1]
    for index, speed in enumerate(momentum):
        slot = state["optimizer"]["state"][index]["momentum_buffer"]
        assert torch.allclose(slot, speed, rtol=0, atol=2e-3), index


def test_momentum_of_a_checkpoint() -> None:
    """It keeps its precision beside fp16 weights (O2), and comes in the layout of its weight."""
    module, small = load_chapter(CHAPTER), TinyModel(10)
    small.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(small.parameters(), 0.1)
    momenta = [1e-9 * weight.detach().contiguous() for weight in small.parameters()]
    saved = {number: {"momentum_buffer": momentum} for number, momentum in enumerate(momenta)}
    small.half()
    module.load_momentum(optimizer, saved)
    for number, weight in enumerate(small.parameters()):
        momentum = optimizer.state[weight]["momentum_buffer"]
        assert momentum.stride() == weight.stride() and momentum.dtype == torch.float32
        assert torch.equal(momentum, momenta[number])


# ---------------------------------------------------------------------- both: clipping and resuming


def clipped(loss: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """In place of torch.autograd.grad: with the norm of all gradients bounded."""
    loss.backward()
    nn.utils.clip_grad_norm_(weights, CLIP)
    gradients = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    return gradients


@pytest.mark.parametrize("kind", ["fp16", "O2"])
def test_clip(kind: str, crew: Crew, tmp_path: Path) -> None:
    """Bounded is what the weights are updated by: not its multiple by the loss scale, and the
    average over the ranks."""
    seen = train(crew, tmp_path, kind, "--clip-grad", CLIP, world_size=2)[0]
    state = load_state(tmp_path / "checkpoint.pt")
    with mock.patch("torch.autograd.grad", clipped):
        bound = difference(train_plainly(tiny_float32, LOW_RATE)[0], state)
    free = difference(train_plainly(tiny_float32, LOW_RATE)[0], state)
    tolerance = 2e-5 if kind == "fp16" else 1e-3  # the weights of O2 have 11 bits
    assert bound < tolerance < free / 5
    assert kind == "fp16" or seen["calls"][-3:] == ["unscale", "step", "zero_grad"]


def scaling(folder: Path) -> tuple[float, int] | None:
    """A checkpoint's scale, and for how many steps it has been what it is."""
    saved = load_state(folder / "checkpoint.pt").get("scaler")
    if not saved:
        return None
    if "scale" in saved:
        return saved["scale"], saved["_growth_tracker"]
    return saved["loss_scaler0"]["loss_scale"], saved["loss_scaler0"]["unskipped"]


@pytest.mark.parametrize(
    "kind",
    ["fp16", "O1", "O2"]
    + [pytest.param(kind, marks=pytest.mark.proof) for kind in ("bf16", "fp32", "O0", "O3")],
)
def test_resume_bit_for_bit(kind: str, crew: Crew, tmp_path: Path) -> None:
    """Dropout, BatchNorm, momentum, and where there is one the scale and the steps since it
    changed: three steps overflow on one rank, and all leave them out. With O2 nearly so: Apex makes
    the fp32 weights behind the model's fp16 ones anew, from those, so what fp16 has rounded away is
    lost in a resume."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    scaled = kind in ("fp16", "O1", "O2")
    options = {"world_size": 2, "model": Stateful}
    train(crew, whole, kind, "--epochs", 4, bursts=(0, 4, 6) if scaled else (), **options)
    train(crew, cut, kind, "--epochs", 4, "--resume", whole / "after2.pt", **options)
    assert not scaled or scaling(whole) == scaling(cut) == (8192.0, 9)
    ends = [load_state(folder / "checkpoint.pt") for folder in (whole, cut)]
    if kind == "O2":
        for name, weight in ends[0]["model"].items():
            assert torch.allclose(weight.float(), ends[1]["model"][name].float(), atol=5e-3), name
        return
    assert_same(*ends)
    assert column(whole, "train", "loss")[8:] == column(cut, "train", "loss")


FRESH = (65536.0, 4)  # the usual first scale, four steps later


@pytest.mark.parametrize(
    ("first", "then", "scale"),
    [
        ("02", "fp16", FRESH),
        ("fp16", "02", None),
        ("fp16", "O1", FRESH),
        ("O1", "fp16", FRESH),
        ("O1", "O0", None),
        ("O2", "02", None),
    ],
)
def test_resume_across_kinds(
    first: str, then: str, scale: tuple | None, crew: Crew, tmp_path: Path
) -> None:
    """Any precision of any implementation goes on from any other's checkpoint, and so does another
    chapter: with weights and momentum, near to where the first would have got to, but not with a
    scale of another kind."""
    options = {"first_scale": 1024.0} if first == "fp16" else {}
    train(crew, tmp_path / "first", first, bursts=(1,) if first == "O1" else (), **options)
    half_way = tmp_path / "first/after2.pt"
    train(crew, tmp_path / "on", then, "--resume", half_way)
    assert len(column(tmp_path / "on", "train", "loss")) == 4
    assert scaling(tmp_path / "on") == scale
    first_end = load_state(tmp_path / "first/checkpoint.pt")["model"]
    end = load_state(tmp_path / "on/checkpoint.pt")["model"]
    early = load_state(half_way)["model"]
    assert max((end[name] - weight).abs().max() for name, weight in first_end.items()) < 2e-3
    assert max((end[name] - weight).abs().max() for name, weight in early.items()) > 5e-3


# --------------------------------------------------------------------- Apex, against the stand-in


@pytest.mark.parametrize("package", [None, ModuleType("apex")])
def test_no_apex(package: ModuleType | None) -> None:
    """Missing, or without amp, as PyPI's and NVIDIA's after tag 25.05: one line says what to type.
    (Flags that contradict each other: test_errors.py.)"""
    module = load_chapter(CHAPTER)
    args = module.build_parser().parse_args(["--synthetic", "--apex", "O1"])
    with (
        mock.patch.dict("sys.modules", {"apex": package}),
        mock.patch("torch.cuda.is_available", lambda: True),
        pytest.raises(SystemExit, match="PyPI's apex .* have no amp. Build it: git clone -b 25.05"),
    ):
        module.check_flags(args, 1)


def test_apex_in_fp32_is_native_in_fp32(crew: Crew, tmp_path: Path) -> None:
    """O0 calculates in fp32."""
    for kind in ("O0", "fp32"):
        train(crew, tmp_path / kind, f"{kind} --clip-grad 0.1", world_size=2)
    apex, native = (load_state(tmp_path / f"{n}/checkpoint.pt")["model"] for n in ("O0", "fp32"))
    assert all(torch.allclose(apex[n], native[n], rtol=0, atol=2e-6) for n in native)


@pytest.mark.parametrize("kind", ["O1", "O2 --sync-bn"])
def test_apex(kind: str, crew: Crew, tmp_path: Path) -> None:
    """What Apex is asked to do, in which order, in which types; where one rank of two overflows all
    leave the step out. What it saved evaluates the same."""
    bursts = (0, 3)
    first = ["convert_syncbn_model"] if "sync" in kind else []
    expected = [*first, "initialize", "DistributedDataParallel"]
    for step in range(12):
        expected += ["scale_loss", "backward", "unscale"]
        expected += ["skip" if step in bursts else "step", "zero_grad"]
    types = (torch.float16, "torch.float32") if kind == "O1" else (torch.float16, "torch.float16")
    for seen in train(crew, tmp_path / "run", kind, world_size=2, bursts=bursts):
        assert seen["calls"] == expected
        assert seen["apex"] == {"opt_level": kind[:2]}
        assert seen["types"] == {(mode, *types) for mode in (True, False)}
    assert column(tmp_path / "run", "train", "loss_scale") == [2.0**15] * 3 + [2.0**14] * 9
    again = ["--resume", tmp_path / "run/checkpoint.pt", "--evaluate"]
    train(crew, tmp_path / "again", kind, *again, world_size=2)
    evaluated = rows(tmp_path / "again", "eval", "evaluate.jsonl")[-1]
    assert evaluated["loss"] == rows(tmp_path / "run", "eval")[-1]["loss"]


# ------------------------------------------------------------------------- Apex itself, on its GPUs


LEVELS = [f"--apex O{level}" for level in (0, 1, 2, 3)]
MORE = [f"{LEVELS[1]} --sync-bn", *(f"{level} --clip-grad 1" for level in LEVELS[1:3])]


def launch_on_gpus(cwd: Path, name: str, *argv: Any) -> list[float]:
    """The chapter as a reader starts it; the losses of its steps. Apex warns that it is deprecated,
    which is no error."""
    why = "needs a GPU and Apex, tag 25.05, with its kernels"
    if not torch.cuda.is_available():
        pytest.skip(why)
    pytest.importorskip("apex.amp", reason=why, exc_type=ImportError)
    pytest.importorskip("amp_C", reason=why, exc_type=ImportError)
    words = ["--arch", "resnet18", "--synthetic", 256, "--image-size", 64, "--batch-size", 64]
    words += ["--workers", 0, "--print-freq", 1, "--lr", 0.2, "--epochs", 4, "--output-dir", name]
    result = launch(CHAPTER, [*words, *argv], cwd, None, 300, {"PYTHONWARNINGS": "default"})
    assert result.returncode == 0, result.output
    return column(cwd / name, "train", "loss")


@pytest.mark.parametrize("argv", [*LEVELS, *MORE])
def test_real_training(argv: str, tmp_path: Path) -> None:
    """It learns; what it saved is fp32, from which it goes on, and so does torch alone."""
    losses = launch_on_gpus(tmp_path, "run", *argv.split())
    assert all(map(math.isfinite, losses)) and losses[-1] < 0.7 * losses[0], losses
    state = load_state(tmp_path / "run/checkpoint.pt")
    floats = [value for value in state["model"].values() if value.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.float32}
    go_on = ["--resume", "run/checkpoint.pt", "--epochs", 5]
    assert launch_on_gpus(tmp_path, "on", *go_on, *argv.split())[0] < losses[0]
    assert launch_on_gpus(tmp_path, "native", *go_on, "--amp-dtype", "bf16")[0] < losses[0]
