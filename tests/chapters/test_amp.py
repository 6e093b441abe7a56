"""Mixed precision: torch.amp for real, on CPUs; Apex, which needs a GPU, against a stand-in that
keeps its rules (apex_stand_in.py), and for real in the last tests here, on a GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
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
from torch import Tensor, nn
from with_tiny_model import Stateful, TinyModel

CHAPTER, PLAIN_CHAPTER = "04_apex", "02_distributed"
# 50 images are 4 batches of 12 an epoch; 12 images to evaluate.
IMAGES, BATCH, SIZE, SEED, DECAY = 50, 12, 16, 3, 0.01
ARGV = ["--synthetic", IMAGES, "--image-size", SIZE, "--batch-size", BATCH, "--seed", SEED]
ARGV += ["--weight-decay", DECAY, "--lr", 2.0, "--workers", 0, "--print-freq", 1]


# ----------------------------------------------------------------------- what runs in the processes


def work(
    argv: list,
    chapter: str,
    model: type[nn.Module] = TinyModel,
    bursts: Sequence[int] = (),
) -> dict:
    """One rank of a run, and what was seen of it: types of logits and weights, and all weights
    after every step. In the training steps `bursts` (from 0) the gradients overflow, by the last
    rank's share of the images."""
    module, empty_like = load_chapter(chapter), torch.empty_like
    seen: dict[str, Any] = {"logits": set(), "steps": 0, "weights": {}}
    is_last = int(os.environ["RANK"]) + 1 == int(os.environ["WORLD_SIZE"])

    def look(inner: nn.Module, images: tuple, logits: Tensor) -> None:
        weights = list(inner.parameters())
        kinds = sorted({str(weight.dtype) for weight in weights})
        seen["logits"].add((inner.training, logits.dtype, *kinds))
        flat = torch.cat([weight.detach().double().flatten() for weight in weights])
        seen["weights"][seen["steps"]] = flat.tolist()
        if inner.training and is_last and seen["steps"] in bursts:
            logits.register_hook(lambda gradient: gradient * math.inf)
        seen["steps"] += inner.training

    def build(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
        built = model(num_classes)
        built.register_forward_hook(look)
        return built

    def save(folder: Path, state: dict, is_best: bool) -> None:
        torch.save(state, folder / "checkpoint.pt")
        torch.save(state, folder / f"after{state['epoch']}.pt")

    def full_of_nan(*args: Any, **kwargs: Any) -> Tensor:
        """Memory that nobody has written to is never by chance what one wishes."""
        fresh = empty_like(*args, **kwargs)
        return fresh.fill_(math.nan) if fresh.is_floating_point() else fresh

    used = stand_in.in_use(module) if "apex" in argv else nullcontext(stand_in.state)
    patches = {"build_model": build, "save_checkpoint": save}
    # Within 24 steps, not 2000, Apex's scale is to grow as well.
    grows = mock.patch.object(stand_in, "GROWS_AFTER", 20)
    with used as apex, grows, mock.patch("torch.empty_like", full_of_nan):
        answer = call_main(chapter, argv, patches)
    seen["weights"] = [*seen["weights"].values()][1:]
    return seen | answer | {"calls": apex.calls, "apex": apex.arguments}


# --------------------------------------------------------------------------------------------- help


@pytest.fixture
def train(crew: Crew, tmp_path: Path) -> Callable[..., list[dict]]:
    """train(kind, *argv): a run, and what each rank saw; all must have the same weights. kind:
    a native type ("fp16"), a level of Apex ("O1"), "default", or "02", a chapter without both;
    more flags may follow. name: of its folder in tmp_path."""

    def train(
        kind: str, *argv: Any, name: str = "run", world_size: int = 1, **options: Any
    ) -> list[dict]:
        first, *more = kind.split()
        own = ["--impl", "apex", "--opt-level", first] if "O" in first else ["--amp-dtype", first]
        own = [] if first in ("default", "02") else own
        words = [*ARGV, *own, *more, *argv, "--output-dir", tmp_path / name]
        chapter = PLAIN_CHAPTER if first == "02" else CHAPTER
        task = partial(work, [str(word) for word in words], chapter, **options)
        answers = crew.run(task, world_size=world_size, timeout=60)
        for answer in answers:
            assert answer["exit"] is None, answer
            assert answer["weights"] == answers[0]["weights"]
        for answer in answers:
            answer["weights"] = torch.tensor(answer["weights"], dtype=torch.float64)
        return answers

    return train


def column(run_dir: Path, event: str, name: str) -> list:
    return [row[name] for row in rows(run_dir, event)]


def left_out(run_dir: Path, first: float = 2.0**16) -> list[int]:
    """The steps (from 0) that an overflow has skipped: those that halved the scale."""
    scales = [first, *column(run_dir, "train", "loss_scale")]
    return [step for step, (a, b) in enumerate(pairwise(scales)) if b == a / 2]


def learned(run_dir: Path) -> bool:
    losses = column(run_dir, "eval", "loss")
    return losses[-1] < 0.75 * losses[0]


def train_by_hand(
    run_dir: Path,
    dtype: torch.dtype = torch.float32,
    skipped: Sequence[int] = (),
    clip: float = math.inf,
    scales: Sequence[float] = (1.0,) * 100,
) -> tuple[Tensor, list[Tensor]]:
    """The steps of a run on a TinyModel, by torch's plainest SGD in fp32, which is told the rates
    and the steps to leave out. Returns the weights after each step, a row a step, and the momentum
    in the end."""
    rates = column(run_dir, "train", "lr")
    module, batches = load_chapter(CHAPTER), []
    args = module.build_parser().parse_args([str(word) for word in ARGV])
    train_set, val_set, classes = module.build_datasets(args)
    loader, _ = module.build_loaders(args, train_set, val_set, 0, 1)
    for epoch in range(len(rates) // 4):
        loader.sampler.set_epoch(epoch)
        batches += [module.to_device(*batch, torch.device("cpu")) for batch in loader]

    torch.manual_seed(SEED)
    model = TinyModel(classes).to(memory_format=torch.channels_last)
    weights, after = list(model.parameters()), []
    sgd = torch.optim.SGD(weights, momentum=0.9, weight_decay=DECAY, foreach=False)
    for step, (rate, (images, targets)) in enumerate(zip(rates, batches, strict=True)):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(images), targets)
        sgd.zero_grad()
        (loss.float() * scales[step]).backward()
        for weight in weights:
            weight.grad /= scales[step]
        nn.utils.clip_grad_norm_(weights, clip)
        sgd.param_groups[0]["lr"] = rate
        if step not in skipped:
            sgd.step()
        after.append(torch.cat([weight.detach().double().flatten() for weight in weights]))
    return torch.stack(after), [sgd.state[weight]["momentum_buffer"] for weight in weights]


# --------------------------------------------------------------------------------------- native amp


@pytest.mark.parametrize(
    ("name", "world_size"),
    [("fp16", 1), ("default", 2), pytest.param("fp32", 1, marks=pytest.mark.proof)],
)
def test_types(name: str, world_size: int, train: Callable, tmp_path: Path) -> None:
    """The arithmetic has the type that was asked for, bf16 if none was, in training and
    evaluation; weights (and so gradients) and momentum stay fp32. And it learns."""
    dtype = {"fp16": torch.float16, "default": torch.bfloat16, "fp32": torch.float32}[name]
    for seen in train(name, "--epochs", 6, world_size=world_size):
        assert seen["logits"] == {(mode, dtype, "torch.float32") for mode in (True, False)}
    state = load_state(tmp_path / "run/checkpoint.pt")
    assert {value.dtype for value in state["model"].values()} == {torch.float32}
    slots = state["optimizer"]["state"].values()
    assert {slot["momentum_buffer"].dtype for slot in slots} == {torch.float32}
    assert learned(tmp_path / "run")
    logged = rows(tmp_path / "run", "train")
    scale = 65536.0 if name == "fp16" else 1.0
    assert {row["loss_scale"] for row in logged} == {scale}
    assert (state["scaler"] is None) == (name != "fp16")


@pytest.mark.proof
@pytest.mark.parametrize(("name", "tolerance"), [("bf16", 2e-3), ("fp16", 2e-4)])
def test_close_to_fp32(name: str, tolerance: float, train: Callable) -> None:
    """The largest difference of a weight in 12 steps: the figures on the chapter's page."""
    seen = {kind: train(kind, "--epochs", 3, name=kind, world_size=2) for kind in (name, "fp32")}
    got, exact = seen[name][0]["weights"], seen["fp32"][0]["weights"]
    difference, moved = (got - exact).abs().max(), (exact[-1] - exact[0]).abs().max()
    print(f"\n{name}: differs by {difference:.1e}, moved by {moved:.1e}")
    assert 0 < difference < tolerance < moved / 20


def test_overflow_by_a_huge_scale(train: Callable, tmp_path: Path) -> None:
    """The scale is halved and the step left out until the gradients fit. Weights and momentum are
    those of a loop that never made such steps; the first leaves nothing in the momentum, where
    torch's fused SGD would leave whatever was in memory. Only rate and count go on."""
    seen = train("fp16 --loss-scale", 2.0**30, "--epochs", 5, bursts=(17,))[0]
    skipped = left_out(tmp_path / "run", 2.0**30)
    assert skipped[0] == 0 and skipped[-1] == 17 and len(skipped) < 17, skipped
    scales = [2.0**30, *column(tmp_path / "run", "train", "loss_scale")]
    expected, momentum = train_by_hand(tmp_path / "run", torch.float16, skipped, scales=scales)
    assert torch.allclose(seen["weights"], expected, rtol=0, atol=2e-6)
    state = load_state(tmp_path / "run/checkpoint.pt")
    assert (state["scaler"]["scale"], state["global_step"]) == (scales[-1], 20)
    for index, speed in enumerate(momentum):
        slot = state["optimizer"]["state"][index]["momentum_buffer"]
        assert torch.allclose(slot, speed, rtol=0, atol=2e-5), index


def test_momentum_of_a_checkpoint() -> None:
    """It keeps its precision beside fp16 weights (O2), and comes in the layout of its weight."""
    module, small = load_chapter(CHAPTER), TinyModel(10)
    small.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(small.parameters(), 0.1)
    momenta = [1e-9 * weight.detach().contiguous() for weight in small.parameters()]
    saved = {number: {"momentum_buffer": momentum} for number, momentum in enumerate(momenta)}
    module.load_momentum(optimizer, small.half(), {"optimizer": {"state": saved}})
    for number, weight in enumerate(small.parameters()):
        momentum = optimizer.state[weight]["momentum_buffer"]
        assert momentum.stride() == weight.stride() and momentum.dtype == torch.float32
        assert torch.equal(momentum, momenta[number])


# ---------------------------------------------------------------------- both: clipping and resuming


@pytest.mark.parametrize("kind", ["fp16", "O2"])
def test_clip(kind: str, train: Callable, tmp_path: Path) -> None:
    """Bounded is what the weights are updated by: not its multiple by the loss scale, and the
    average over the ranks."""
    clip = 0.05  # of a norm around 1
    seen = train(kind, "--epochs", 1, "--clip-grad", clip, world_size=2)[0]
    got, calls = seen["weights"], ["unscale", "master_params", "step"]
    bound, _ = train_by_hand(tmp_path / "run", clip=clip)
    free, _ = train_by_hand(tmp_path / "run")
    tolerance = 2e-5 if kind == "fp16" else 1e-3  # the weights of O2 have 11 bits
    assert (got - bound).abs().max() < tolerance < (got - free).abs().max() / 5
    assert kind == "fp16" or seen["calls"][-3:] == calls


def scaling(state: dict) -> tuple[float, int] | None:
    """The scale, and for how many steps it has been what it is."""
    saved = state["scaler"]
    if saved is None:
        return None
    if "scale" in saved:
        return saved["scale"], saved["_growth_tracker"]
    return saved["loss_scaler0"]["loss_scale"], saved["loss_scaler0"]["unskipped"]


@pytest.mark.parametrize(
    "kind",
    ["fp16", "O1", "O2"]
    + [pytest.param(kind, marks=pytest.mark.proof) for kind in ("bf16", "fp32", "O0", "O3")],
)
def test_resume_bit_for_bit(kind: str, train: Callable, tmp_path: Path) -> None:
    """Dropout, BatchNorm, momentum, and where there is one the scale and the steps since it
    changed: three steps overflow on one rank, and all leave them out. With O2 nearly so: Apex makes
    the fp32 weights behind the model's fp16 ones anew, from those, so what fp16 has rounded away is
    lost in a resume."""
    scaled = kind in ("fp16", "O1", "O2")
    options = {"world_size": 2, "model": Stateful}
    train(kind, "--epochs", 4, name="whole", bursts=(0, 4, 6) if scaled else (), **options)
    resume = ["--epochs", 4, "--resume", tmp_path / "whole/after2.pt"]
    train(kind, *resume, name="cut", **options)
    whole, cut = (load_state(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut"))
    assert {v.dtype for v in whole["model"].values()} <= {torch.float32, torch.int64}
    assert not scaled or scaling(whole) == scaling(cut) == (8192.0, 9)
    if kind == "O2":
        for name, weight in whole["model"].items():
            assert torch.allclose(weight.float(), cut["model"][name].float(), atol=5e-3), name
        return
    del whole["args"], cut["args"]
    assert_same(whole, cut)
    losses = [column(tmp_path / name, "train", "loss") for name in ("whole", "cut")]
    assert losses[0][8:] == losses[1]


FRESH = (65536.0, 4)  # the usual first scale, four steps later


@pytest.mark.parametrize(
    ("first", "then", "scale"),
    [
        ("02", "fp16", FRESH),
        ("fp16 --loss-scale 1024", "02", None),
        ("fp16 --loss-scale 1024", "O1", FRESH),
        ("O1", "fp16", FRESH),
        ("O1", "O1 --loss-scale 128", None),  # a fixed scale is that of the command line
        ("O1 --loss-scale 128", "O1", FRESH),
        ("O2", "02", None),
    ],
)
def test_resume_across_kinds(
    first: str, then: str, scale: tuple | None, train: Callable, tmp_path: Path
) -> None:
    """Any precision of any implementation goes on from any other's checkpoint, and so does another
    chapter: with weights and momentum, near to where the first would have got to, but not with a
    scale of another kind."""
    train(first, "--epochs", 2, name="first", bursts=(1,) if first == "O1" else ())
    half_way = tmp_path / "first/after1.pt"
    train(then, "--epochs", 2, "--resume", half_way, name="on")
    assert len(column(tmp_path / "on", "train", "loss")) == 4
    states = [load_state(path) for path in (half_way, *tmp_path.glob("*/checkpoint.pt"))]
    weights = [torch.cat([w.flatten() for w in state["model"].values()]) for state in states]
    assert scaling(load_state(tmp_path / "on/checkpoint.pt")) == scale
    assert (weights[1] - weights[2]).abs().max() < 5e-3
    assert (weights[0] - weights[2]).abs().max() > 1e-2


# --------------------------------------------------------------------- Apex, against the stand-in


@pytest.mark.parametrize("package", [None, ModuleType("apex")])
def test_no_apex(package: ModuleType | None) -> None:
    """Missing, or without amp, as PyPI's and NVIDIA's after tag 25.05: one line says what to type.
    (Flags that contradict each other: test_errors.py.)"""
    module = load_chapter(CHAPTER)
    args = module.build_parser().parse_args(["--synthetic", "--impl", "apex"])
    with (
        mock.patch.dict("sys.modules", {"apex": package}),
        mock.patch("torch.cuda.is_available", lambda: True),
        pytest.raises(SystemExit, match="PyPI's apex .* have no amp. Build it: git clone -b 25.05"),
    ):
        module.check_precision(args)


@pytest.mark.parametrize("extra", ["--fused-sgd", "--clip-grad 0.1"])
def test_apex_in_fp32_is_native_in_fp32(extra: str, train: Callable) -> None:
    """O0 calculates in fp32: the same weights after every step."""
    apex = train(f"O0 {extra}", "--epochs", 2, world_size=2, name="apex")
    extra = extra.replace("--fused-sgd", "")
    native = train(f"fp32 {extra}", "--epochs", 2, world_size=2, name="native")
    assert torch.allclose(apex[0]["weights"], native[0]["weights"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["O1", "O2 --fused-sgd"])
def test_apex(kind: str, train: Callable, tmp_path: Path) -> None:
    """What Apex is asked to do, in which order, in which types, where one rank of two overflows
    and all leave the step out; a scale that grows is no such step. It learns, and what it saved
    evaluates the same."""
    level, *fused = kind.split()
    bursts = (0, 3)
    steps = ["skip" if step in bursts else "step" for step in range(24)]
    expected = [*(["FusedSGD"] if fused else []), "initialize", "DistributedDataParallel"]
    for step in steps:
        expected += ["zero_grad", "scale_loss", "backward", "unscale", step]
    weights = "torch.float16" if level == "O2" else "torch.float32"
    logits = torch.float16 if level == "O1" else torch.float32
    for seen in train(kind, "--epochs", 6, world_size=2, bursts=bursts):
        assert seen["calls"] == expected
        assert seen["apex"] == {"opt_level": level, "loss_scale": None}
        assert seen["logits"] == {(mode, logits, weights) for mode in (True, False)}
        assert torch.equal(seen["weights"][3], seen["weights"][2])
    scales = [2.0**15] * 3 + [2.0**14] * 20 + [2.0**15]
    assert column(tmp_path / "run", "train", "loss_scale") == scales
    assert learned(tmp_path / "run")
    state = load_state(tmp_path / "run/checkpoint.pt")
    assert scaling(state) == (scales[-1], 0)
    assert {value.dtype for value in state["model"].values()} == {torch.float32}
    again = ["--epochs", 6, "--resume", tmp_path / "run/checkpoint.pt", "--evaluate"]
    train(kind, *again, name="again", world_size=2)
    evaluated = rows(tmp_path / "again", "eval", "evaluate.jsonl")[-1]
    assert evaluated["loss"] == rows(tmp_path / "run", "eval")[-1]["loss"]


def test_apex_arguments(train: Callable) -> None:
    """What is typed comes to amp.initialize, and BatchNorm's layers are swapped before the
    optimizer takes their weights (or the stand-in ends the run)."""
    argv = ["--loss-scale", 128, "--sync-bn", "--epochs", 1]
    seen = train("O2", *argv, world_size=2, model=Stateful)[0]
    assert seen["apex"] == {"opt_level": "O2", "loss_scale": 128.0}
    assert {kinds[2:] for kinds in seen["logits"]} == {("torch.float16", "torch.float32")}
    assert seen["calls"][:2] == ["convert_syncbn_model", "initialize"]


# ------------------------------------------------------------------------- Apex itself, on its GPUs


LEVELS = [f"--impl apex --opt-level O{level}" for level in (0, 1, 2, 3)]
FUSED = [f"--fused-sgd --amp-dtype {dtype}" for dtype in ("bf16", "fp16", "fp32")]
MORE = [f"{LEVELS[1]} {words}" for words in ("--sync-bn", "--loss-scale 128")]
MORE += [f"{level} {word}" for level in LEVELS[1:3] for word in ("--clip-grad 1", "--fused-sgd")]


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


@pytest.mark.parametrize("argv", [*LEVELS, *FUSED, *MORE])
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


@pytest.mark.parametrize("argv", [LEVELS[0], *FUSED])
def test_real_apex_is_near_to_native(argv: str, tmp_path: Path) -> None:
    """O0 is native fp32, FusedSGD torch's SGD: the same losses for a few steps, before rounding
    tells."""
    native = argv.replace(LEVELS[0], "--amp-dtype fp32").replace("--fused-sgd", "")
    short = ["--epochs", 1, "--lr", 0.02]
    losses = launch_on_gpus(tmp_path, "apex", *argv.split(), *short)
    expected = launch_on_gpus(tmp_path, "native", *native.split(), *short)
    assert losses == pytest.approx(expected, rel=0.05 if "16" in argv else 0.02)
