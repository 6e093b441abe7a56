"""What recipes.md promises: each recipe works, and is needed, on two processes, and a loop that has
nearly all of them trains alike on any number."""

import ast
import importlib
import io
import pickle
import random
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from crew import Crew
from harness import ROOT, assert_same
from test_convert import EXAMPLES, play, without
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader

RECIPES = (EXAMPLES / "recipes.py").read_text()


def joined(source: str = RECIPES) -> Any:
    """In a crew member: what a script defines, in a process group and with the same seed."""
    dist.init_process_group("gloo")
    dist.barrier()  # a rank that has left already would close a connection that is being made
    torch.manual_seed(0)
    return joined_names(source)


def joined_names(source: str = RECIPES) -> Any:
    """What a script defines."""
    names: dict[str, Any] = {"__name__": "recipes"}
    exec(compile(source, "recipes", "exec"), names)
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
    weights = np.ones(1000)  # as somebody counts classes
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
    steps = len(list(recipes.together(loader, dist.group.WORLD)))
    return sum(batches, []), steps


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable(crew: Crew, workers: int) -> None:
    first, second = on_two(crew, iterable, workers)
    assert sorted(first[0] + second[0]) == list(range(103))
    assert len(first[0]) != len(second[0]) and first[1] == second[1] > 5
    share = "islice(self.read(), first, None, self.world_size * workers)"
    first, second = on_two(crew, iterable, workers, point=share, instead="self.read()")
    assert sorted(first[0] + second[0]) == sorted([*range(103)] * 2 * max(1, workers))


def steps_together(source: str) -> int:
    """Of ranks with 3 and 5 batches."""
    return len(list(joined(source).together(range(3 + 2 * dist.get_rank()), dist.group.WORLD)))


def test_together(crew: Crew) -> None:
    """Equally many; without the common word, the rank that has more waits for ever: here it ends
    by what the other one has left."""
    assert on_two(crew, steps_together) == [3, 3]
    reduced = "dist.all_reduce(goes_on, dist.ReduceOp.MIN, group=cpu_group)"
    assert on_two(crew, steps_together, point=reduced, instead="pass") == [3, 5]


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


def tars(source: str, folder: str, workers: int, epochs: int = 2) -> list[list[int]]:
    """The records that a rank gets in each epoch, with workers that live on."""
    recipes = joined(source)
    files = sorted(map(str, Path(folder).glob("*.tar")))
    data = recipes.RecordFiles(files, recipes.read_tar, dist.get_rank(), dist.get_world_size())
    options = {"multiprocessing_context": "fork", "persistent_workers": True} if workers else {}
    loader = DataLoader(data, 4, num_workers=workers, collate_fn=number_of, **options)
    seen = []
    for epoch in range(epochs):
        data.epoch.fill_(epoch)
        seen.append(sum(loader, []))
    return seen


@pytest.mark.parametrize(("files", "workers"), [(6, 0), (6, 2), (1, 0), (3, 2)])
def test_files_of_records(crew: Crew, files: int, workers: int, tmp_path: Path) -> None:
    """Each record once, in an order of its own in each epoch, also with fewer files than readers:
    then these take turns."""
    for number in range(files):
        tar_of(tmp_path / f"{number}.tar", number * RECORDS)
    first, second = on_two(crew, tars, str(tmp_path), workers)
    for epoch in range(2):
        assert sorted(first[epoch] + second[epoch]) == list(range(files * RECORDS))
        assert first[epoch] != sorted(first[epoch])
    assert first[0] != first[1]
    if files == 6 and workers == 0:
        share = "files[group::groups]"
        first, second = on_two(crew, tars, str(tmp_path), workers, point=share, instead="files")
        assert sorted(first[0]) == sorted(second[0])
        fixed = {"point": "random.Random(self.epoch.item())", "instead": "random.Random(0)"}
        fixed_order, _ = on_two(crew, tars, str(tmp_path), workers, **fixed)
        assert sorted(fixed_order[0]) == sorted(fixed_order[1])
        assert sorted(first[0]) != sorted(fixed_order[0])
    if files == 1:
        turns = {"point": "turn, None, turns)\n        ex", "instead": "0, None, 1)\n        ex"}
        first, second = on_two(crew, tars, str(tmp_path), workers, **turns)
        assert sorted(first[0]) == sorted(second[0])


@pytest.mark.parametrize("kind", ["cut off", "cut between records", "empty", "none"])
def test_broken_files_of_records(crew: Crew, kind: str, tmp_path: Path) -> None:
    """The file is named; one without records is no mistake."""
    for number in range(4):
        tar_of(tmp_path / f"{number}.tar", number * RECORDS)
    broken = tmp_path / "2.tar"
    if kind == "empty":
        tarfile.open(broken, "w").close()
        first, second = on_two(crew, tars, str(tmp_path), 0)
        assert len(first[0] + second[0]) == 3 * RECORDS
        return
    size = {"cut off": 9000, "cut between records": 4 * 2048}.get(kind)
    broken.write_bytes(broken.read_bytes()[:size])
    folder = tmp_path / "elsewhere" if kind == "none" else tmp_path
    said = "no files" if kind == "none" else f"{broken} cannot be read: ReadError"
    with pytest.raises(AssertionError, match=re.escape(said)):
        on_two(crew, tars, str(folder), 0)
    if kind == "cut between records":
        first, second = on_two(crew, tars, str(folder), 0, point="!= bytes(512)", instead="is None")
        assert len(first[0] + second[0]) == 3 * RECORDS + 4


def resumed_inside(source: str, done: int) -> list[int]:
    """The images of a rank after so many of the epoch."""
    recipes = joined(source)
    sampler = recipes.ResumableSampler(range(40), seed=5, drop_last=True)
    sampler.set_epoch(3)
    sampler.done = done
    loader = DataLoader(range(40), 4, sampler=sampler)
    assert len(loader) == (20 - done) // 4
    return [image for batch in loader for image in batch.tolist()]


def test_resumed_inside_an_epoch(crew: Crew) -> None:
    for whole, rest in zip(
        on_two(crew, resumed_inside, 0), on_two(crew, resumed_inside, 8), strict=True
    ):
        assert whole[8:] == rest
    skips = {"point": "super().__iter__(), self.done", "instead": "super().__iter__(), 0"}
    for whole, rest in zip(
        on_two(crew, resumed_inside, 0), on_two(crew, resumed_inside, 8, **skips), strict=True
    ):
        assert whole[8:] != rest


def draw(batch: list[int]) -> list[float]:
    """From all three generators."""
    return [random.random(), np.random.rand(), torch.rand(()).item()]


def augmentations(source: str, workers: int) -> list[float]:
    joined(source).seed_epoch(0, 0, dist.get_rank())
    return next(iter(DataLoader(range(4), 4, num_workers=workers, collate_fn=draw)))


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers(crew: Crew, workers: int) -> None:
    first, second = on_two(crew, augmentations, workers)
    assert not set(first) & set(second)
    first, second = on_two(
        crew, augmentations, workers, point="1_000_003 + rank", instead="1_000_003"
    )
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


def gradient_of_tokens(source: str) -> Tensor:
    """Of a mean over 6 tokens, which two ranks hold as 4 and 2."""
    recipes = joined(source)
    model = nn.Linear(3, 1)
    inputs = torch.arange(18.0).view(6, 3)
    if dist.get_world_size() > 1:
        inputs = inputs[[slice(0, 4), slice(4, 6)][dist.get_rank()]]
    ddp = DistributedDataParallel(model)
    total = ddp(inputs).square().sum()
    recipes.mean_over_all(total, torch.tensor(float(len(inputs)))).backward()
    return model.weight.grad


def test_tokens(crew: Crew) -> None:
    (alone,) = crew.run(gradient_of_tokens, RECIPES, world_size=1)
    for gradient in on_two(crew, gradient_of_tokens):
        assert torch.allclose(gradient, alone)
    for gradient in on_two(crew, gradient_of_tokens, point="dist.all_reduce(everywhere)",
                           instead="everywhere *= dist.get_world_size()"):  # fmt: skip
        assert not torch.allclose(gradient, alone, rtol=0.01)


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


def decisions(source: str) -> tuple[list[float], list[int]]:
    """The mean loss, and the epochs without a better one: rank 0 alone becomes better."""
    recipes = joined(source)
    best = recipes.Best(patience=2)
    means, waited = [], []
    for epoch in range(4):
        total = 2.0 + epoch if dist.get_rank() else 2.0 - 0.5 * epoch
        means.append(recipes.mean_over_ranks(total, 1 + 2 * dist.get_rank(), "cpu"))
        assert best.improved(-means[-1]) == (best.waited == 0)
        waited.append(best.waited)
    return means, waited


def test_plateau_and_best(crew: Crew) -> None:
    first, second = on_two(crew, decisions)
    assert first == second == ([1.0, 1.125, 1.25, 1.375], [0, 1, 2, 3])
    (means, waited), others = on_two(crew, decisions, point="dist.all_reduce(sums)")
    assert means != others[0] and waited != others[1]


def test_best_of_no_number() -> None:
    """A score that is NaN is not the best, and does not hide the next one."""
    best = joined_names().Best(patience=2)
    assert [best.improved(score) for score in (1.0, float("nan"), 2.0)] == [True, False, True]


def metrics(source: str) -> Tensor:
    """Macro-F1 of three classes and AUC of class 0, over 31 images that are sorted by class."""
    recipes = joined(source)
    targets = torch.arange(31) * 3 // 31
    scores = torch.rand(31, 3, generator=torch.Generator().manual_seed(3))
    scores[torch.arange(31), targets] += 0.3
    mine = torch.arange(31).chunk(dist.get_world_size())[dist.get_rank()]
    f1 = recipes.macro_f1(targets[mine], scores[mine].argmax(1), 5)  # two of them do not occur

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
    parts = {"model": model, "scheduler": scheduler, "optimizer": optimizer}
    parts["best"] = recipes.Best(0)
    start = recipes.load(file, parts) if Path(file).exists() else 0
    ddp_model = DistributedDataParallel(model)
    for epoch in range(start, epochs):
        recipes.seed_epoch(0, epoch, dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            ddp_model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
        scheduler.step()
        recipes.save(file, epoch + 1, parts)
    dist.barrier()
    return flat(model)


def test_checkpoint(crew: Crew, tmp_path: Path) -> None:
    expected = on_two(crew, trained, 4, str(tmp_path / "whole.pt"))[0]
    for point, same in (("", True), ("part.load_state_dict(state[name])", False)):
        file = str(tmp_path / f"resumed-{same}.pt")
        on_two(crew, trained, 2, file)
        for weights in on_two(crew, trained, 4, file, point=point, instead="pass"):
            assert torch.equal(weights, expected) == same
    assert not list(tmp_path.glob("*.tmp"))


def slowest(source: str) -> list[float]:
    return joined(source).seconds_by_rank(1.0 + dist.get_rank(), torch.device("cpu"))


def test_slowest_rank(crew: Crew) -> None:
    assert on_two(crew, slowest) == [[1.0, 2.0], [1.0, 2.0]]
    assert on_two(crew, slowest, point="dist.all_reduce(each)") == [[1.0, 0.0], [0.0, 2.0]]


def profiled(source: str, folder: str) -> None:
    with joined(source).profiler(folder) as steps:
        for _ in range(31):
            torch.ones(3).sum()
            steps.step()


def test_profiler(crew: Crew, tmp_path: Path) -> None:
    on_two(crew, profiled, str(tmp_path / "traces"))
    traces = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert traces == ["rank0.json.gz", "rank1.json.gz"]


def test_groups_and_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and biases do not decay; mixed images and targets are those of both."""
    monkeypatch.syspath_prepend(EXAMPLES)
    recipes = importlib.import_module("recipes")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = SGD(recipes.without_decay(model, 0.5), lr=1.0)
    sizes = [[len(weight.shape) for weight in group["params"]] for group in optimizer.param_groups]
    assert sizes == [[2], [1, 1, 1]]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    alike = pickle.loads(pickle.dumps(recipes.Mixing(3)))  # as for workers that are not forked
    images, targets = alike([(torch.full((3, 8, 8), float(n)), n) for n in range(3)])
    assert images.shape == (3, 3, 8, 8) and targets.shape == (3, 3)
    torch.testing.assert_close(targets.sum(1), torch.ones(3))


# --------------------------------------------------------------------------------- the whole loop

COMPLETE = (EXAMPLES / "complete.py").read_text()


def looped(folder: Path, *argv: str, source: str = COMPLETE) -> dict:
    sys.path.insert(0, str(EXAMPLES))  # it imports its neighbours
    return play(source, folder, argv=argv)


def last(folder: Path) -> dict:
    return torch.load(folder / "latest.pt", weights_only=True)


def test_complete(crew: Crew, tmp_path: Path) -> None:
    """With BatchNorm's statistics fixed, one, two and three processes end with the same weights;
    killed after two epochs it goes on, with BatchNorm as it is, to the same bits."""
    printed = []
    for ranks in (1, 2, 3):
        (folder := tmp_path / str(ranks)).mkdir()
        argv = ("--epochs", "4", "--fixed-statistics")
        printed.append(crew.run(looped, folder, *argv, world_size=ranks)[0]["printed"])
        for name, value in last(folder)["model"].items():
            torch.testing.assert_close(
                value, last(tmp_path / "1")["model"][name], atol=1e-9, rtol=0
            )
    assert printed[0] == printed[1] == printed[2] and printed[0].count("epoch") == 4

    for name, lengths in {"whole": "4", "stopped": "24"}.items():
        (tmp_path / name).mkdir()
        for epochs in lengths:
            crew.run(looped, tmp_path / name, "--epochs", epochs, world_size=2)
    assert_same(last(tmp_path / "stopped"), last(tmp_path / "whole"))


def test_complete_stops(crew: Crew, tmp_path: Path) -> None:
    """All ranks together, and started again it has nothing to do."""
    first, _ = crew.run(looped, tmp_path, "--epochs", "30", world_size=2)
    epochs = first["printed"].count("epoch")
    assert 3 < epochs < 30 and last(tmp_path)["best"]["waited"] == 2
    again, _ = crew.run(looped, tmp_path, "--epochs", "30", world_size=2)
    assert again["printed"] == ""


def test_pages_show_all_recipes() -> None:
    found = [n for n in ast.parse(RECIPES).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    for language in ("en", "zh"):
        page = (ROOT / f"docs/{language}/recipes.md").read_text()
        shown = re.findall(r"""/recipes.py\S* ["']code (\w+)""", page)
        assert sorted(shown) == sorted(node.name for node in found)
