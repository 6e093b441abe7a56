"""What recipes.md promises: each recipe works, and is needed, on two processes (losses over the
batch: on one, two and three), and a loop that has most of them trains alike on any number."""

import ast
import copy
import functools
import importlib
import io
import os
import pickle
import random
import re
import signal
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from crew import Crew, call_main
from harness import ROOT, assert_same, load_state, run
from plain_training import EPOCHS, HIGH_RATE, STEPS, arguments, assert_is_plain_training
from test_convert import EXAMPLES, play, without
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from torchvision.transforms import v2
from with_tiny_model import tiny_float64

RECIPES = (EXAMPLES / "recipes.py").read_text()


def names_of(source: str) -> Any:
    """What a script defines."""
    names: dict[str, Any] = {"__name__": "recipes"}
    exec(compile(source, "recipes", "exec"), names)
    return SimpleNamespace(**names)


def in_a_group(use: Callable, source: str, *args: Any) -> str:
    """In a crew member: the error of use(recipes, ...) in a process group, or ""."""
    dist.init_process_group("gloo")
    dist.barrier()  # a rank that has left already would close a connection that is being made
    torch.manual_seed(0)
    try:
        use(names_of(source), *args)
    except Exception:
        return traceback.format_exc()
    return ""


def both(value: Any) -> list:
    """In a crew member: what each rank has."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


USES: dict[str, tuple[Callable, tuple, tuple]] = {}


def needs(*omissions: tuple[str, str], ranks: tuple[int, ...] = (2,)) -> Callable:
    """For the use of a recipe, a function that holds on so many ranks: parts of recipes.py without
    which it does not on the last of these numbers, each with what then stands there."""

    def decorate(use: Callable) -> Callable:
        USES[use.__name__] = use, omissions, ranks
        return use

    return decorate


def counted(sent: list, bucket):
    """A hook of DDP that averages as it does without one, and counts."""
    sent.append(1)
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


# ------------------------------------------------------------------- what a rank does with each


@needs(("islice(self.sampler, self.rank,", "islice(self.sampler, 0,"))
def weighted(recipes: Any) -> None:
    """Class 1 is a tenth of the images, and weighs nine times as much."""
    weights = np.ones(1000)  # as somebody counts classes
    weights[:100] = 9.0
    ours = (dist.get_rank(), dist.get_world_size())
    drawn = WeightedRandomSampler(weights, 1000)
    sampler = recipes.DistributedWeightedSampler(drawn, *ours)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    first, second = both(epochs)
    assert first[0] != first[1]
    for one, other in zip(first, second, strict=True):
        assert one != other and len(one) == len(other) == 500
        assert 0.4 < sum(index < 100 for index in one + other) / 1000 < 0.6
    drawn = WeightedRandomSampler(weights, 601, replacement=False)
    sampler = recipes.DistributedWeightedSampler(drawn, *ours)
    assert len(set(sum(both(list(sampler)), []))) == 600


@needs(("batch[self.rank ::", "batch[0 ::"))
def batches_of_unlike_lengths(recipes: Any) -> None:
    """A sampler's batches are those of all ranks together."""
    batches = [[3, 1, 4, 0], [5, 9], [2, 6, 8, 7]]
    sampler = recipes.BatchesOfRank(batches, dist.get_rank(), dist.get_world_size())
    loader = DataLoader(range(10), batch_sampler=sampler)
    first, second = both([batch.tolist() for batch in loader])
    assert len(loader) == 3 and [a + b for a, b in zip(first, second, strict=True)] == [
        [3, 4, 1, 0], [5, 9], [2, 8, 6, 7],
    ]  # fmt: skip


@needs(("starts[dist.get_rank() ::", "starts[0 ::"))
def texts(recipes: Any) -> None:
    """What one process draws, and other texts in each step."""
    tokens = np.arange(500, dtype=np.uint16)
    mine = [recipes.texts_of_step(tokens, step, 6, 9) for step in range(2)]
    first, second = both([inputs[:, 0].tolist() for inputs, _ in mine])
    for step, (inputs, targets) in enumerate(mine):
        assert torch.equal(inputs[:, 1:], targets[:, :-1]) and targets.shape == (3, 9)
        whole = torch.randint(491, (6,), generator=torch.Generator().manual_seed(step))
        assert [x for pair in zip(first[step], second[step], strict=True) for x in pair] == (
            whole.tolist()
        )
    assert first[0] != first[1]


@needs(("islice(self.read(), first, None, self.world_size * workers)", "self.read()"))
def iterable(recipes: Any) -> None:
    data = recipes.Share(lambda: iter(range(103)), dist.get_rank(), dist.get_world_size())
    # No other context takes a class that exec has made.
    loader = DataLoader(data, 5, num_workers=2, multiprocessing_context="fork")
    first, second = both([record for batch in loader for record in batch.tolist()])
    assert sorted(first + second) == list(range(103))


@needs(("dist.all_reduce(goes_on, dist.ReduceOp.MIN, group=cpu_group)", "pass"))
def together(recipes: Any) -> None:
    """Ranks with 3 and 5 batches. Without the common word, the longer rank waits for ever."""
    batches = recipes.together(range(3 + 2 * dist.get_rank()), dist.group.WORLD)
    assert both(len(list(batches))) == [3, 3]


def draw(batch: list[int]) -> list[float]:
    """From all three generators."""
    return [random.random(), np.random.rand(), torch.rand(()).item()]


@needs((' {rank}")', '")'))
def random_numbers(recipes: Any) -> None:
    """Other ones on each rank: in the process itself, and in a worker."""
    for workers in (False, True):
        recipes.seed_epoch(0, 0, dist.get_rank())
        options = {"multiprocessing_context": "fork", "num_workers": 1} if workers else {}
        first, second = both(next(iter(DataLoader(range(4), 4, collate_fn=draw, **options))))
        assert not set(first) & set(second)


def seven_batches() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    return model, torch.randn(7, 4, 8).double(), torch.randint(3, (7, 4))


def accumulated() -> Tensor:
    """The weights after two epochs of a plain loop. The seventh batch makes no step: its gradient
    is in that of the next epoch's first step."""
    model, inputs, targets = seven_batches()
    optimizer = SGD(model.parameters(), lr=5.0)
    for _ in range(2):
        for number, batch in enumerate(zip(inputs, targets, strict=True), start=1):
            (cross_entropy(model(batch[0]), batch[1]) / 3).backward()
            if number % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return flat(model)


@needs(
    ("nullcontext() if steps else ddp_model.no_sync()", "nullcontext()"),
    ("nullcontext() if steps else ddp_model.no_sync()", "ddp_model.no_sync()"),
    ("(loss / accumulate)", "loss"),
)
def accumulation(recipes: Any) -> None:
    model, inputs, targets = seven_batches()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    loader = [(x[mine], y[mine]) for x, y in zip(inputs, targets, strict=True)]
    ddp_model, sent = DistributedDataParallel(model), []
    ddp_model.register_comm_hook(sent, counted)
    optimizer = SGD(model.parameters(), lr=5.0)
    for _ in range(2):
        recipes.train_accumulating(ddp_model, loader, optimizer, 3)
    assert len(sent) == 4
    torch.testing.assert_close(flat(model), accumulated(), atol=1e-10, rtol=0)


@needs(("dist.all_reduce(everywhere)", "everywhere *= dist.get_world_size()"))
def tokens(recipes: Any) -> None:
    """A mean over 6 tokens, which two ranks hold as 4 and 2."""
    model, inputs = nn.Linear(3, 1), torch.arange(18.0).view(6, 3)
    [alone] = torch.autograd.grad(model(inputs).square().mean(), model.weight)
    mine = inputs[[slice(0, 4), slice(4, 6)][dist.get_rank()]]
    ddp_model = DistributedDataParallel(model)  # it must live until backward() has averaged
    total = ddp_model(mine).square().sum()
    recipes.mean_over_all(total, torch.tensor(float(len(mine)))).backward()
    torch.testing.assert_close(model.weight.grad, alone)


@needs(
    ("dist.all_reduce(count)", "count *= dist.get_world_size()"),
    ("(loss * dist.get_world_size() / count)", "(loss / count)"),
    ("nullcontext() if number == len(group) else ddp_model.no_sync()", "nullcontext()"),
    ("(targets != -100).sum()", "torch.tensor(targets.numel())"),
    ranks=(1, 3, 2),
)
def steps_by_tokens(recipes: Any) -> None:
    """Seven batches of six texts, of 1 to 5 tokens: a step for three of them, the last for one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)).double()
    alone = copy.deepcopy(model)
    tokens, targets = torch.randint(9, (2, 7, 6, 5))
    targets[torch.arange(5) > torch.randint(5, (7, 6, 1))] = -100
    optimizer = SGD(alone.parameters(), lr=1.0)
    for some, wanted in zip(tokens.split(3), targets.split(3), strict=True):
        cross_entropy(alone(some).flatten(0, 2), wanted.flatten()).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    mine = slice(dist.get_rank(), None, dist.get_world_size())
    loader = [(x[mine], y[mine]) for x, y in zip(tokens, targets, strict=True)]
    ddp_model, sent = DistributedDataParallel(model), []
    ddp_model.register_comm_hook(sent, counted)
    recipes.train_by_tokens(ddp_model, loader, SGD(model.parameters(), lr=1.0), 3)
    assert len(sent) == 3
    torch.testing.assert_close(flat(model), flat(alone), atol=1e-10, rtol=0)


@needs((" * dist.get_world_size() / everywhere", " / everywhere"), ranks=(1, 3, 2))
def class_weights(recipes: Any) -> None:
    """cross_entropy(weight=...) divides by the weights of the batch's targets: unequal shares."""
    model, inputs, weights = nn.Linear(4, 2), torch.randn(6, 4), torch.tensor([1.0, 9.0])
    targets = torch.tensor([0, 0, 0, 1, 0, 1])
    alone = cross_entropy(model(inputs), targets, weight=weights)
    [alone] = torch.autograd.grad(alone, model.weight)
    inputs, targets = (
        part.chunk(dist.get_world_size())[dist.get_rank()] for part in (inputs, targets)
    )
    ddp_model = DistributedDataParallel(model)
    total = cross_entropy(ddp_model(inputs), targets, weight=weights, reduction="sum")
    recipes.mean_over_all(total, weights[targets].sum()).backward()
    torch.testing.assert_close(model.weight.grad, alone)


def dice_of(logits: Tensor, masks: Tensor) -> Tensor:
    """As a script for one GPU has it, over the images that it is given."""
    guesses = logits.sigmoid()
    overlap = 2 * (guesses * masks).sum((0, 2, 3)) + 1
    return 1 - (overlap / (guesses.sum((0, 2, 3)) + masks.sum((0, 2, 3)) + 1)).mean()


def clip_of(first: Tensor, second: Tensor) -> Tensor:
    pairs = torch.arange(len(first))
    logits = first @ second.T / 0.5
    return (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2


def over_the_batch(model: nn.Module, of_all: Callable, of_mine: Callable, *batch: Tensor) -> None:
    """Value and gradient of a loss in a process, and on all ranks together with a mean over images
    beside it, as cross-entropy is."""
    alone = of_all(model(batch[0]), batch[1]) + model(batch[0]).square().mean()
    expected = torch.autograd.grad(alone, model.weight)[0]
    inputs, targets = (part.chunk(dist.get_world_size())[dist.get_rank()] for part in batch)
    ddp_model = DistributedDataParallel(model)  # it must live until backward() has averaged
    outputs = ddp_model(inputs)
    loss, beside = of_mine(outputs, targets), outputs.square().mean()
    (loss + beside).backward()
    torch.testing.assert_close(model.weight.grad, expected, atol=1e-10, rtol=0)
    assert all(value == both(loss.item())[0] for value in both(loss.item()))
    assert loss.item() == pytest.approx(of_all(model(batch[0]), batch[1]).item(), abs=1e-10)


@needs(
    ("dist.all_reduce(total)", "pass"),
    (" * dist.get_world_size()  # zero", "  # zero"),
    ("(part - part.detach())", "0"),
    ranks=(1, 3, 2),
)
def dice(recipes: Any) -> None:
    """Six images of two classes, of which the first has more pixels in each next image."""
    images, masks = torch.randn(6, 3, 4, 4).double(), torch.zeros(6, 2, 4, 4).double()
    for number, mask in enumerate(masks):
        mask[0].view(-1)[: 3 * number] = 1
        mask[1] = 1 - mask[0]
    over_the_batch(nn.Conv2d(3, 2, 1).double(), dice_of, recipes.dice_loss, images, masks)


@needs(("places[dist.get_rank()] = rows", "places[:] = rows"), ranks=(1, 3, 2))
def contrastive(recipes: Any) -> None:
    """Six pairs; the other half of a pair is the model's, too."""
    model = nn.Linear(5, 4).double()
    views = torch.randn(2, 6, 5).double()

    def of_all(outputs: Tensor, others: Tensor) -> Tensor:
        return clip_of(outputs, others @ model.weight.T)

    def of_mine(outputs: Tensor, others: Tensor) -> Tensor:
        return recipes.contrastive_loss(outputs, others @ model.weight.T, 0.5)

    over_the_batch(model, of_all, of_mine, *views)


# All images by the batch of one process.
@needs(("epochs * len(loader)", "epochs * 96 // loader.batch_size"))
def one_cycle(recipes: Any) -> None:
    """The last step of two epochs."""
    loader = DataLoader(range(dist.get_rank(), 96, dist.get_world_size()), 4)
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = recipes.one_cycle(optimizer, loader, 2)
    for _ in range(2 * len(loader) - 1):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 1e-5


@needs(("dist.all_reduce(sums)", "pass"))
def plateau_and_best(recipes: Any) -> None:
    """The mean loss and the epochs without a better one, while rank 0 alone becomes better."""
    best = recipes.Best(patience=2)
    means, waited = [], []
    for epoch in range(4):
        total = 2.0 + epoch if dist.get_rank() else 2.0 - 0.5 * epoch
        means.append(recipes.mean_over_ranks(total, 1 + 2 * dist.get_rank(), "cpu"))
        assert best.improved(-means[-1]) == (best.waited == 0)
        waited.append(best.waited)
    assert (means, waited) == ([1.0, 1.125, 1.25, 1.375], [0, 1, 2, 3])


def test_score_of_numpy(tmp_path: Path) -> None:
    """As an AP by np.cumsum is: the checkpoint that holds it must load after the crash."""
    best = names_of(RECIPES).Best(patience=2)
    best.improved(np.float64(0.5))
    torch.save(best.state_dict(), tmp_path / "best.pt")
    assert torch.load(tmp_path / "best.pt", weights_only=True)["score"] == 0.5


def auc(first: Tensor, scores: Tensor) -> Tensor:
    return (scores[first][:, None] > scores[~first]).float().mean()


@needs(
    ("dist.all_reduce(pairs)", "pass"),
    ("dist.all_gather_object(parts, values.cpu())", "parts = [values]"),
)
def metrics(recipes: Any) -> None:
    """Macro-F1 of three classes and AUC of class 0, over 31 images that are sorted by class."""
    targets = torch.arange(31) * 3 // 31
    scores = torch.rand(31, 3)
    scores[torch.arange(31), targets] += 0.3
    guesses = scores.argmax(1)
    f1 = []
    for kind in range(3):
        right = ((targets == kind) & (guesses == kind)).sum()
        f1.append(2 * right / ((targets == kind).sum() + (guesses == kind).sum()))

    mine = torch.arange(31).chunk(dist.get_world_size())[dist.get_rank()]
    found = recipes.macro_f1(targets[mine], guesses[mine], 5)  # two of them do not occur
    first, others = (recipes.from_all_ranks(part[mine]) for part in (targets == 0, scores[:, 0]))
    assert found == pytest.approx((sum(f1) / 3).item())
    assert auc(first, others) == auc(targets == 0, scores[:, 0])


@needs(("get_ema_multi_avg_fn(decay)", "None"))  # a mean of all steps
def ema(recipes: Any) -> None:
    """Made before DDP, on ranks that begin with other weights, which DDP then makes those of
    rank 0. All ranks have the average of the weights after each step."""
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 4)
    average = recipes.make_ema(model, 0.9)
    ddp_model, optimizer = DistributedDataParallel(model), SGD(model.parameters(), lr=0.1)
    expected = None
    for _ in range(3):
        optimizer.zero_grad()
        ddp_model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        average.update_parameters(model)
        expected = flat(model) if expected is None else 0.9 * expected + 0.1 * flat(model)
    torch.testing.assert_close(flat(average.module), expected)
    assert torch.equal(*both(flat(average.module)))
    assert list(average.module.state_dict()) == ["weight", "bias"]


@needs(("dist.broadcast(buffer, src=0)", "pass"))
def batchnorm(recipes: Any) -> None:
    """Each rank evaluates with the running mean of rank 0."""
    model = nn.BatchNorm1d(4)
    model(torch.randn(8, 4) + dist.get_rank())
    of_rank_0, _ = both(model.running_mean)
    recipes.same_buffers(model)
    assert torch.equal(model.running_mean, of_rank_0)


@needs(("discriminator.module(fake)", "discriminator(fake)"))
def two_networks(recipes: Any) -> None:
    """A step of the generator all-reduces its own gradient, and never the discriminator's."""
    generator = DistributedDataParallel(nn.Linear(3, 4))
    discriminator = DistributedDataParallel(nn.Linear(4, 1))
    sent = []
    discriminator.register_comm_hook(sent, counted)
    fake = generator(torch.randn(5, 3) + dist.get_rank())
    recipes.generator_loss(discriminator, fake).backward()
    assert not sent and torch.equal(*both(generator.module.weight.grad))


@needs(("dist.all_reduce(found, dist.ReduceOp.MAX)", "pass"))
def skipped_steps(recipes: Any) -> None:
    """In the second of three steps the loss of rank 1 is not a number."""
    model = nn.Linear(4, 1)
    ddp_model, optimizer = DistributedDataParallel(model), SGD(model.parameters(), lr=0.1)
    skipped = []
    for step in range(3):
        loss = ddp_model(torch.randn(5, 4) + dist.get_rank()).square().mean()
        if step == 1 and dist.get_rank() == 1:
            loss = loss * float("nan")
        skipped.append(recipes.on_any_rank(loss.isnan()))
        assert both(skipped[-1]) == [step == 1] * 2
        if skipped[-1]:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(*both(flat(model))) and flat(model).isfinite().all()


@needs(("dist.all_reduce(loss)", "pass"))
def logger(recipes: Any) -> None:
    rows: list[tuple[float, int]] = []
    loss = torch.tensor(1.0 + dist.get_rank())
    recipes.log_loss(lambda *row: rows.append(row), loss, 7)
    assert both(rows) == [[(1.5, 7)], []] and loss == 1.0 + dist.get_rank()


@needs(("dist.all_reduce(each)", "pass"))
def slowest_rank(recipes: Any) -> None:
    assert recipes.seconds_by_rank(1.0 + dist.get_rank(), torch.device("cpu")) == [1.0, 2.0]


class TwoParts(nn.ModuleList):
    """The second is used in some steps; those after it, never."""

    def forward(self, inputs: Tensor, both_parts: bool) -> Tensor:
        hidden = self[0](inputs)
        return self[1](hidden) if both_parts else hidden


def unused(recipes: Any, changing: bool) -> None:
    """Three steps, with another part of the model in each or without the last one."""
    model = TwoParts(nn.Linear(4, 4) for _ in range(3))
    ddp_model = recipes.wrap(model, model[2], changing)
    optimizer = SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        optimizer.zero_grad()
        ddp_model(torch.randn(3, 4), step % 2 == 1 or not changing).sum().backward()
        optimizer.step()
    assert torch.equal(*both(flat(model)))


@needs((", find_unused_parameters=changing", ""))
def unused_in_some_steps(recipes: Any) -> None:
    unused(recipes, changing=True)


@needs(("never_used.requires_grad_(False)", "pass"))
def never_used(recipes: Any) -> None:
    unused(recipes, changing=False)


class Heard(nn.Module):
    """A model whose second part is for samples that have sound."""

    def __init__(self, nothing: Callable) -> None:
        super().__init__()
        self.seen, self.heard, self.nothing = nn.Linear(4, 2), nn.Linear(3, 2), nothing

    def forward(self, images: Tensor, sounds: Tensor | None) -> Tensor:
        if sounds is not None:
            return self.seen(images) + self.heard(sounds)
        return self.seen(images) + self.nothing(self.heard(torch.zeros(1, 3)))


@needs(
    ("return 0 * output.sum()", "return torch.zeros(())"),  # the others wait
    ("return 0 * output.sum()", "return output.sum()"),
)
def lacking(recipes: Any) -> None:
    """Rank 1 has no sound in the first step, and no targets in the second."""
    model, rank = Heard(recipes.nothing), dist.get_rank()
    images, sounds, targets = torch.randn(3, 4), torch.randn(3, 3), torch.tensor([0, 1, 1])
    losses = [cross_entropy(model(images, heard), targets) for heard in (sounds, None)]
    of_sound, _ = torch.autograd.grad(losses[0], [model.heard.weight, model.seen.weight])
    [of_images] = torch.autograd.grad(losses[1], model.seen.weight)

    ddp_model = DistributedDataParallel(model)
    logits = ddp_model(images, None if rank else sounds)
    cross_entropy(logits, targets).backward()
    torch.testing.assert_close(model.heard.weight.grad, of_sound / 2)
    model.zero_grad()
    logits = ddp_model(images, None)
    (recipes.nothing(logits) if rank else cross_entropy(logits, targets)).backward()
    torch.testing.assert_close(model.seen.weight.grad, of_images / 2)
    assert not model.heard.weight.grad.any()


def one_by_one(rows: dict) -> list[dict]:
    """What a gather for each name gives: the rows of a place, under the name that is there here."""
    parts = both(list(rows.values()))
    return [dict(zip(rows, part, strict=False)) for part in parts]


@needs(("dist.all_gather_object(parts, rows)", "parts[:] = one_by_one(rows)"))
def names_in_another_order(recipes: Any) -> None:
    recipes.by_name.__globals__["one_by_one"] = one_by_one  # for the broken one
    rows = [{"bleu": [1], "ter": [2]}, {"ter": [4], "bleu": [3], "chrf": [5]}][dist.get_rank()]
    assert recipes.by_name(rows) == {"bleu": [1, 3], "chrf": [5], "ter": [2, 4]}


@pytest.mark.parametrize("name", USES)
def test_recipe(crew: Crew, name: str) -> None:
    use, omissions, ranks = USES[name]
    for world_size in ranks:
        answers = crew.run(in_a_group, use, RECIPES, world_size=world_size)
        assert not any(answers), "\n".join(answers)
    for omission in omissions:
        broken = without(RECIPES, omission)
        assert any(crew.run(in_a_group, use, broken, world_size=ranks[-1])), omission


# ------------------------------------------------------------------------------- files of records

RECORDS = 20


def tar_of(path: Path, first: int) -> None:
    """So many records: a JPEG, that is none here, and a class."""
    with tarfile.open(path, "w") as tar:
        for number in range(first, first + RECORDS):
            for kind in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{number:04d}.{kind}")
                member.size = len(content := f"{kind} {number}".encode())
                tar.addfile(member, io.BytesIO(content))


def number_of(batch: list[dict]) -> list[int]:
    assert all(record["jpg"][4:] == record["cls"][4:] for record in batch)
    return [int(record["cls"][4:]) for record in batch]


def tars(recipes: Any, folder: Path, workers: int) -> list[list[int]]:
    """The records that a rank gets in each of two epochs, with workers that live on."""
    files = sorted(map(str, folder.glob("*.tar")))
    data = recipes.RecordFiles(files, recipes.read_tar, dist.get_rank(), dist.get_world_size())
    options = {"multiprocessing_context": "fork", "persistent_workers": True} if workers else {}
    loader = DataLoader(data, 4, num_workers=workers, collate_fn=number_of, **options)
    seen = []
    for epoch in range(2):
        data.epoch.fill_(epoch)
        seen.append(sum(loader, []))
    return seen


def each_once(recipes: Any, folder: Path, workers: int, count: int) -> None:
    """Each record in each epoch, in the same order when it is begun again, and other files for a
    rank where it has its own."""
    seen = tars(recipes, folder, workers)
    first, second = both(seen)
    for ours, theirs in zip(first, second, strict=True):
        assert sorted(ours + theirs) == list(range(count)) and ours != sorted(ours)
        assert len(ours) == len(theirs)
    assert first[0] != first[1] and seen == tars(recipes, folder, workers)
    assert count < 100 or sorted(first[0]) != sorted(first[1])


SIX = [("shares[rank], 0, 1", "files, 0, 1"), ("Random(self.epoch.item())", "Random(0)")]
THREE = [
    ("turn * places + place, None, turns * places", "turn, None, turns"),
    ("turn * places + place, None, turns * places", "place, None, places"),
    ("0.95 * sum(totals)", "0 * sum(totals)"),
]


@pytest.mark.parametrize(("files", "workers", "omissions"), [(6, 0, SIX), (3, 4, THREE)])
def test_files_of_records(
    crew: Crew, files: int, workers: int, omissions: list, tmp_path: Path
) -> None:
    """With fewer files than workers or too few for equal shares, these take turns."""
    for number in range(files):
        tar_of(tmp_path / f"{number}.tar", number * RECORDS)
    args = (tmp_path, workers, files * RECORDS)
    assert crew.run(in_a_group, each_once, RECIPES, *args, world_size=2) == ["", ""]
    for omission in omissions:
        broken = without(RECIPES, omission)
        assert any(crew.run(in_a_group, each_once, broken, *args, world_size=2)), omission


def test_shares_of_unlike_files() -> None:
    """300 files of lognormal sizes on eight ranks: shares of whole files, others in each epoch; of
    an epoch 0.1 % stays unused, as the page says. More would, if files were dealt as drawn."""
    draw = random.Random(0)
    sizes = {str(number): int(1000 * draw.lognormvariate(0, 1)) for number in range(300)}

    def epochs_by(source: str) -> tuple[list[list], float]:
        share_of, epochs, unused = names_of(source).share_of, [], 0.0
        for seed in range(9):
            files = random.Random(seed).sample(list(sizes), len(sizes))
            parts = [share_of(files, sizes, rank, 8) for rank in range(8)]
            assert all(part[1:] == (0, 1) for part in parts)
            epochs.append([part[0] for part in parts])
            assert sorted(sum(epochs[-1], [])) == sorted(sizes)
            least = min(sum(sizes[file] for file in part) for part in epochs[-1])
            unused += (1 - 8 * least / sum(sizes.values())) / 9
        return epochs, unused

    epochs, unused = epochs_by(RECIPES)
    assert epochs[0] != epochs[1] and unused < 0.0015
    drawn = without(
        RECIPES, (", key=lambda file: -sizes[file].bit_length()", ""), ("0.95 * sum", "0 * sum")
    )
    assert epochs_by(drawn)[1] > 0.01


def test_a_file_that_is_cut_off(crew: Crew, tmp_path: Path) -> None:
    """It is named, even if it ends where a record does."""
    for number in range(4):
        tar_of(tmp_path / f"{number}.tar", number * RECORDS)
    cut = tmp_path / "2.tar"
    cut.write_bytes(cut.read_bytes()[: 4 * 2048])
    errors = crew.run(in_a_group, tars, RECIPES, tmp_path, 0, world_size=2)
    assert f"{cut} cannot be read: ReadError" in "".join(errors)
    broken = without(RECIPES, ("!= bytes(512)", "is None"))
    assert crew.run(in_a_group, tars, broken, tmp_path, 0, world_size=2) == ["", ""]


# ----------------------------------------------------------------------- profiler, groups, mixing


def profiled(recipes: Any, folder: Path) -> None:
    with recipes.profiler(folder) as steps:
        for _ in range(31):
            torch.ones(3).sum()
            steps.step()


def test_profiler(crew: Crew, tmp_path: Path) -> None:
    assert crew.run(in_a_group, profiled, RECIPES, tmp_path, world_size=2) == ["", ""]
    assert {path.name for path in tmp_path.iterdir()} == {"rank0.json.gz", "rank1.json.gz"}


def slow_on_rank_1(recipes: Any, folder: Path) -> None:
    with recipes.profiler(folder) as steps:
        for _ in range(31):
            time.sleep(0.03 * dist.get_rank())
            dist.all_reduce(torch.ones(3))
            steps.step()
    dist.barrier()  # both traces are written
    seconds = recipes.seconds_in_collectives(folder)
    assert list(seconds) == ["rank0", "rank1"]
    assert seconds["rank0"] > seconds["rank1"]


def test_slow_rank_in_traces(crew: Crew, tmp_path: Path) -> None:
    assert crew.run(in_a_group, slow_on_rank_1, RECIPES, tmp_path, world_size=2) == ["", ""]


def saved_in_background(recipes: Any, folder: Path) -> None:
    """The state of the moment of the call; no collective in the default group, where training has
    its own; and a save that fails says so at the next one."""
    state = {"weight": torch.full((3,), 1.0), "rank": torch.tensor(dist.get_rank())}
    group = dist.new_group(backend="gloo")
    before = collectives_of(dist.group.WORLD), collectives_of(group)
    first = recipes.save_in_background(state, folder / "1", group, None)
    state["weight"].fill_(2.0)
    wait([first])  # without the recipe's own, two saves at once would mix up their collectives
    second = recipes.save_in_background(state, folder / "2", group, first)
    state["weight"].fill_(3.0)
    second.result()
    assert collectives_of(group) > before[1]
    assert collectives_of(dist.group.WORLD) == before[0]
    for number in (1, 2):
        found = {"weight": torch.zeros(3)}
        dcp.load(found, checkpoint_id=folder / str(number))
        assert found["weight"].tolist() == [number] * 3

    (folder / "a file").touch()
    dist.barrier()
    failed = recipes.save_in_background(state, folder / "a file/3", group, second)
    wait([failed])
    try:
        last = recipes.save_in_background(state, folder / "4", group, failed)
    except dcp.CheckpointException as error:
        assert "Not a directory" in str(error)
        return
    last.result()
    raise AssertionError("nobody is told of the save that failed")


def collectives_of(group: ProcessGroup) -> int:
    """How many this rank has called in it."""
    return group._get_backend(torch.device("cpu"))._get_sequence_number_for_group()


@pytest.mark.proof
def test_saving_in_the_background(crew: Crew, tmp_path: Path) -> None:
    assert crew.run(in_a_group, saved_in_background, RECIPES, tmp_path, world_size=2) == ["", ""]
    for number, omission in enumerate([("last.result()", "pass"), (", process_group=group", "")]):
        folder = tmp_path / f"broken {number}"
        folder.mkdir()
        broken = without(RECIPES, omission)
        errors = crew.run(in_a_group, saved_in_background, broken, folder, world_size=2)
        assert all("AssertionError" in error for error in errors), errors


def test_a_state_before_the_first_step() -> None:
    """As the page says: asking AdamW for it makes a step of zeros, so that the first one is its
    second; a state that is thrown away is none."""

    def trained(before: Callable) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = AdamW(model.parameters(), lr=0.1)
        before(model, optimizer)
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        return flat(model)

    def asked_and_cleared(model: nn.Module, optimizer: AdamW) -> None:
        get_optimizer_state_dict(model, optimizer)
        optimizer.state.clear()

    right = trained(lambda *_: None)
    assert (trained(get_optimizer_state_dict) - right).abs().max() > 0.01
    assert torch.equal(trained(asked_and_cleared), right)


def test_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed images and targets are those of both."""
    monkeypatch.syspath_prepend(EXAMPLES)
    recipes = importlib.import_module("recipes")
    alike = pickle.loads(pickle.dumps(recipes.Mixing(3)))  # as for workers that are not forked
    images, targets = alike([(torch.full((3, 8, 8), float(n)), n) for n in range(3)])
    assert images.shape == (3, 3, 8, 8) and targets.shape == (3, 3)
    torch.testing.assert_close(targets.sum(1), torch.ones(3))


def pairs_of(source: str) -> list[tuple[Tensor, Tensor]]:
    """Random crops of an image of one channel that shows its mask."""
    torch.manual_seed(0)
    view = v2.Compose([v2.RandomResizedCrop(16, antialias=False), v2.RandomHorizontalFlip()])
    mask = torch.arange(5).repeat_interleave(64).reshape(1, 20, 16)
    image = mask.float() / 4
    return [names_of(source).in_one_view(view, image, mask) for _ in range(8)]


def test_image_and_mask() -> None:
    """In one view: the mask's pixels are classes, and the image's are close to them. Views that are
    drawn for each are noticed, and a mask that is resized as an image."""

    def alike(pairs: list) -> bool:
        classes = all(set(mask.unique().tolist()) <= set(range(5)) for _, mask in pairs)
        return classes and all((4 * image - mask).abs().max() < 1 for image, mask in pairs)

    whole = "view(tv_tensors.Image(image), tv_tensors.Mask(mask))"
    assert alike(pairs_of(RECIPES))
    apart = without(RECIPES, (whole, "view(tv_tensors.Image(image)), view(tv_tensors.Mask(mask))"))
    assert not alike(pairs_of(apart))
    resized = without(RECIPES, ("tv_tensors.Mask(mask)", "tv_tensors.Image(1.0 * mask)"))
    assert not alike(pairs_of(resized))


# ------------------------------------------------------------------------ 02's parts, and 02 itself

HUB_SOURCE = (ROOT / "02_distributed/main.py").read_text()
MID_EPOCH = re.search(
    r'<a id="mid-epoch"></a>\n\n(Copy from .+?): (.+?)\..*?```python example\n(.+?)```',
    (ROOT / "docs/en/recipes.md").read_text("utf-8"),
    re.S,
)


def copied(names: list[str]) -> str:
    """These definitions of 02, and its imports."""
    nodes = ast.parse(HUB_SOURCE).body
    kept = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    for name in names:
        (found,) = (
            node
            for node in nodes
            if name == getattr(node, "name", "")
            or name in [target.id for target in getattr(node, "targets", [])]
            or name == getattr(getattr(node, "target", None), "id", "")
        )
        kept.append(found)
    return "\n".join(ast.unparse(node) for node in kept)


def a_start(source: str, folder: Path, kill_at: int) -> tuple[int, list[float]]:
    """In a crew member: a script with the page's loop, 2 epochs of 20 steps, of which rank 1 gets
    SIGTERM in one. The number of the last step, and the weights."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(80, 4), torch.randint(2, (80,)))
    latest = folder / "latest.pt"
    place = torch.load(latest)["place"] if latest.exists() else (0, 0)
    at = [20 * place[0] + place[1]]

    def train_step(ddp_model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        at[0] += 1
        if at[0] == kill_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        cross_entropy(ddp_model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    recipes = names_of(RECIPES)
    flags = {"epochs": 2, "seed": 5, "print_freq": 1, "save_minutes": 15, "evaluate": False}
    script = {
        "__name__": "script", "train_set": data, "batch": 2, "model": model,
        "parts": {"model": model, "optimizer": optimizer}, "args": SimpleNamespace(**flags),
        "rank": dist.get_rank(), "device": torch.device("cpu"), "train_step": train_step,
        "load": recipes.load, "save": recipes.save, "seed_epoch": recipes.seed_epoch,
    }  # fmt: skip
    before = os.getcwd()
    os.chdir(folder)
    try:
        exec(compile(source, "script", "exec"), script)
    except SystemExit as stopped:
        assert stopped.code == 75 and at[0] == kill_at
    finally:
        os.chdir(before)
    return at[0], flat(model).tolist()


def test_what_to_copy_from_02(crew: Crew, tmp_path: Path) -> None:
    """It is enough: stopped in both epochs, with dropout, a script ends with the same bits as in
    one piece. Without its points it does not."""
    names = re.findall(r"`(\w+)`", MID_EPOCH[2])
    assert len(names) == 8
    loop = MID_EPOCH[3].replace("num_workers=4", "num_workers=0")
    source = copied(names) + "\n" + loop

    def end(name: str, script: str, *kills: int) -> tuple[int, list[float]]:
        (folder := tmp_path / name).mkdir()
        for kill_at in (*kills, 0):
            answers = crew.run(a_start, script, folder, kill_at, world_size=2)
            assert answers[0] == answers[1]
        return answers[0]

    whole = end("whole", source)
    assert whole[0] == 40 and end("stopped", source, 7, 33) == whole
    for number, omission in enumerate(
        [
            ("torch.manual_seed(seed_of(args.seed, epoch, step, rank))", "pass"),
            ("islice(super().__iter__(), self.done, None)", "super().__iter__()"),
        ]
    ):
        assert end(f"without {number}", without(source, omission), 33) != whole, omission


def trained_in_parts(folder: Path, argv: list[str]) -> int:
    """In a crew member: the program in the folder on the tiny model; how often DDP sent."""
    sent: list[int] = []

    def wrapped(model: nn.Module, **options: Any) -> nn.Module:
        ddp_model = DistributedDataParallel(model, **options)
        ddp_model.register_comm_hook(sent, counted)
        return ddp_model

    patches = {"build_model": tiny_float64, "DistributedDataParallel": wrapped}
    answer = call_main(str(folder), argv, patches)
    assert answer["exit"] is None, answer
    return len(sent)


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 5), (2, 4)])
def test_accumulate_in_02(ranks: int, accumulate: int, crew: Crew, tmp_path: Path) -> None:
    """The difference fits, and what it makes of 02 is the same training, in parts of unlike sizes,
    clipped; it sends once a step. Without its points it is another one, or it sends each part."""
    difference = ROOT / "docs/examples/own/accumulate.diff"
    env = {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    (tmp_path / "main.py").write_text(HUB_SOURCE)
    done = run(["git", "apply", "-p0", difference], tmp_path, env=env)
    assert done.returncode == 0, done.output
    whole = (tmp_path / "main.py").read_text()

    def trained(name: str, script: str) -> tuple[int, Path]:
        (folder := tmp_path / name).mkdir()
        (folder / "main.py").write_text(script)
        argv = [*arguments(folder / "run", HIGH_RATE), "--accumulate", str(accumulate)]
        sent = crew.run(trained_in_parts, folder, argv, world_size=ranks)
        return sent[0], folder / "run"

    def is_plain(run_dir: Path) -> bool:
        try:
            state = load_state(run_dir / "checkpoint.pt")
            assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, run_dir)
        except AssertionError:
            return False
        return True

    sent, run_dir = trained("whole", whole)
    assert is_plain(run_dir) and sent == STEPS * EPOCHS
    weighed = without(whole, (" * len(labels) / len(targets)", " / args.accumulate"))
    assert not is_plain(trained("parts weigh alike", weighed)[1])
    if ranks > 1:
        eager = without(whole, ("nullcontext() if last else model.no_sync()", "nullcontext()"))
        sent, run_dir = trained("each part is sent", eager)
        assert is_plain(run_dir) and sent == accumulate * STEPS * EPOCHS


# --------------------------------------------------------------------------------- the whole loop

COMPLETE = (EXAMPLES / "complete.py").read_text()


def looped(folder: Path, *argv: str, recipes: str = RECIPES, script: str = COMPLETE) -> dict:
    sys.path.insert(0, str(EXAMPLES))  # it imports its neighbours
    sys.modules["recipes"] = names_of(recipes)
    return play(script, folder, argv=argv)


def score_of_saved(folder: Path) -> str:
    """The F1 of best.pt, which is the EMA, in this process alone."""
    make_data = names_of((EXAMPLES / "multi.py").read_text()).make_data
    torch.set_default_dtype(torch.float64)  # as in play()
    try:
        inputs, targets = make_data(301, seed=2).tensors
        model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    finally:
        torch.set_default_dtype(torch.float32)
    model.load_state_dict(torch.load(folder / "best.pt", weights_only=True)["model"])
    guesses = model.eval()(inputs).argmax(1)
    parts = (targets[guesses == targets], guesses, targets)
    right, guessed, given = (part.bincount(minlength=10) for part in parts)
    return f"{(2 * right / (guessed + given)).mean():.4f}"


def last(folder: Path) -> dict:
    return torch.load(folder / "latest.pt", weights_only=True)


def test_complete(crew: Crew, tmp_path: Path) -> None:
    """With BatchNorm's statistics fixed, one, two and three processes end with the same weights."""
    printed = []
    for ranks in (1, 2, 3):
        (folder := tmp_path / str(ranks)).mkdir()
        argv = ("--epochs", "4", "--fixed-statistics")
        printed.append(crew.run(looped, folder, *argv, world_size=ranks)[0]["printed"])
        for part in ("model", "ema"):
            for name, value in last(folder)[part].items():
                torch.testing.assert_close(
                    value, last(tmp_path / "1")[part][name], atol=1e-9, rtol=0
                )
    assert printed[0] == printed[1] == printed[2] and printed[0].count("epoch") == 4


def test_complete_with_one_image(crew: Crew, tmp_path: Path) -> None:
    """Rank 1 has none to evaluate."""
    script = without(COMPLETE, ("make_data(301, seed=2)", "make_data(1, seed=2)"))
    use = functools.partial(looped, script=script)
    first, _ = crew.run(use, tmp_path, "--epochs", "1", world_size=2)
    assert "epoch 0: F1 0.0000" in first["printed"] or "F1 1.0000" in first["printed"]


def test_complete_goes_on(crew: Crew, tmp_path: Path) -> None:
    """Ended after two epochs and started again, to the same bits, with BatchNorm as it is; without
    the states in its checkpoint, to others."""
    no_states = {"recipes": without(RECIPES, ("part.load_state_dict(state[name])", "pass"))}
    no_ema = {"script": without(COMPLETE, (', "ema": ema}', "}"))}
    printed = {}
    for name, lengths, changed in (
        ("whole", "4", {}), ("stopped", "24", {}), ("forgotten", "24", no_states),
        ("without EMA", "24", no_ema),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        for epochs in lengths:
            use = functools.partial(looped, **changed)
            answers = crew.run(use, tmp_path / name, "--epochs", epochs, world_size=2)
            printed[name] = answers[0]["printed"].splitlines()[-2:]
        assert not list(tmp_path.glob(f"{name}/*.tmp"))
    assert_same(last(tmp_path / "stopped"), last(tmp_path / "whole"))
    with pytest.raises(AssertionError):
        assert_same(last(tmp_path / "forgotten"), last(tmp_path / "whole"))
    assert printed["stopped"] == printed["whole"] != printed["without EMA"]


def test_complete_prints_the_score_of_the_saved_ema(crew: Crew, tmp_path: Path) -> None:
    """With BatchNorm as it is; not with the statistics of each rank, nor with an EMA that rank 0
    alone updates, nor with the statistics of the model sent in place of the EMA's."""
    update = "ema.update_parameters(model)"
    for name, change in (
        ("as it is", None),
        ("own statistics", ("same_buffers(ema)", "pass")),
        ("the model's statistics", ("same_buffers(ema)", "same_buffers(model)")),
        ("rank 0 alone", (update, f"rank or {update}")),
    ):
        (folder := tmp_path / name).mkdir()
        script = without(COMPLETE, change) if change else COMPLETE
        use = functools.partial(looped, script=script)
        answers = crew.run(use, folder, "--epochs", "2", world_size=2)
        scores = re.findall(r"F1 (\S+),", answers[0]["printed"])
        assert (score_of_saved(folder) == max(scores)) == (change is None), name


def test_complete_stops(crew: Crew, tmp_path: Path) -> None:
    """All ranks together, and started again it has nothing to do."""
    first, _ = crew.run(looped, tmp_path, "--epochs", "30", world_size=2)
    epochs = first["printed"].count("epoch")
    assert 3 < epochs < 30 and last(tmp_path)["best"]["waited"] == 2
    again, _ = crew.run(looped, tmp_path, "--epochs", "30", world_size=2)
    assert again["printed"] == ""
