"""What convert.md promises: the converted script ends as the one for one GPU does, each of its
steps is missed when it is left out, and each recipe works, and is needed, on two processes."""

import ast
import contextlib
import io
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from crew import Crew
from harness import ROOT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, RandomSampler

EXAMPLES = ROOT / "docs/examples/convert"
SINGLE = (EXAMPLES / "single.py").read_text()
MULTI = (EXAMPLES / "multi.py").read_text()
RECIPES = (EXAMPLES / "recipes.py").read_text()


def without(text: str, *lines: tuple[str, str]) -> str:
    """A script with something else in the place of some of its parts."""
    for old, new in lines:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


# -------------------------------------------------------------------------------- the whole script


def same_order(self: RandomSampler) -> Iterator[int]:
    """In place of shuffle=True: the order that DistributedSampler has in this epoch."""
    self.epoch = getattr(self, "epoch", -1) + 1
    generator = torch.Generator().manual_seed(self.epoch)
    return iter(torch.randperm(len(self.data_source), generator=generator).tolist())


def play(source: str, folder: Path, alike: bool = False) -> dict[str, Any]:
    """Run a script as its launcher would, in float64: what it printed, the targets of each batch
    that it trained on, and whether it has left a process group open."""
    trained, printed = [], io.StringIO()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        trained.append(targets.tolist())
        return cross_entropy(logits, targets)

    torch.set_default_dtype(torch.float64)
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        os.chdir(folder)
        stack.callback(torch.set_default_dtype, torch.float32)
        stack.enter_context(mock.patch.object(sys, "argv", ["script", "--epochs", "2"]))
        stack.enter_context(mock.patch("torch.nn.functional.cross_entropy", loss))
        if alike:
            stack.enter_context(mock.patch.object(RandomSampler, "__iter__", same_order))
        stack.enter_context(contextlib.redirect_stdout(printed))
        exec(compile(source, "script", "exec"), {"__name__": "__main__"})
    return {
        "printed": printed.getvalue(),
        "trained": trained,
        "open": dist.is_initialized(),
    }


@pytest.fixture(scope="module")
def alone(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """single.py, with the order of images that multi.py has."""
    folder = tmp_path_factory.mktemp("alone")
    (answer,) = crew.run(play, SINGLE, folder, True)
    return answer | {"saved": torch.load(folder / "model.pt")}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_converted(crew: Crew, world_size: int, alone: dict, tmp_path: Path) -> None:
    """The same numbers, and the same weights but for rounding."""
    first, *others = crew.run(play, MULTI, tmp_path, world_size=world_size)
    assert first["printed"] == alone["printed"] and first["printed"].count("of 301 right") == 2
    assert len(first["trained"]) == len(alone["trained"])
    assert all(len(batch) == 48 // world_size for batch in first["trained"])
    saved = torch.load(tmp_path / "model.pt")
    for name, value in alone["saved"].items():
        torch.testing.assert_close(saved[name], value, atol=1e-10, rtol=0)
    assert [answer["printed"] for answer in others] == [""] * (world_size - 1)
    assert not first["open"]


BACKEND = '"nccl" if device.type == "cuda" else "gloo"'
# Parts of multi.py, and what single.py has there.
FORGOTTEN = {
    "1": [
        (f"dist.init_process_group({BACKEND})", "pass"),
        ("dist.get_rank(), dist.get_world_size()", "0, 2"),
    ],
    "2": [("args.batch_size // world_size", "args.batch_size")],
    "3": [("batch, sampler=sampler,", "batch, shuffle=True,")],
    "4": [("ddp_model = DistributedDataParallel(model)", "ddp_model = model")],
    "5": [("sampler.set_epoch(epoch)", "pass")],
    "6a": [(", sampler=share", "")],
    "6b": [("dist.all_reduce(totals)", "pass")],
    "7": [("if rank == 0:  # step 7: one line", "if True:  #")],
    "8": [("dist.destroy_process_group()", "pass")],
}


@pytest.mark.parametrize("step", FORGOTTEN)
def test_forgotten_step(crew: Crew, step: str, alone: dict, tmp_path: Path) -> None:
    """What the page says that one would see."""
    script = without(MULTI, *FORGOTTEN[step])
    if step == "1":
        with pytest.raises(AssertionError, match="Default process group has not been initialized"):
            crew.run(play, script, tmp_path, world_size=2)
        return
    first, second = crew.run(play, script, tmp_path, world_size=2)
    batches = first["trained"]
    if step == "2":  # half as many steps
        assert len(batches) == 20 and len(batches[0]) == 48
    elif step == "3":  # both train on all images, and on the same
        assert len(batches) == 2 * 41 and batches == second["trained"]
    elif step == "4":  # rank 0 has trained alone
        saved = torch.load(tmp_path / "model.pt")["0.weight"]
        assert not torch.allclose(saved, alone["saved"]["0.weight"], atol=1e-6)
    elif step == "5":
        assert batches[:20] == batches[20:]
    elif step in ("6a", "6b"):
        assert f"of {602 if step == '6a' else 151} right" in first["printed"]
    elif step == "7":
        assert first["printed"] == second["printed"] != ""
    elif step == "8":
        assert first["open"] and second["open"]


def test_steps_are_numbered() -> None:
    """Each line of multi.py that single.py lacks stands in a group with the number of its step;
    and the pages have a paragraph for each."""
    old, new = (text.splitlines() for text in (SINGLE, MULTI))
    matcher = SequenceMatcher(lambda line: not line.strip(), old, new, autojunk=False)
    for tag, _, _, first, last in matcher.get_opcodes():
        added = "\n".join(new[first:last])
        if tag != "equal" and "import" not in added and first > 3:
            assert "# step " in added or not added.strip(), added
    numbers = sorted(set(re.findall(r"# step (\d)", MULTI)))
    assert numbers == list("12345678")
    assert {step[0] for step in FORGOTTEN} == set(numbers)
    for language in ("en", "zh"):
        page = (ROOT / f"docs/{language}/convert.md").read_text()
        assert re.findall(r"\{#step-(\d)\}", page) == numbers


# --------------------------------------------------------------------------------------- recipes


def joined(source: str = RECIPES) -> Any:
    """In a crew member: what a script defines, in a process group and with the same seed."""
    dist.init_process_group("gloo")
    dist.barrier()  # a rank that has left already would close a connection that is being made
    names: dict[str, Any] = {"__name__": "recipes"}
    exec(compile(source, "recipes", "exec"), names)
    torch.manual_seed(0)
    return SimpleNamespace(**names)


def on_two(crew: Crew, function: Callable, *args: Any, point: str = "", instead: str = "") -> list:
    """What two ranks answer that use recipes.py as it is, or with a point of it taken out."""
    source = without(RECIPES, (point, instead)) if point else RECIPES
    return crew.run(function, source, *args, world_size=2)


def counted(sent: list, bucket):
    """A hook of DDP that averages as it does without one, and counts."""
    sent.append(1)
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def weighted(source: str) -> list[list[int]]:
    """The images of two epochs. Class 1 is a tenth of the images, and weighs nine times as much."""
    recipes = joined(source)
    weights = torch.ones(1000)
    weights[:100] = 9.0
    sampler = recipes.DistributedWeightedSampler(weights, dist.get_rank(), dist.get_world_size())
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return epochs


def test_weighted(crew: Crew) -> None:
    first, second = on_two(crew, weighted)
    for ours, theirs in zip(first, second, strict=True):
        assert ours != theirs and len(ours) == len(theirs) == 500
        assert 0.4 < sum(index < 100 for index in ours + theirs) / 1000 < 0.6
    assert first[0] != first[1]
    first, second = on_two(crew, weighted, point="self.rank :: self.world_size", instead="::2")
    assert first == second


def iterable(source: str, workers: int) -> tuple[list[int], int]:
    """All records of a rank, and the batches of its epoch."""
    recipes = joined(source)
    data = recipes.Share(lambda: iter(range(103)), dist.get_rank(), dist.get_world_size())
    context = "fork" if workers else None  # no other takes a class that exec has made
    loader = DataLoader(data, 5, num_workers=workers, multiprocessing_context=context)
    batches = [batch.tolist() for batch in loader]
    steps = len(list(recipes.batches_of_an_epoch(loader, 103, 10)))
    return sum(batches, []), steps


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable(crew: Crew, workers: int) -> None:
    first, second = on_two(crew, iterable, workers)
    assert sorted(first[0] + second[0]) == list(range(103))
    assert len(first[0]) != len(second[0]) and first[1] == second[1] == 10
    share = "islice(self.read(), first, None, self.world_size * workers)"
    first, second = on_two(crew, iterable, workers, point=share, instead="self.read()")
    assert sorted(first[0] + second[0]) == sorted([*range(103)] * 2 * max(1, workers))


def draw(batch: list[int]) -> list[float]:
    """From all three generators."""
    return [random.random(), np.random.rand(), torch.rand(()).item()]


def augmentations(source: str, workers: int) -> list[float]:
    joined(source).seed_all(0, dist.get_rank())
    return next(iter(DataLoader(range(4), 4, num_workers=workers, collate_fn=draw)))


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers(crew: Crew, workers: int) -> None:
    first, second = on_two(crew, augmentations, workers)
    assert not set(first) & set(second)
    first, second = on_two(crew, augmentations, workers, point="1_000_003 + rank", instead="1")
    assert first == second


def seven_batches() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    return model, torch.randn(7, 4, 8).double(), torch.randint(3, (7, 4))


def accumulated(source: str) -> tuple[Tensor, int]:
    """Seven batches in groups of three: the weights, and how often buckets were all-reduced."""
    recipes = joined(source)
    model, inputs, targets = seven_batches()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    loader = [(x[mine], y[mine]) for x, y in zip(inputs, targets, strict=True)]
    ddp_model, sent = DistributedDataParallel(model), []
    ddp_model.register_comm_hook(sent, counted)
    recipes.train_accumulating(ddp_model, loader, SGD(model.parameters(), lr=5.0), 3)
    return flat(model), len(sent)


def test_accumulation_and_clipping(crew: Crew) -> None:
    """As a plain loop over batches of three times the size, the last one smaller."""
    model, inputs, targets = seven_batches()
    optimizer = SGD(model.parameters(), lr=5.0)
    for low in (0, 3, 6):
        optimizer.zero_grad()
        logits = model(inputs[low : low + 3].flatten(0, 1))
        cross_entropy(logits, targets[low : low + 3].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
    (first, sent), (second, _) = on_two(crew, accumulated)
    assert torch.equal(first, second) and sent == 3
    torch.testing.assert_close(first, flat(model), atol=1e-10, rtol=0)
    for point, instead, communicates in (
        ("nullcontext() if last else model.no_sync()", "nullcontext()", 7),
        (" or number == len(loader)", "", 2),  # the rest is dropped
    ):
        (_, sent), _ = on_two(crew, accumulated, point=point, instead=instead)
        assert sent == communicates


class TwoParts(nn.ModuleList):
    """The second is used in some steps; those after it, never."""

    def forward(self, inputs: Tensor, both: bool) -> Tensor:
        hidden = self[0](inputs)
        return self[1](hidden) if both else hidden


def unused(source: str, changing: bool) -> Tensor:
    """The weights after three steps, with another part of the model in each or without the last."""
    recipes = joined(source)
    model = TwoParts(nn.Linear(4, 4) for _ in range(3))
    ddp_model = recipes.wrap(model, model[2], changing)
    optimizer = SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        optimizer.zero_grad()
        ddp_model(torch.randn(3, 4), step % 2 == 1 or not changing).sum().backward()
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize(
    ("changing", "point"),
    [(True, ", find_unused_parameters=changing"), (False, "never_used.requires_grad_(False)")],
    ids=["in some steps", "never"],
)
def test_unused_parameters(crew: Crew, changing: bool, point: str) -> None:
    assert torch.equal(*on_two(crew, unused, changing))
    with pytest.raises(AssertionError, match="Expected to have finished reduction in the prior"):
        on_two(crew, unused, changing, point=point)


def rates(source: str) -> float:
    """The learning rate in the last step of two epochs."""
    recipes = joined(source)
    loader = DataLoader(range(dist.get_rank(), 96, dist.get_world_size()), 4)
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = recipes.one_cycle(optimizer, loader, 2)
    for _ in range(2 * len(loader) - 1):
        optimizer.step()
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


def test_schedule(crew: Crew) -> None:
    assert on_two(crew, rates)[0] < 1e-5
    of_one = "epochs * 96 // loader.batch_size"  # all images by the batch of one process
    assert on_two(crew, rates, point="epochs * len(loader)", instead=of_one)[0] > 1e-5


def decisions(source: str) -> tuple[list[float], list[bool]]:
    """The mean loss and the decision to stop after each epoch: rank 0 alone becomes better."""
    recipes = joined(source)
    stopping = recipes.EarlyStopping(patience=2)
    means, stops = [], []
    for epoch in range(4):
        total = torch.tensor(2.0 + epoch if dist.get_rank() else 2.0 - 0.5 * epoch)
        means.append(recipes.mean_over_ranks(total, 1 + 2 * dist.get_rank()))
        stops.append(stopping.shall_stop(means[-1]))
    return means, stops


def test_plateau_and_early_stopping(crew: Crew) -> None:
    first, second = on_two(crew, decisions)
    assert first == second == ([1.0, 1.125, 1.25, 1.375], [False, False, False, True])
    (means, stops), others = on_two(crew, decisions, point="dist.all_reduce(sums)")
    assert means != others[0] and stops != others[1]


def metrics(source: str) -> Tensor:
    """Macro-F1 of three classes and AUC of class 0, over 31 images that are sorted by class."""
    recipes = joined(source)
    targets = torch.arange(31) * 3 // 31
    scores = torch.rand(31, 3, generator=torch.Generator().manual_seed(3))
    scores[torch.arange(31), targets] += 0.3
    mine = torch.arange(31).chunk(dist.get_world_size())[dist.get_rank()]
    f1 = recipes.macro_f1(targets[mine], scores[mine].argmax(1), 3)

    first = recipes.from_all_ranks(targets[mine]) == 0
    scores = recipes.from_all_ranks(scores[mine, 0])
    auc = (scores[first][:, None] > scores[~first]).float().mean()
    return torch.tensor([f1, auc])


def test_metrics_that_are_no_sums(crew: Crew) -> None:
    (expected,) = crew.run(metrics, RECIPES)
    for answer in on_two(crew, metrics):
        torch.testing.assert_close(answer, expected)
    first, second = on_two(crew, metrics, point="dist.all_reduce(pairs)")
    assert abs((first + second) / 2 - expected)[0] > 0.05
    gather = "dist.all_gather_object(parts, values.cpu())"
    first, second = on_two(crew, metrics, point=gather, instead="parts = [values]")
    assert not abs((first + second) / 2 - expected)[1] < 0.01


def ema(source: str) -> tuple[list[str], Tensor]:
    """Names and weights of an average."""
    recipes = joined(source)
    torch.manual_seed(dist.get_rank())  # the weights differ until DDP has sent those of rank 0
    model = nn.Linear(4, 4)
    average = recipes.make_ema(DistributedDataParallel(model))
    average.update_parameters(model)
    return list(average.module.state_dict()), flat(average.module)


def test_ema(crew: Crew) -> None:
    (names, first), (_, second) = on_two(crew, ema)
    assert names == ["weight", "bias"] and torch.equal(first, second)
    (names, _), _ = on_two(crew, ema, point="ddp_model.module", instead="ddp_model")
    assert names == ["module.weight", "module.bias"]


def evaluated(source: str) -> Tensor:
    """The running mean with which a rank evaluates."""
    recipes = joined(source)
    model = nn.BatchNorm1d(4)
    model(torch.randn(8, 4) + dist.get_rank())
    recipes.same_buffers(model)
    return model.running_mean


def test_batchnorm(crew: Crew) -> None:
    own, others = on_two(crew, evaluated, point="dist.broadcast(buffer, src=0)", instead="pass")
    assert not torch.equal(own, others)
    for mean in on_two(crew, evaluated):
        assert torch.equal(mean, own)


def gan(source: str) -> tuple[int, Tensor]:
    """How often a step of the generator all-reduced the discriminator, and its own gradient."""
    recipes = joined(source)
    generator = DistributedDataParallel(nn.Linear(3, 4))
    discriminator = DistributedDataParallel(nn.Linear(4, 1))
    sent = []
    discriminator.register_comm_hook(sent, counted)
    fake = generator(torch.randn(5, 3) + dist.get_rank())
    recipes.generator_loss(discriminator, fake).backward()
    return len(sent), generator.module.weight.grad


def test_two_networks(crew: Crew) -> None:
    (sent, first), (_, second) = on_two(crew, gan)
    assert sent == 0 and torch.equal(first, second)
    through = {"point": "discriminator.module(fake)", "instead": "discriminator(fake)"}
    (sent, gradient), _ = on_two(crew, gan, **through)
    assert sent == 1 and torch.equal(gradient, first)


def half(source: str) -> tuple[Tensor, list[float]]:
    """The weights after three steps, and how far each went; in the second, rank 1 overflows."""
    recipes = joined(source)
    model = nn.Linear(4, 1)
    ddp_model, optimizer = DistributedDataParallel(model), SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    torch.manual_seed(dist.get_rank())
    moved = []
    for step in range(3):
        start = flat(model)
        loss = 100 * ddp_model(torch.randn(5, 4)).square().mean()
        if step == 1 and dist.get_rank() == 1:
            loss = loss * float("inf")
        recipes.step_in_fp16(loss, optimizer, scaler, model)
        moved.append((flat(model) - start).norm().item())
    return flat(model), moved


def test_fp16(crew: Crew) -> None:
    (first, moved), (second, _) = on_two(crew, half)
    assert torch.equal(first, second)
    assert moved == pytest.approx([0.1, 0, 0.1], rel=1e-4)  # the rate times the bound of the norm
    (_, moved), _ = on_two(crew, half, point="scaler.unscale_(optimizer)")
    assert moved[0] < 0.001


def logged(source: str) -> list[tuple[float, int]]:
    """What a rank writes."""
    recipes = joined(source)
    rows: list[tuple[float, int]] = []
    loss = torch.tensor(1.0 + dist.get_rank())
    recipes.log_loss(lambda *row: rows.append(row), loss, 7)
    assert loss == 1.0 + dist.get_rank()
    return rows


def test_logger(crew: Crew) -> None:
    assert on_two(crew, logged) == [[(1.5, 7)], []]
    assert on_two(crew, logged, point="dist.all_reduce(loss)") == [[(0.5, 7)], []]


def trained(source: str, epochs: int, file: str) -> Tensor:
    """The weights after some epochs, saved after each and loaded first."""
    recipes = joined(source)
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    others = {"scheduler": scheduler, "optimizer": optimizer}
    others["stopping"] = recipes.EarlyStopping(0)
    start = recipes.load(file, model, **others) if Path(file).exists() else 0
    ddp_model = DistributedDataParallel(model)
    for epoch in range(start, epochs):
        recipes.seed_all(epoch, dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            ddp_model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
        scheduler.step()
        recipes.save(file, ddp_model, epoch, **others)
    dist.barrier()
    return flat(model)


def test_checkpoint(crew: Crew, tmp_path: Path) -> None:
    expected = on_two(crew, trained, 4, str(tmp_path / "whole.pt"))[0]
    for point, same in (("", True), ("other.load_state_dict(state[name])", False)):
        file = str(tmp_path / f"resumed-{same}.pt")
        on_two(crew, trained, 2, file)
        for weights in on_two(crew, trained, 4, file, point=point, instead="pass"):
            assert torch.equal(weights, expected) == same
    assert not list(tmp_path.glob("*.tmp"))


def test_recipes_are_short() -> None:
    """At most 15 lines each on a page, without the blank ones; and both pages show all of them."""
    found = [n for n in ast.parse(RECIPES).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names = [node.name for node in found]
    for node in found:
        lines = RECIPES.splitlines()[node.lineno - 1 : node.end_lineno]
        assert len([line for line in lines if line.strip()]) <= 15, node.name
    for language in ("en", "zh"):
        page = (ROOT / f"docs/{language}/convert.md").read_text()
        shown = re.findall(r"^@code docs/examples/convert/recipes.py (\w+)", page, re.M)
        assert sorted(shown) == sorted(names)
