"""doctor --without draws: the numbers that a step draws belong to its samples, on any number of
ranks; and what cannot be matched is named."""

from pathlib import Path

import against
import faults
import pytest
from crew import Crew
from test_against import compared, crew

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
            x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant={REENTRANT})
        return x


dist.init_process_group("""


def checkpointed(reentrant: str) -> tuple:
    more = ("import copy\n", "import copy\nimport torch.utils.checkpoint\n")
    words = ("dist.init_process_group(", CHECKPOINTED.replace("{REENTRANT}", reentrant), *more)
    return (*SEED, *words,
            "DistributedDataParallel(model)", "DistributedDataParallel(Twice(model))",
            "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))",
            "model = nn.Sequential(nn.Sequential(nn.Linear(8, 16), Noisy()), nn.ReLU(), "
            "nn.Sequential(nn.Linear(16, 4), Noisy()))",
            "body, head = list(model[0]", "body, head = list(model[0]")  # fmt: skip


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
    "a checkpoint": checkpointed("False"),
    "a reentrant checkpoint": checkpointed("True"),
    "an evaluation that draws": (*NOISY, *EVALUATED),
    "a loader that fetches ahead": (*NOISY, *AHEAD),
}


@pytest.mark.parametrize("what", SAME, ids=lambda what: what.replace(" ", "-"))
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.proof)])
def test_matched(what: str, size: int, crew: Crew, tmp_path: Path) -> None:
    if size == 3 and what.startswith("accumulation"):
        pytest.skip("4 is no multiple of 3")
    text = faults.changed(against.BASE, SAME[what])
    if size == 3:
        text = text.replace("16 // world_size", "12 // world_size").replace("64, 1", "60, 1")
    for without in ("draws", ""):
        comparison = compared(crew, text, tmp_path / (without or "none"), (1, size), without)["en"]
        kinds = {seen.kind for seen in comparison.seen}
        if "draws" in without:
            assert kinds <= {"same"}, comparison.text()
            assert comparison.largest < 1e-12
        else:  # it is there for a reason
            assert "script.py:" in comparison.text() and "same" != kinds, comparison.text()
