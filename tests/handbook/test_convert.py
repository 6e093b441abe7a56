"""What convert.md promises: the converted script ends as the one for one GPU does, each of its
steps is missed when it is left out, and each recipe works, and is needed, on two processes."""

import ast
import contextlib
import copy
import io
import os
import random
import re
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import recipes
import torch
import torch.distributed as dist
from crew import Crew
from harness import ROOT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

EXAMPLES = ROOT / "docs/examples/convert"
SINGLE, MULTI = ((EXAMPLES / f"{name}.py").read_text() for name in ("single", "multi"))

# -------------------------------------------------------------------------------- the whole script


def same_order(self: RandomSampler) -> Iterator[int]:
    """In place of shuffle=True: the order that DistributedSampler has in this epoch."""
    self.epoch = getattr(self, "epoch", -1) + 1
    generator = torch.Generator().manual_seed(self.epoch)
    return iter(torch.randperm(len(self.data_source), generator=generator).tolist())


def play(source: str, folder: Path, alike: bool = False) -> dict[str, Any]:
    """Run a script as its launcher would, in float64: what it printed, the weights of its last
    model, how many batches it trained on, the images, and the text of an error."""
    models, trained, images = [], [], []
    own_eval, own_loss, own_item = nn.Sequential.eval, cross_entropy, TensorDataset.__getitem__

    def evaluated(model: nn.Module) -> nn.Module:
        models.append(model)
        return own_eval(model)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        trained.append(len(targets))
        return own_loss(logits, targets)

    def item(self: TensorDataset, index: int) -> tuple:
        images.append((len(self), index))
        return own_item(self, index)

    torch.set_default_dtype(torch.float64)
    printed, error = io.StringIO(), None
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        os.chdir(folder)
        stack.callback(torch.set_default_dtype, torch.float32)
        stack.enter_context(mock.patch.object(sys, "argv", ["script", "--epochs", "2"]))
        stack.enter_context(mock.patch.object(nn.Sequential, "eval", evaluated))
        stack.enter_context(mock.patch("torch.nn.functional.cross_entropy", loss))
        stack.enter_context(mock.patch.object(TensorDataset, "__getitem__", item))
        stack.enter_context(mock.patch.object(TensorDataset, "__getitems__", None, create=True))
        if alike:
            stack.enter_context(mock.patch.object(RandomSampler, "__iter__", same_order))
        stack.enter_context(contextlib.redirect_stdout(printed))
        try:
            exec(compile(source, "script", "exec"), {"__name__": "__main__"})
        except (RuntimeError, ValueError) as failure:
            error = str(failure)
    weights = models[-1].state_dict() if models else {}
    return {"printed": printed.getvalue(), "weights": weights, "trained": trained,
            "images": images, "error": error}  # fmt: skip


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
    assert first["trained"] == [48 // world_size] * len(alone["trained"])
    for name, value in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], value, atol=1e-10, rtol=0)
    saved = torch.load(tmp_path / "model.pt")
    for name, value in alone["saved"].items():
        torch.testing.assert_close(saved[name], value, atol=1e-10, rtol=0)
    assert [answer["printed"] for answer in others] == [""] * (world_size - 1)
    assert not dist.is_initialized()


def without(*lines: tuple[str, str]) -> str:
    """multi.py with parts of it put back to what single.py has."""
    text = MULTI
    for old, new in lines:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


BACKEND = '"nccl" if device.type == "cuda" else "gloo"'
FORGOTTEN = {
    "1": without((f"dist.init_process_group({BACKEND})", "pass"),
                 ("dist.get_rank(), dist.get_world_size()", "0, 2")),
    "2": without(("args.batch_size // world_size", "args.batch_size")),
    "3": without(("batch, sampler=sampler,", "batch, shuffle=True,")),
    "4": without(("ddp_model = DistributedDataParallel(model)", "ddp_model = model")),
    "5": without(("sampler.set_epoch(epoch)", "pass")),
    "6a": without((", sampler=share", "")),
    "6b": without(("dist.all_reduce(totals)", "pass")),
    "7": without(("if rank == 0:  # step 7: one line", "if True:  #")),
    "8": without(("dist.destroy_process_group()", "pass")),
}  # fmt: skip


def epochs_of(answer: dict) -> list[list[int]]:
    """The training images of each epoch, in their order."""
    order = [index for length, index in answer["images"] if length == 1000]
    return [order[: len(order) // 2], order[len(order) // 2 :]]


def left_open(source: str, folder: Path) -> bool:
    play(source, folder)
    return dist.is_initialized()


@pytest.mark.parametrize("step", FORGOTTEN)
def test_forgotten_step(crew: Crew, step: str, tmp_path: Path) -> None:
    """What the page says that one would see."""
    if step == "8":
        assert crew.run(left_open, FORGOTTEN[step], tmp_path, world_size=2) == [True, True]
        return
    first, second = crew.run(play, FORGOTTEN[step], tmp_path, world_size=2)
    if step == "1":
        assert "Default process group has not been initialized" in first["error"]
        return
    assert first["error"] is None
    if step == "2":  # half as many steps
        assert len(first["trained"]) == 20 and first["trained"][0] == 48
    elif step == "3":  # both train on all images, and on the same
        assert len(first["trained"]) == 2 * 41 and epochs_of(first) == epochs_of(second)
    elif step == "4":
        weights = [answer["weights"]["0.weight"] for answer in (first, second)]
        assert not torch.equal(*weights)
    elif step == "5":
        assert epochs_of(first)[0] == epochs_of(first)[1]
    elif step in ("6a", "6b"):
        assert f"of {602 if step == '6a' else 151} right" in first["printed"]
    elif step == "7":
        assert first["printed"] == second["printed"] != ""


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


def joined() -> tuple[int, int]:
    dist.init_process_group("gloo")
    dist.barrier()  # a rank that has left already would close a connection that is being made
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def counted(sent: list, bucket):
    """A hook of DDP that averages as it does without one, and counts."""
    sent.append(1)
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def weighted(recipe: bool) -> list[list[int]]:
    """The images of two epochs. Class 1 is a tenth of the images, and weighs nine times as much."""
    rank, world_size = joined()
    weights = torch.ones(1000)
    weights[:100] = 9.0
    sampler: Any = torch.utils.data.WeightedRandomSampler(weights, 1000 // world_size)
    if recipe:
        sampler = recipes.DistributedWeightedSampler(weights, rank, world_size)
    epochs = []
    for epoch in range(2):
        if recipe:
            sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return epochs


def test_weighted(crew: Crew) -> None:
    first, second = crew.run(weighted, False, world_size=2)
    assert first == second
    first, second = crew.run(weighted, True, world_size=2)
    for ours, theirs in zip(first, second, strict=True):
        assert ours != theirs and len(ours) == len(theirs) == 500
        assert 0.4 < sum(index < 100 for index in ours + theirs) / 1000 < 0.6
    assert first[0] != first[1]


def records() -> Iterator[int]:
    return iter(range(103))


class Whole(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return records()


def iterable(recipe: bool, workers: int) -> tuple[list[int], int]:
    rank, world_size = joined()
    data = recipes.Share(records, rank, world_size) if recipe else Whole()
    loader = DataLoader(data, 5, num_workers=workers)
    batches = [batch.tolist() for batch in loader]
    steps = len(list(recipes.batches_of_an_epoch(loader, 103, 10)))
    return [number for batch in batches for number in batch], steps


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable(crew: Crew, workers: int) -> None:
    first, second = crew.run(iterable, False, workers, world_size=2)
    assert sorted(first[0] + second[0]) == sorted([*range(103)] * 2 * max(1, workers))
    first, second = crew.run(iterable, True, workers, world_size=2)
    assert sorted(first[0] + second[0]) == list(range(103))
    assert len(first[0]) != len(second[0]) and first[1] == second[1] == 10


class Augmented(Dataset):
    """Draws from all three generators."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()


def augmentations(recipe: bool, workers: int) -> list[list[float]]:
    rank, _ = joined()
    recipes.seed_all(0, rank if recipe else 0)
    return torch.stack(next(iter(DataLoader(Augmented(), 4, num_workers=workers)))).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers(crew: Crew, workers: int) -> None:
    first, second = crew.run(augmentations, False, workers, world_size=2)
    assert first == second
    first, second = crew.run(augmentations, True, workers, world_size=2)
    for ours, theirs in zip(first, second, strict=True):
        assert not set(ours) & set(theirs)


def accumulated(how: str) -> tuple[Tensor, int]:
    """Seven batches in groups of three: the weights, and how often buckets were all-reduced. Alone:
    a plain loop over batches of three times the size, the last one smaller."""
    rank, world_size = (0, 1) if how == "alone" else joined()
    torch.manual_seed(0)
    inputs, targets = torch.randn(7, 4, 8).double(), torch.randint(3, (7, 4))
    model, sent = nn.Linear(8, 3).double(), []
    optimizer = SGD(model.parameters(), lr=5.0)
    if how == "alone":
        for low in (0, 3, 6):
            optimizer.zero_grad()
            losses = map(cross_entropy, model(inputs[low : low + 3]), targets[low : low + 3])
            torch.stack(list(losses)).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        return flat(model), 0

    ddp_model = DistributedDataParallel(model)
    ddp_model.register_comm_hook(sent, counted)
    mine = slice(rank, None, world_size)
    loader = [(x[mine], y[mine]) for x, y in zip(inputs, targets, strict=True)]
    if how == "without no_sync":
        ddp_model.no_sync = contextlib.nullcontext
    if how == "clipped alone":  # each batch, before the ranks have met
        own = recipes.cross_entropy

        def clipped(logits: Tensor, wanted: Tensor) -> Tensor:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            return own(logits, wanted)

        with mock.patch.object(recipes, "cross_entropy", clipped):
            recipes.train_accumulating(ddp_model, loader, optimizer, 3)
    elif how == "rest dropped":
        recipes.train_accumulating(ddp_model, loader[:6], optimizer, 3)
    else:
        recipes.train_accumulating(ddp_model, loader, optimizer, 3)
    return flat(model), len(sent)


def test_accumulation_and_clipping(crew: Crew) -> None:
    ((expected, _),) = crew.run(accumulated, "alone")
    for how, same, communicates in [
        ("recipe", True, 3), ("without no_sync", True, 7), ("clipped alone", False, 3),
        ("rest dropped", False, 2),
    ]:  # fmt: skip
        (first, sent), (second, _) = crew.run(accumulated, how, world_size=2)
        assert torch.equal(first, second) and sent == communicates, how
        assert torch.allclose(first, expected, atol=1e-10, rtol=0) == same, how


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.other, self.dead = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, inputs: Tensor, both: bool) -> Tensor:
        hidden = self.trunk(inputs)
        return self.head(hidden) + (self.other(hidden) if both else 0)


def unused(wrapped: str) -> tuple[str, Tensor]:
    """The text of an error, and the weights."""
    rank, _ = joined()
    model, error = TwoHeads(), ""
    if wrapped == "plain":
        ddp_model = DistributedDataParallel(model)
    else:
        ddp_model = recipes.wrap(model, model.dead, changing=wrapped != "never used")
    changing = wrapped in ("plain", "recipe")
    optimizer = SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    try:
        for step in range(3):
            optimizer.zero_grad()
            ddp_model(torch.randn(3, 4), step % 2 == 1 or not changing).sum().backward()
            optimizer.step()
    except RuntimeError as failure:
        error = str(failure)
    return error, flat(model)


def test_unused_parameters(crew: Crew) -> None:
    (error, _), _ = crew.run(unused, "plain", world_size=2)
    assert "Expected to have finished reduction in the prior iteration before starting" in error
    for how in ("never used", "recipe"):
        (error, first), (_, second) = crew.run(unused, how, world_size=2)
        assert error == "" and torch.equal(first, second), how


def two_losses(recipe: bool) -> Tensor:
    rank, _ = joined()
    model = nn.Linear(4, 4)
    ddp_model, optimizer = DistributedDataParallel(model), SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(2):
        logits = ddp_model(torch.randn(5, 4))
        losses = logits.square().mean(), (logits - 1).abs().mean()
        optimizer.zero_grad()
        if recipe:
            (losses[0] + losses[1]).backward()
        else:
            losses[0].backward(retain_graph=True)
            losses[1].backward()
        optimizer.step()
    return flat(model)


def test_two_losses(crew: Crew) -> None:
    assert not torch.equal(*crew.run(two_losses, False, world_size=2))
    assert torch.equal(*crew.run(two_losses, True, world_size=2))


def rates(recipe: bool) -> tuple[int, float]:
    """The steps of two epochs, and the last learning rate."""
    rank, world_size = joined()
    data = torch.arange(96)
    loader = DataLoader(data, 8 // world_size, sampler=range(rank, 96, world_size))
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    # As it stood for one GPU, but with the batch of a rank.
    counted = range(len(data) // (8 // world_size))
    scheduler = recipes.one_cycle(optimizer, loader if recipe else counted, 2)
    steps = 0
    for _ in range(2):
        for _ in loader:
            optimizer.step()
            steps += 1
            if steps < scheduler.total_steps:
                scheduler.step()
    return steps, optimizer.param_groups[0]["lr"]


def test_schedule(crew: Crew) -> None:
    for recipe in (False, True):
        (steps, rate), _ = crew.run(rates, recipe, world_size=2)
        assert steps == 24 and (rate < 1e-5) == recipe


# Sum of losses and number of images on each rank, after each epoch.
LOSSES = [[(2.0, 2), (2.0, 2)], [(1.0, 2), (3.2, 2)], [(0.8, 2), (3.6, 2)], [(0.6, 2), (4.0, 2)]]


def decisions(recipe: bool) -> tuple[list[float], list[bool]]:
    """The learning rate and the decision to stop after each epoch."""
    rank, _ = joined()
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    stopping, found = recipes.EarlyStopping(patience=2), []
    lrs = []
    for epoch in LOSSES:
        total, count = epoch[rank]
        val_loss = total / count
        if recipe:
            val_loss = recipes.mean_over_ranks(torch.tensor(total), count)
        plateau.step(val_loss)
        lrs.append(optimizer.param_groups[0]["lr"])
        found.append(stopping.shall_stop(val_loss))
    again = recipes.EarlyStopping(0)
    again.load_state_dict(stopping.state_dict())
    assert vars(again) == vars(stopping)
    return lrs, found


def test_plateau_and_early_stopping(crew: Crew) -> None:
    (lrs, stops), (other_lrs, other_stops) = crew.run(decisions, False, world_size=2)
    assert lrs != other_lrs and stops != other_stops
    (lrs, stops), others = crew.run(decisions, True, world_size=2)
    assert (lrs, stops) == others
    assert lrs[-1] < lrs[0] and stops == [False, False, False, True]


def metrics(recipe: bool) -> tuple[float, float]:
    """Macro-F1 of three classes and AUC of class 0, over 31 images that are sorted by class."""
    rank, world_size = joined()
    targets = torch.arange(31) * 3 // 31
    scores = torch.rand(31, 3, generator=torch.Generator().manual_seed(3))
    scores[torch.arange(31), targets] += 0.3
    mine = torch.arange(31).chunk(world_size)[rank]
    t, s = targets[mine], scores[mine]

    def auc(targets: Tensor, scores: Tensor) -> float:
        right, wrong = scores[targets == 0], scores[targets != 0]
        return (right[:, None] > wrong).float().mean().item()

    if recipe:
        gathered = (recipes.from_all_ranks(t), recipes.from_all_ranks(s[:, 0]))
        return recipes.macro_f1(t, s.argmax(1), 3), auc(*gathered)
    with mock.patch.object(dist, "all_reduce"):
        both = torch.tensor([recipes.macro_f1(t, s.argmax(1), 3), auc(t, s[:, 0])])
    dist.all_reduce(both)
    return tuple((both / world_size).tolist())


def test_metrics_that_are_no_sums(crew: Crew) -> None:
    ((f1, auc),) = crew.run(metrics, True)
    for answer in crew.run(metrics, True, world_size=2):
        assert answer == pytest.approx((f1, auc))
    averaged = crew.run(metrics, False, world_size=2)[0]
    assert abs(averaged[0] - f1) > 0.05 and not averaged[1] == pytest.approx(auc, abs=0.01)


def ema(recipe: bool) -> tuple[list[str], Tensor]:
    """Names and weights of an average; by hand: of a copy from before DDP."""
    rank, _ = joined()
    torch.manual_seed(rank)  # the weights differ until DDP has sent those of rank 0
    model = nn.Linear(4, 4)
    early = copy.deepcopy(model)
    ddp_model = DistributedDataParallel(model)
    average = recipes.make_ema(ddp_model)
    for _ in range(2):
        with torch.no_grad():
            for mean, weight in zip(early.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
        average.update_parameters(model)
    chosen = average.module if recipe else early
    return list(chosen.state_dict()), flat(chosen)


def ema_names() -> list[str]:
    joined()
    return list(AveragedModel(DistributedDataParallel(nn.Linear(4, 4))).module.state_dict())


def test_ema(crew: Crew) -> None:
    (names, first), (_, second) = crew.run(ema, True, world_size=2)
    assert names == ["weight", "bias"] and torch.equal(first, second)
    (_, first), (_, second) = crew.run(ema, False, world_size=2)
    assert not torch.equal(first, second)
    assert crew.run(ema_names)[0] == ["module.weight", "module.bias"]


def evaluated(recipe: bool) -> Tensor:
    """The running mean with which a rank evaluates, after two steps."""
    rank, _ = joined()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    ddp_model = DistributedDataParallel(model)
    torch.manual_seed(rank)
    for _ in range(2):
        ddp_model(torch.randn(8, 4)).square().sum().backward()
    if recipe:
        recipes.same_buffers(model)
    return model[1].running_mean.clone()


def test_batchnorm(crew: Crew) -> None:
    own, others = crew.run(evaluated, False, world_size=2)
    assert not torch.equal(own, others)
    for mean in crew.run(evaluated, True, world_size=2):
        assert torch.equal(mean, own)


def gan(how: str) -> tuple[str, int, Tensor]:
    """The text of an error, how often the discriminator was all-reduced, and all weights."""
    rank, world_size = joined()
    generator, discriminator = nn.Linear(3, 4), nn.Linear(4, 1)
    both, sent = nn.ModuleList([generator, discriminator]), []
    softplus = nn.functional.softplus
    optimizers = [SGD(module.parameters(), lr=0.1) for module in both]
    if how == "one wrapper":
        whole = DistributedDataParallel(Both(generator, discriminator))
        g, d = (lambda z: whole("generator", z)), (lambda x: whole("discriminator", x))
    else:
        g, d = DistributedDataParallel(generator), DistributedDataParallel(discriminator)
        d.register_comm_hook(sent, counted)
    torch.manual_seed(rank)
    try:
        for _ in range(2):
            fake = g(torch.randn(5, 3))
            optimizers[1].zero_grad()
            scores = d(torch.cat([torch.randn(5, 4), fake.detach()]))
            (softplus(-scores[:5]).mean() + softplus(scores[5:]).mean()).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            if how == "recipe":
                recipes.generator_loss(d, fake).backward()
            else:
                softplus(-d(fake)).mean().backward()
            optimizers[0].step()
    except RuntimeError as failure:
        return str(failure), 0, flat(both)
    return "", len(sent), flat(both)


class Both(nn.Module):
    def __init__(self, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, name: str, inputs: Tensor) -> Tensor:
        return getattr(self, name)(inputs)


def test_two_networks(crew: Crew) -> None:
    assert "Expected to" in crew.run(gan, "one wrapper", world_size=2)[0][0]
    expected = crew.run(gan, "recipe", world_size=2)
    for how, sent in [("recipe", 2), ("through DDP", 4)]:
        for answer in crew.run(gan, how, world_size=2):
            assert answer[:2] == ("", sent) and torch.equal(answer[2], expected[0][2])


def half(how: str) -> tuple[list[bool], Tensor, float]:
    """Three steps; in the second rank 1 has an overflow. Which of them each rank would leave out by
    a look at its own loss; the weights; how far the first step went."""
    rank, _ = joined()
    model = nn.Linear(4, 1)
    ddp_model, optimizer = DistributedDataParallel(model), SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    torch.manual_seed(rank)
    skipped, start, moved = [], flat(model), 0.0
    for step in range(3):
        loss = 100 * ddp_model(torch.randn(5, 4)).square().mean()
        if step == 1 and rank == 1:
            loss = loss * float("inf")
        skipped.append(not loss.isfinite().item())
        if how == "recipe":
            recipes.step_in_fp16(loss, optimizer, scaler, model)
        else:
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
        if step == 0:
            moved = (flat(model) - start).norm().item()
    return skipped, flat(model), moved


def test_fp16(crew: Crew) -> None:
    (left_out, first, moved), (others, second, _) = crew.run(half, "recipe", world_size=2)
    assert left_out != others  # by its own loss one rank would wait for the other for ever
    assert torch.equal(first, second) and first.isfinite().all()
    assert moved == pytest.approx(0.1, rel=1e-4)  # the rate times the bound of the norm
    assert crew.run(half, "clipped scaled", world_size=2)[0][2] < 0.001


def logged(recipe: bool, file: Path) -> None:
    rank, _ = joined()

    def write(value: float, step: int) -> None:
        with file.open("a") as lines:
            lines.write(f"{step} {value}\n")

    loss = torch.tensor(1.0 + rank)
    if recipe:
        recipes.log_loss(write, loss, 7)
        assert loss == 1.0 + rank
    else:
        write(loss.item(), 7)


def test_logger(crew: Crew, tmp_path: Path) -> None:
    crew.run(logged, False, tmp_path / "all", world_size=2)
    assert sorted((tmp_path / "all").read_text().splitlines()) == ["7 1.0", "7 2.0"]
    crew.run(logged, True, tmp_path / "one", world_size=2)
    assert (tmp_path / "one").read_text() == "7 1.5\n"


def trained(epochs: int, file: str | None, optimizer_too: bool = True) -> Tensor:
    """The weights after some epochs; with a file, saved after each and loaded first."""
    rank, _ = joined()
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    others = {"scheduler": scheduler}
    others |= {"optimizer": optimizer} if optimizer_too else {}
    start = recipes.load(file, model, **others) if file and Path(file).exists() else 0
    ddp_model = DistributedDataParallel(model)
    for epoch in range(start, epochs):
        recipes.seed_all(epoch, rank)
        for _ in range(3):
            optimizer.zero_grad()
            ddp_model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
        scheduler.step()
        if file:
            recipes.save(file, ddp_model, epoch, **others)
    dist.barrier()
    return flat(model)


def test_checkpoint(crew: Crew, tmp_path: Path) -> None:
    expected = crew.run(trained, 4, None, world_size=2)[0]
    for name, optimizer_too in [("whole.pt", True), ("weights.pt", False)]:
        crew.run(trained, 2, str(tmp_path / name), optimizer_too, world_size=2)
        assert not list(tmp_path.glob("*.tmp"))
        resumed = crew.run(trained, 4, str(tmp_path / name), optimizer_too, world_size=2)
        for weights in resumed:
            assert torch.equal(weights, expected) == optimizer_too


def test_recipes_are_short() -> None:
    """At most 15 lines each on a page, without the blank ones; and both pages show all of them."""
    text = (EXAMPLES / "recipes.py").read_text()
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names = [node.name for node in found]
    assert len(names) > 15
    for node in found:
        lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
        assert len([line for line in lines if line.strip()]) <= 15, node.name
    for language in ("en", "zh"):
        page = (ROOT / f"docs/{language}/convert.md").read_text()
        shown = re.findall(r"^@code docs/examples/convert/recipes.py (\w+)", page, re.M)
        assert sorted(shown) == sorted(names)
