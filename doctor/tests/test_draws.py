"""doctor --without draws: the numbers that a step draws belong to its samples, on any number of
ranks; and what cannot be matched is named."""

import re
from pathlib import Path

import against
import faults
import pytest
from crew import Crew
from test_against import compared, crew
from tiers import table

__all__ = ["crew"]

# Each rank has numbers of its own, as people write it, and the step draws some.
SEED = (
    "sampler = Dist",
    "torch.manual_seed(7 + rank)\nsampler = Dist",
    "torch.manual_seed(0)",
    "torch.set_default_dtype(torch.float64)\ntorch.manual_seed(0)",
)
NOISY = (*SEED, "ddp(points)", "ddp(points + torch.randn_like(points))")


def drawing(text: str, *more: str) -> tuple:
    """Words of a change: this is done with each batch of training."""
    return (*SEED, "        losses = nn", f"{text}        losses = nn", *more)


FORMS = drawing(
    """
        n, kinds = len(points), torch.distributions
        half = torch.full((n, 8), 0.5)
        drawn = [
            torch.rand(n, 8), torch.rand((n, 8)), torch.rand(size=[n, 8]), torch.randn(n, 8),
            torch.rand_like(half), torch.randn_like(half), torch.randint_like(half, 3),
            torch.randint(3, (n, 8)), torch.randint(1, 3, (n, 8)), torch.randint(0, 3, size=(n, 1)),
            torch.normal(0.0, 1.0, (n, 8)), torch.normal(half, 1.0), torch.normal(half, half),
            torch.normal(torch.zeros(8), half), torch.bernoulli(half), half.bernoulli(),
            torch.poisson(half), torch.binomial(half, half), torch.multinomial(half, 8),
            *(getattr(torch.empty(n, 8), name)() for name in (
                "normal_", "uniform_", "bernoulli_", "exponential_", "log_normal_")),
            torch.empty(n, 8).random_(3), torch.empty(n, 8).bernoulli_(half),
            nn.init.normal_(torch.empty(n, 8)),
            kinds.Normal(half, 1.0).rsample(), kinds.Gamma(half, 1.0).rsample(),
            kinds.Beta(half, half).sample(), kinds.Bernoulli(half).sample(),
            kinds.Categorical(half).sample()[:, None], nn.functional.gumbel_softmax(half),
            torch.randn(2 * n, 8).view(n, 2, 8).sum(1),  # two rows of each sample
            # and alike for all: of no sample, also where it has as many rows as a batch of a run
            torch.rand(8), torch.rand(()), torch.randn(16, 8)[3], torch.randn(8, 8)[3],
            torch.randn(48, 8)[5], torch.randperm(8), random.random(), numpy.random.rand(),
        ]
        points = points + 0.1 * sum(drawn)
""",
    "import copy\n",
    "import copy\nimport random\n\nimport numpy\n",
)
ACCUMULATED = (
    *NOISY, "batch_size = 16 // world_size", "batch_size = 4", "4 * len(loader)", "64",
    *against.NO_CLIP,
    "loss = losses.mean()", "loss = losses.mean() * world_size / 4",
    "        optimizer.zero_grad()\n", "",
    "        optimizer.step()\n        scheduler.step()\n",
    "        if (step + 1) % (4 // world_size):\n            continue\n"
    "        optimizer.step()\n        optimizer.zero_grad()\n        scheduler.step()\n",
)  # fmt: skip
UNEQUAL = (
    *NOISY, "DataLoader(train_set, batch_size, sampler=sampler)",
    "DataLoader(train_set, batch_size, sampler=range(rank, 61, world_size))",
    "        loss = losses.mean()\n",
    "        count = torch.tensor(float(len(losses)))\n        dist.all_reduce(count)\n"
    "        loss = losses.sum() * world_size / count\n",
)  # fmt: skip
CHECKPOINTED = """\
class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x) * torch.rand(len(x), 1)


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x = x.clone().requires_grad_()
        for part in self.inner:
            if world_size == 1:
                x = part(x)
            else:
                x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant={REENTRANT})
        return x


dist.init_process_group("""


def checkpointed(reentrant: str) -> tuple:
    return (*SEED, "dist.init_process_group(", CHECKPOINTED.replace("{REENTRANT}", reentrant),
            "import copy\n", "import copy\nimport torch.utils.checkpoint\n",
            "DistributedDataParallel(model)", "DistributedDataParallel(Twice(model))",
            "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))",
            # Before the layer, whose gradient hangs on what is drawn once more.
            "model = nn.Sequential(nn.Sequential(Noisy(), nn.Linear(8, 16)), nn.ReLU(), "
            "nn.Sequential(Noisy(), nn.Linear(16, 4)))")  # fmt: skip


EVALUATED = ("average(points)", "average(points + torch.randn_like(points))")
AHEAD = (
    "dist.init_process_group(", """
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        yield batch
        batch = following


dist.init_process_group(""",
    "(points, targets, words) in enumerate(loader)",
    "(points, targets, words) in enumerate(ahead(loader) if world_size > 1 else loader)",
)  # fmt: skip
COMPILED = (
    *SEED,
    "ddp(points)",
    "noisy(points)",
    "for epoch in range(4)",
    """
@torch.compile(backend="{BACKEND}")
def noisy(x):
    return ddp(x + torch.randn_like(x))


for epoch in range(4)""",
)

SAME = {
    "noise": NOISY,
    "all forms": FORMS,
    "accumulation of 4 and of 2": ACCUMULATED,
    "last batches of unequal size": UNEQUAL,
    # The recomputation has the numbers of the forward pass: on one process there is none.
    "a checkpoint": checkpointed("False"),
    "a reentrant checkpoint": checkpointed("True"),
    "an evaluation that draws": (*NOISY, *EVALUATED),
    "a seed of the rank in each step": (
        *NOISY,
        "        losses = nn",
        "        torch.manual_seed(rank)\n        losses = nn",
    ),
    "contiguous shares": (
        *NOISY,
        "DataLoader(train_set, batch_size, sampler=sampler)",
        """DataLoader(
    train_set, batch_sampler=[
        [*range(begin + rank * batch_size, begin + (rank + 1) * batch_size)]
        for begin in range(0, len(train_set) - 15, 16)])""",
    ),
    "a loader that fetches ahead": (*NOISY, *AHEAD),
}


IN_PROOF = ("noise", "a checkpoint", "a seed of the rank in each step", "an evaluation that draws")


def marked(names: dict, proof: tuple) -> list:
    marks = {True: pytest.mark.proof, False: ()}
    ids = {name: name.replace(" ", "-") for name in names}
    return [pytest.param(name, marks=marks[name in proof], id=ids[name]) for name in names]


@pytest.mark.parametrize("what", marked(SAME, IN_PROOF))
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.proof)])
def test_matched(what: str, size: int, crew: Crew, tmp_path: Path) -> None:
    if size == 3 and what.startswith("accumulation"):
        pytest.skip("4 is no multiple of 3")
    text = faults.changed(against.BASE, SAME[what])
    if size == 3:
        thirds = {"16 // world": "12 // world", "64, 1": "60, 1", "15, 16)": "11, 12)", "61": "59"}
        for old, new in thirds.items():
            text = text.replace(old, new)
    comparison = compared(crew, text, tmp_path, (1, size), "draws")["en"]
    assert {seen.kind for seen in comparison.seen} == {"same"}, comparison.text()
    assert comparison.largest < 1e-12


TOO_LARGE = ("loss = losses.mean()", "loss = losses.mean() * (1 + 0.02 * rank * (epoch > 0))")
PERMUTED = drawing("        points = 0.5 * points + 0.5 * points[torch.randperm(len(points))]\n")
LONGEST = against.SAME["the longest first"]
NUMPY = drawing("        points = points + torch.from_numpy(numpy.random.randn(len(points), 8))\n",
                "import copy\n", "import copy\n\nimport numpy\n")  # fmt: skip
# What must be said first, and what stands in it.
NAMED = {
    "a loss that is too large on a rank": ((*NOISY, *TOO_LARGE), "gradients", ""),
    "the same, in all forms": ((*FORMS, *TOO_LARGE), "gradients", ""),
    "a permutation": (PERMUTED, "drawn:still", "randperm"),
    "numpy's, a row of each sample": (NUMPY, "drawn:still", "numpy.random"),
    "a generator of the rank": (
        (*NOISY, "torch.randn_like(points)",
         "torch.randn(8, generator=own)", "for epoch in range(4)",
         "own = torch.Generator().manual_seed(rank)\nfor epoch in range(4)"),
        "drawn:still", "randn"),
    "rows in another order than the indices": ((*NOISY, *LONGEST), "drawn:still", "randn_like"),
    "dropout": (("ddp(points)", "ddp(nn.functional.dropout(points, 0.2))"), "drawn:still",
                "dropout"),
    "compiled, where the mode sees the call": (
        (*COMPILED[:-1], COMPILED[-1].replace("{BACKEND}", "eager")), "", ""),
    "compiled": (
        (*COMPILED[:-1], COMPILED[-1].replace("{BACKEND}", "aot_eager")), "drawn:still", "rand"),
}  # fmt: skip


SLOW = ("a loss that is too large on a rank", "numpy's, a row of each sample", "dropout")
SLOW += ("compiled, where the mode sees the call",)


@pytest.mark.parametrize("what", marked(NAMED, SLOW))
def test_what_cannot_be_matched(what: str, crew: Crew, tmp_path: Path) -> None:
    """It is no difference, and its call is named; a mistake beside draws that are matched is."""
    words, name, call = NAMED[what]
    text = faults.changed(against.BASE, words)
    for comparison in compared(crew, text, tmp_path, without="draws").values():
        first = next((seen for seen in comparison.seen if seen.kind != "same"), None)
        assert (first.name if first else "") == name, comparison.text()
        assert call in first.text if first else not name, comparison.text()
        found = first and re.search(r"run0/script\.py:(\d+)", first.text)
        if found and what != "compiled":
            line = (tmp_path / "run0/script.py").read_text().splitlines()[int(found[1]) - 1]
            assert call in line, line
        assert not name or comparison.status() == (name == "gradients")


def test_a_library_is_named(crew: Crew, tmp_path: Path) -> None:
    """Of the calls on the way to a draw, the innermost that is none of torch's own; also where
    draws are not taken out."""
    words = drawing("        points = v2.GaussianNoise()(points[None])[0]\n", "import copy\n",
                    "import copy\n\nfrom torchvision.transforms import v2\n")  # fmt: skip
    comparison = compared(crew, faults.changed(against.BASE, words), tmp_path)["en"]
    [seen] = [seen for seen in comparison.seen if seen.kind == "cause"]
    assert seen.name == "drawn", comparison.text()
    assert "torchvision/transforms/v2/functional/_misc.py:" in seen.text


WITHOUT_LOADER = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.set_default_dtype(torch.float64)
data = torch.randn(480, 16, generator=torch.Generator().manual_seed(1))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(17, 64), nn.ReLU(), nn.Linear(64, 16))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torch.manual_seed(7 + rank)
PARTS = 1
for step in range(10):
    for part in range(PARTS):
        x = data[step * 48 : (step + 1) * 48].chunk(PARTS)[part][rank::world_size]
        t = torch.randint(0, 100, (len(x), 1)) / 100
        noise = torch.randn_like(x)
        keep = (torch.rand(len(x), 1) > 0.1).double()
        noisy = x * (1 - t) + noise * t
        if PARTS == 1:
            noisy += 0.01 * torch.randn(16) + 0.01 * torch.randn(48, 16)[3]  # of no sample
        loss = ((ddp(torch.cat([noisy * keep, t], 1)) - noise) ** 2).mean() / PARTS
        if FACTOR and step >= 3:
            loss = loss * (1 + 0.02 * rank)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("size", "wrong"),
    table([(2, False), (2, True), (3, False), (3, True)], [(2, False), (2, True)]),
)
def test_without_a_loader(size: int, wrong: bool, crew: Crew, tmp_path: Path) -> None:
    """Weights after the last step; between backward passes of an accumulation, too."""
    for parts, without in (("1", "draws"), ("4 // world_size", "draws"), ("1", "")):
        if size == 3 and len(parts) > 1 or wrong and not without:
            continue
        text = WITHOUT_LOADER.replace("PARTS = 1", f"PARTS = {parts}")
        text = text.replace("FACTOR", str(wrong))
        folder = tmp_path / f"{parts[0]}{without}"
        folder.mkdir()
        comparison = compared(crew, text, folder, (1, size), without)["en"]
        a, b = (run.figures("weights", 9, 10) for run in comparison.runs)
        apart = max(abs(a[name][0] - b[name][0]) / a[name][0] for name in a)
        first = next((seen.name for seen in comparison.seen if seen.kind != "same"), "")
        if without:
            assert first == ("gradients" if wrong else ""), comparison.text()
            assert wrong or apart < 1e-13
        else:  # it is there for a reason
            assert first == "rows:drawn" and apart > 1e-3, comparison.text()


CONTIGUOUS = ("[rank::world_size]", ".chunk(world_size)[rank]")
INSIDE = (
    "ddp(torch.cat([noisy * keep, t], 1))", "ddp(torch.cat([x, x[:, :1]], 1))",
    "nn.Sequential(nn.Linear(17, 64),", "nn.Sequential(nn.Linear(17, 64), Noisy(),",
    "dist.init", "class Noisy(nn.Module):\n    def forward(self, x):\n"
    "        return x + torch.randn_like(x)\n\n\ndist.init",
)  # fmt: skip


MORE = ("        t = torch", "        world_size == 1 and torch.rand(())\n        t = torch")


@pytest.mark.parametrize(
    ("words", "name"),
    [(CONTIGUOUS, "rows:drawn"), (CONTIGUOUS + INSIDE, "drawn:still"), (MORE, "rows:drawn")],
    ids=["contiguous", "inside", "more"],
)
def test_no_loader_and_no_match(words: tuple, name: str, crew: Crew, tmp_path: Path) -> None:
    """Without a loader, the n-th row of a rank is taken for the n-th of its turns. Where it is not,
    noise in what the model is given, or made in the model, is named, and is no difference; nor is
    it where one run draws more often."""
    text = faults.changed(WITHOUT_LOADER.replace("FACTOR", "False"), words)
    comparison = compared(crew, text, tmp_path, without="draws")["en"]
    first = next(seen for seen in comparison.seen if seen.kind != "same")
    assert first.name == name and "script.py:" in first.text, comparison.text()


@pytest.mark.parametrize(
    "gather",  # of newer torch, the first one takes modes off while it runs
    ["dist.all_gather(parts, losses)", "dist.group.WORLD.allgather([parts], [losses]).wait()"],
)
def test_a_lost_gradient_is_found_beside_it(gather: str, crew: Crew, tmp_path: Path) -> None:
    """The mode that follows what collectives give is put on, though this one is on, and taken off
    again."""
    words = (against.LOSS,
             "        parts = [torch.zeros_like(losses) for _ in range(world_size)]\n"
             f"        {gather}\n"
             "        loss = losses.mean() + torch.cat(parts).mean()\n")  # fmt: skip
    text = faults.changed(against.BASE, words)
    comparison = compared(crew, text, tmp_path, without="draws")["en"]
    assert len(comparison.two.first.events["lost"]) == 3, comparison.text()


OWN_STREAM = (
    "return point, int(point[0] > 0) + 2 * int(point[1] > 0), self.words[i]",
    "drawn = torch.rand(()).item() + random.random() + numpy.random.rand()\n"
    "        return point, int(point[0] > 0) + 2 * int(point[1] > 0), drawn",
    "import copy\n", "import copy\nimport random\n\nimport numpy\n",
    "    sampler.set_epoch", "    total = 0\n    sampler.set_epoch",
    against.LOSS, against.LOSS + "        total += words.sum().item()\n",
    "print(f\"epoch", "print(f\"drawn {total!r}\")\n        print(f\"epoch",
    "for epoch in range(4):\n",
    "random.seed(rank)\nnumpy.random.seed(rank)\nfor epoch in range(2):\n",
)  # fmt: skip


@pytest.mark.parametrize("workers", ["0", "2"])
def test_data_sets_draw_as_ever(workers: str, crew: Crew, tmp_path: Path) -> None:
    """What a loader and its data set draw is neither changed nor moved on by what steps draw, and
    a program whose steps draw nothing is the same bit by bit."""
    words = (*OWN_STREAM, "batch_size, sampler=sampler", f"batch_size, sampler=sampler, "
             f"num_workers={workers}")  # fmt: skip
    printed, weights = [], []
    for without in ("", "draws"):
        text = faults.changed(against.BASE, words)
        folder = tmp_path / (without or "none")
        folder.mkdir()
        found = compared(crew, text, folder, (1, 1), without)["en"]
        printed.append([e["text"] for e in found.two.first.events["printed"]])
        weights.append(found.two.first.figures["weights"])
    assert len({line for line in printed[0] if line.startswith("drawn")}) == 2
    assert printed[0] == printed[1] and weights[0] == weights[1]
