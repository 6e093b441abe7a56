"""08_fsdp2: what is there of a model on each rank, and what reaches all of them.

That it trains, evaluates and resumes as the other chapters do: test_equivalence.py,
test_exact_eval.py, test_resume.py.
"""

import os
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from crew import Crew, call_main
from harness import FSDP, assert_same, load_chapter, load_state
from tiers import table
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchvision import models
from torchvision.models.regnet import BlockParams
from torchvision.ops import StochasticDepth
from with_tiny_model import save_every_epoch, tiny_batchnorm, tiny_float64

from tools.benchmark.fsdp_units import kept_for_backward, prepare

HUB = "02_distributed"
TINY = ["--synthetic", "24", "--image-size", "8", "--batch-size", "12", "--workers", "0"]
TINY += ["--epochs", "1", "--seed", "3"]
WIDTH = 128  # so that sizes in MB have digits


class Layer(nn.Module):
    """Half of its numbers are a buffer that no state_dict has, as positions of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("scale", torch.linspace(1, 2, width), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.dropout(torch.tanh(self.linear(features * self.scale)))


class Tied(nn.Module):
    """A row of layers; what maps to them and from them is one and the same weight."""

    def __init__(self, num_classes: int, width: int = WIDTH) -> None:
        super().__init__()
        self.stem = nn.Linear(3 * 64, width)
        self.into = nn.Linear(width, width, bias=False)
        self.layers = nn.ModuleList([Layer(width) for _ in range(2)])
        self.out = nn.Linear(width, width, bias=False)
        self.out.weight = self.into.weight
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.into(self.stem(images.flatten(1).to(self.stem.weight.dtype)))
        for layer in self.layers:
            features = layer(features)
        return self.head(self.out(features))


def tied(args: object, num_classes: int) -> nn.Module:
    return Tied(num_classes).double()


def run(
    crew: Crew, chapter: str, size: int, folder: Path, *more: str, build: object = tied
) -> dict:
    """Train, and return the checkpoint."""
    argv = [*TINY, "--output-dir", str(folder), *more]
    for answer in crew.run(call_main, chapter, argv, {"build_model": build}, world_size=size):
        assert answer["exit"] is None, answer
    return load_state(folder / "checkpoint.pt")


def assert_alike(state: dict, other: dict, atol: float = 1e-12) -> None:
    """Weights and momentum, but for rounding."""
    for name, tensor in state["model"].items():
        torch.testing.assert_close(other["model"][name], tensor, rtol=0, atol=atol)
    kept, others = (s["optimizer"]["state"] for s in (state, other))
    torch.testing.assert_close(others, kept, rtol=0, atol=atol)


@pytest.mark.parametrize("more", [[], ["--recompute"]], ids=["plain", "recompute"])
def test_tied_weights_and_hidden_buffers(crew: Crew, more: list, tmp_path: Path) -> None:
    """They are those of rank 0, where the model was made, on all ranks: it trains as under DDP,
    dropout included. So it does where blocks are computed once more."""
    ours = run(crew, FSDP, 2, tmp_path / "ours", *more)
    assert_alike(run(crew, HUB, 2, tmp_path / "hub"), ours)


@pytest.mark.parametrize("replicas", ["2", pytest.param("1", marks=pytest.mark.proof)])
def test_replicas(replicas: str, tmp_path: Path) -> None:
    """Two whole models on four ranks, each divided between two of them, train as one."""
    with Crew(4) as crew:
        more = ["--replicas", replicas]
        ours = run(crew, FSDP, 4, tmp_path / "ours", *more, build=tiny_float64)
        assert_alike(run(crew, HUB, 1, tmp_path / "hub", build=tiny_float64), ours)
        more += ["--resume", "--epochs", "2"]
        run(crew, FSDP, 4, tmp_path / "ours", *more, build=tiny_float64)


def kept_by_rank(folder: str) -> dict:
    """In a crew member: elements of the weights, their gradients and momentum that it keeps after
    a step, and what the line at the start says."""
    seen = {}

    def note(
        args: object, log: object, model: nn.Module, loader: Any, optimizer: Any, *_: object
    ) -> tuple[int, bool]:
        """In place of train_one_epoch: a step, then look."""
        for images, targets in loader:
            nn.functional.cross_entropy(model(images), targets).backward()
            optimizer.step()
        parts = [weight.to_local() for weight in model.parameters()]
        grads = [weight.grad.to_local() for weight in model.parameters()]
        slots = [slot["momentum_buffer"].to_local() for slot in optimizer.state.values()]
        seen.update(
            {name: sum(t.numel() for t in those) for name, those in
             (("weights", parts), ("gradients", grads), ("momentum", slots))}
        )  # fmt: skip
        return len(loader), False

    words = [*TINY, "--output-dir", folder]
    patches = {"build_model": tied, "train_one_epoch": note}
    answer = call_main(FSDP, words, patches)
    assert answer["exit"] is None, answer
    return seen | {"said": answer["stdout"]}


def test_each_rank_keeps_a_part(crew: Crew, tmp_path: Path) -> None:
    """Of weights, gradients and momentum alike; together all of it, and no more than padding."""
    whole = sum(weight.numel() for weight in Tied(10).parameters())
    answers = crew.run(kept_by_rank, str(tmp_path), world_size=2)
    for what in ("weights", "gradients", "momentum"):
        parts = [answer[what] for answer in answers]
        assert sum(parts) == whole and max(parts) - min(parts) <= 2 * WIDTH, (what, parts)
    part, all_of_it = answers[0]["weights"] * 8 / 1e6, whole * 8 / 1e6
    largest = all_of_it - 2 * 8 / 1e6 * sum(weight.numel() for weight in Layer(WIDTH).parameters())
    said = answers[0]["said"]
    assert f"each rank keeps {part:.1f} of {all_of_it:.1f} MB of weights" in said
    unit = f"what is in no block (Tied) with {largest:.1f} MB: `blocks` does not divide it"
    assert f"of 3 units, gathered one after another, the largest is {unit}" in said
    assert f"each rank keeps {part:.1f} of {all_of_it:.1f} MB for SGD" in said
    assert "keeps" not in answers[1]["said"]


def made_where(folder: str) -> str:
    """In a crew member: the device on which the model was made."""
    devices = []

    def build(args: object, num_classes: int) -> nn.Module:
        devices.append(tied(args, num_classes))
        return devices[0]

    made = lambda args, model: devices.append(next(model.parameters()).device.type)  # noqa: E731
    words = [*TINY, "--output-dir", folder]
    call_main(FSDP, words, {"build_model": build, "check_model": made})
    return devices[1]


def test_weights_are_made_once(crew: Crew, tmp_path: Path) -> None:
    assert crew.run(made_where, str(tmp_path), world_size=2) == ["cpu", "meta"]


MISTAKES = {
    "--replicas 3": "--replicas 3 does not divide the 2 ranks",
    "--replicas 0": "--replicas 0 does not divide",
    "--bf16": "--bf16 would gather BatchNorm's weights in bfloat16",
    "--recompute": "--recompute would count each image twice in BatchNorm",
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes(crew: Crew, flags: str, tmp_path: Path) -> None:
    """One line, on all ranks."""
    argv = [*TINY, "--output-dir", str(tmp_path / "run"), *flags.split()]
    patches = {"build_model": tiny_batchnorm}
    for answer in crew.run(call_main, FSDP, argv, patches, world_size=2):
        assert answer["exit"].startswith(f"error: {MISTAKES[flags]}"), answer


@pytest.mark.parametrize("more", [["--bf16"], ["--bf16", "--recompute"]], ids=" ".join)
def test_16_bits(crew: Crew, more: list, tmp_path: Path) -> None:
    """Weights and momentum stay in 32 bits, and a rank sends gradients in 32 bits: what is saved is
    near that of 02, which computes in 16 bits as well."""
    ours = run(crew, FSDP, 2, tmp_path / "ours", *more, build=tied_float32)
    hub = run(crew, HUB, 2, tmp_path / "hub", "--bf16", build=tied_float32)
    for name, tensor in hub["model"].items():
        assert ours["model"][name].dtype == torch.float32
        torch.testing.assert_close(ours["model"][name], tensor, rtol=0, atol=0.02)


def tied_float32(args: object, num_classes: int) -> nn.Module:
    return Tied(num_classes)


# Of each kind of net: its units, the class of the largest, and the per cent of weights in that.
UNITS = {
    "vit_b_16": (13, "EncoderBlock", 8.2),
    "swin_t": (16, "SwinTransformerBlock", 25.1),
    "swin_v2_b": (28, "SwinTransformerBlockV2", 14.3),
    "convnext_large": (42, "CNBlock", 9.6),
    "efficientnet_v2_l": (82, "MBConv", 5.2),
    "regnet_y_400mf": (18, "ResBottleneckBlock", 11.9),
    "resnet50": (16, "Bottleneck", 23.6),
    "maxvit_t": (9, "MaxVitBlock", 56.7),  # it has a forward of its own
    "densenet121": (10, "_DenseBlock", 35.6),  # so has it
    "vgg16": (16, "Linear", 74.3),
    "inception_v3": (0, None, 0),  # nothing stands in a row
}


@pytest.mark.filterwarnings("ignore:The default weight initialization")
@pytest.mark.parametrize("arch", UNITS)
def test_blocks(arch: str) -> None:
    """Layers and blocks, not the stages that they stand in; nor the single layers of a stem, such
    as a BatchNorm by itself."""
    blocks, count = load_chapter(FSDP).blocks, load_chapter(FSDP).count
    with torch.device("cpu" if "regnet" in arch else "meta"):
        model = models.get_model(arch)
    units = blocks(model)
    largest = max(units, key=count, default=None)
    share = round(100 * count(largest) / count(model), 1) if units else 0
    assert (len(units), largest and type(largest).__name__, share) == UNITS[arch]
    weights = [weight for unit in units for weight in unit.parameters()]
    assert len(weights) == len(set(weights))  # each is in one unit
    norms = nn.LayerNorm | nn.BatchNorm2d
    assert sum(isinstance(unit, norms) for unit in units) <= 2  # that stand in the outermost row
    assert os.environ.get("RANK") is None  # it needs no ranks


@pytest.mark.parametrize(("arch", "most"), {"vit_b_16": 0.15, "swin_b": 0.2}.items())
def test_recompute_keeps_little(arch: str, most: float) -> None:
    """Of the activations of an image: what stands between two units, and the inside of one. Stages
    as units would leave more than half."""
    chapter = load_chapter(FSDP)
    with torch.device("meta"):
        model, image = models.get_model(arch), torch.empty(1, 3, 224, 224)
    plain, again = (kept_for_backward(chapter, model, image, flag) for flag in (False, True))
    assert 0 < again < most * plain, (again, plain)


class Sometimes(nn.Module):
    """Blocks that differ in a number, as those of Swin and ConvNeXt do."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropped = StochasticDepth((place + 1) / 20, "row")

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.dropped(self.linear(features))


def test_every_block_is_compiled() -> None:
    """Also the ninth of a class."""
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    model = nn.Module()
    model.layers = nn.Sequential(*map(Sometimes, range(10)))
    compiled = nn.Module.compile
    with (
        mock.patch.object(nn.Module, "compile", lambda unit: compiled(unit, backend="eager")),
        torch._dynamo.config.patch(cache_size_limit=8),
    ):
        prepare(load_chapter(FSDP), model, compile=True)
        for layer in model.layers:
            layer(torch.ones(2, 4))
    assert counters["stats"]["unique_graphs"] == 10, counters


# ---- torchvision's nets are trained as 02 trains them ----
def small_swin(args: object, num_classes: int) -> nn.Module:
    """Stages, shifted windows and stochastic depth, and few weights."""
    sizes = {"patch_size": [4, 4], "embed_dim": 8, "window_size": [2, 2]}
    heads = {"depths": [1, 4], "num_heads": [1, 2], "stochastic_depth_prob": 0.3}
    return in_float64(models.SwinTransformer(**sizes, **heads, num_classes=num_classes))


def small_regnet(args: object, num_classes: int) -> nn.Module:
    """Its constructor reads tensors."""
    plan = BlockParams.from_init_params(depth=7, w_0=8, w_a=4.0, w_m=2.0, group_width=8)
    return in_float64(models.RegNet(plan, num_classes, stem_width=8))


def small_maxvit(args: object, num_classes: int) -> nn.Module:
    sizes = {"input_size": (32, 32), "stem_channels": 8, "partition_size": 2, "head_dim": 4}
    rows = {"block_channels": [8, 8], "block_layers": [1, 2], "stochastic_depth_prob": 0.2}
    return in_float64(models.MaxVit(**sizes, **rows, num_classes=num_classes))


def as_named(args: object, num_classes: int) -> nn.Module:
    return in_float64(models.get_model(args.arch, num_classes=num_classes))


def in_float64(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(lambda _, images: (images[0].double(),))
    return model.double()


SMALL = ["--image-size", "32"]
NETS = {
    "swin": (small_swin, SMALL),
    "swin, recomputed": (small_swin, [*SMALL, "--recompute"]),
    "regnet": (small_regnet, SMALL),
    "maxvit": (small_maxvit, SMALL),
    **{name: (as_named, [*SMALL, "--arch", name, "--synthetic", "12"])
       for name in ("swin_t", "convnext_tiny", "regnet_y_400mf", "shufflenet_v2_x0_5")},
}  # fmt: skip


@pytest.mark.parametrize("net", table(NETS, ["swin, recomputed", "regnet"]))
def test_nets_train_as_in_02(net: str, crew: Crew, tmp_path: Path) -> None:
    """Weights and momentum after an epoch of one or two steps, with units that are parts of stages,
    and where a net can be made on no rank without memory."""
    build, flags = NETS[net]
    ours = run(crew, FSDP, 2, tmp_path / "ours", *flags, build=build)
    flags = [flag for flag in flags if flag != "--recompute"]
    # BatchNorm of few pixels divides by little.
    assert_alike(run(crew, HUB, 2, tmp_path / "hub", *flags, build=build), ours, atol=1e-9)


def test_what_cannot_be_made_without_memory(crew: Crew, tmp_path: Path) -> None:
    """A line says why, once; and a mistake in build_model is not taken for it."""
    argv = [*TINY, "--image-size", "32", "--output-dir", str(tmp_path / "run"), "--epochs", "1"]
    answers = crew.run(call_main, FSDP, argv, {"build_model": small_regnet}, world_size=3)
    said = ["makes the whole model at first, as NotImpl" in answer["stdout"] for answer in answers]
    assert said == [False, True, False], answers
    argv[-3] = str(tmp_path / "broken")
    for answer in crew.run(call_main, FSDP, argv, {"build_model": mistaken}, world_size=2):
        assert answer["exit"].splitlines()[-1] == "TypeError: a mistake", answer


def mistaken(args: object, num_classes: int) -> nn.Module:
    raise TypeError("a mistake")


# ---- other optimizers ----
def adamw(args: Namespace, model: nn.Module, fused: bool = False) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)


OPTIMIZERS = {"adamw": adamw, "fused": partial(adamw, fused=True)}


@pytest.mark.parametrize("how", table(OPTIMIZERS, ["fused"]))
def test_optimizers(how: str, crew: Crew, tmp_path: Path) -> None:
    """AdamW trains as in 02; from a checkpoint of its own a run goes on bit for bit, from one of 02
    to rounding. What is said of its size is what is in the file."""
    patches = {"build_model": tied, "build_optimizer": OPTIMIZERS[how]}
    argv = [*TINY, "--epochs", "2"]

    def train(chapter: str, name: str, *more: str) -> tuple[dict, str]:
        words = [*argv, "--output-dir", str(tmp_path / name), *more]
        changes = patches | {"save_checkpoint": save_every_epoch}
        answers = crew.run(call_main, chapter, words, changes, world_size=2)
        assert [answer["exit"] for answer in answers] == [None, None], answers
        return load_state(tmp_path / name / "checkpoint.pt"), answers[0]["stdout"]

    ours, said = train(FSDP, "ours")
    hub, _ = train(HUB, "hub")
    assert_alike(hub, ours)
    tensors = [*ours["model"].values()]
    for slot in ours["optimizer"]["state"].values():
        assert slot.keys() == {"step", "exp_avg", "exp_avg_sq"}
        tensors += slot.values()
    size = 2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6
    assert f"MB for AdamW; to save it and the weights rank 0 takes {size:.1f} MB:" in said
    for name, expected, same in (("ours", ours, assert_same), ("hub", hub, assert_alike)):
        resumed, _ = train(FSDP, f"of {name}", "--resume", str(tmp_path / name / "after1.pt"))
        keys = ("model", "optimizer")
        same(*({key: state[key] for key in keys} for state in (expected, resumed)))


def after_restore(checkpoint: dict) -> list:
    """In a crew member: type of the `step` that AdamW, fused, goes on with, and of its average."""
    module = load_chapter(FSDP)
    torch.distributed.init_process_group("gloo")
    model = nn.Linear(3, 4)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    module.restore(checkpoint, optimizer)
    slot = optimizer.state[model.weight]
    return [slot["step"].dtype, slot["exp_avg"].dtype, slot["exp_avg"].full_tensor().tolist()]


def test_the_optimizer_takes_over_what_is_restored(crew: Crew) -> None:
    """As load_state_dict of torch does: a fused AdamW wants `step` in float32 and on the GPU,
    where it was not if another AdamW had counted it."""
    average = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    kept = {"step": torch.tensor(5.0, dtype=torch.float64), "exp_avg": average}
    checkpoint = {"optimizer": {"state": {0: kept}}}
    expected = [torch.float32, torch.float32, average.tolist()]
    assert crew.run(after_restore, checkpoint, world_size=2) == [expected] * 2
