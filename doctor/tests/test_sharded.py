"""Models that are divided among ranks, FSDP2's above all: mistakes that people make there, and
right programs that look like them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
import torch
from cases import DOCTOR, TORCHRUN
from crew import Crew
from examined import assert_all_ran, examined_text
from harness import run

from ddp_doctor.recorder.notes import AGAINST, notes

FSDP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

WIDTH, VOCAB, PAD = 8, 16, 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.register_buffer("places", torch.arange(7) / 7, persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places[:, None]
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


class LoRA(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.inner(x) + self.b(self.a(x))


def add_lora(model):
    for n, block in enumerate(model.blocks):
        model.blocks[n] = LoRA(block)


def loss_of(model, tokens):
    return nn.functional.cross_entropy(
        model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD
    )


def shard(model):
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
train_set = TensorDataset(torch.randint(1, VOCAB, (64, 8)))
val_set = TensorDataset(torch.randint(1, VOCAB, (16, 8)))
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=4, sampler=sampler)
val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world_size)), batch_size=4)
model = Model()
shard(model)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
torch.manual_seed(rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for n, (tokens,) in enumerate(loader):
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    totals = torch.zeros(2)
    with torch.no_grad():
        for (tokens,) in val_loader:
            totals += torch.tensor([loss_of(model, tokens) * len(tokens), len(tokens)])
    dist.all_reduce(totals)
dist.destroy_process_group()
"""
MADE = "model = Model()\nshard(model)\n"
BACKWARD = "        loss_of(model, tokens).backward()\n"
STEP = "        optimizer.step()\n"
MESH = 'init_device_mesh("cpu", (world_size,))'
LATE = (MADE, "model = Model()\nshard(model)\nadd_lora(model)\n")
EARLY = (MADE, "model = Model().requires_grad_(False)\nadd_lora(model)\nshard(model)\n")
# A frozen base stays gathered: its forward pass is of no gradient.
BESIDE = (
    MADE,
    "class Adapted(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.base = Model().requires_grad_(False)\n"
    "        fully_shard(self.base)\n"
    "        self.adapter = nn.Linear(VOCAB, VOCAB)\n\n"
    "    def forward(self, tokens):\n"
    "        x = self.base(tokens)\n"
    "        return x + self.adapter(x)\n\n\n"
    "model = Adapted()\n",
)
AVERAGED = (
    STEP, "        for p in model.adapter.parameters():\n"
    "            dist.all_reduce(p.grad)\n            p.grad /= world_size\n" + STEP,
)  # fmt: skip
EMPTIED = (
    'with torch.device("meta"):\n'
    "    model = Model()\n"
    "shard(model)\n"
    'model.to_empty(device="cpu")\n'
    "options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)\n"
    "whole = Model().state_dict() if rank == 0 else {}\n"
    "set_model_state_dict(model, whole, options=options)\n"
)
COPIED = EMPTIED + "model.places.copy_(torch.arange(7) / 7)\n"
SENT = EMPTIED + (
    "if rank == 0:\n    model.places.copy_(torch.arange(7) / 7)\ndist.broadcast(model.places, 0)\n"
)
TIED = (
    "        self.register", "        self.head.weight = self.tokens.weight\n        self.register",
)  # fmt: skip
# Without the whole model as a unit, which refuses two that share a weight.
UNITS = "model = Model()\nfor unit in ({}, *model.blocks):\n    fully_shard(unit)\n"
COPY = "model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())\n"
WHOLE = (
    "shard(model)\n", "", "set_model_state_dict(model, whole, options=options)\n",
    "model.load_state_dict(Model().state_dict())\n",
    "optimizer = ", "model = nn.parallel.DistributedDataParallel(model)\noptimizer = ",
)  # fmt: skip
LACKED = (  # by the checkpoint
    "model.load_state_dict(Model().state_dict())\n",
    "whole = Model().state_dict()\ndel whole['head.weight']\n"
    "model.load_state_dict(whole, strict=False)\n",
)
TIES = 'cpu")\n', 'cpu")\nmodel.head.weight = model.tokens.weight\n'
FSDP1 = (
    MADE,
    'mesh = init_device_mesh("cpu", (2, 1))\n'
    "model = FullyShardedDataParallel(Model(), device_mesh=mesh, device_id=torch.device('cpu'),\n"
    "    sharding_strategy=ShardingStrategy.HYBRID_SHARD, use_orig_params=True)\n",
)
HSDP = (MESH, 'init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("copy", "part"))')
PARTS = (
    "        norm = torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()\n"
)
BY_HAND = "        for p in model.parameters():\n            p.grad *= min(1, 0.1 / norm.item())\n"
SUMMED = "        norm = norm.square()\n        dist.all_reduce(norm)\n        norm = norm.sqrt()\n"
ODD = ("(16, 8)))\nsampler", "(15, 8)))\nsampler")
PER_STEP = (
    BACKWARD + STEP + "        optimizer.zero_grad()\n",
    "        model.set_requires_gradient_sync(n % 2 == 1)\n"
    "        (loss_of(model, tokens) / 2).backward()\n"
    "        if n % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
)
# Changes of it; the finding, and what must not be checked.
PROGRAMS = {
    "right": ((), "", "clipped no_averaging unequal_gradients drifting_weights unequal_buffers"),
    "lora before": (EARLY, "", ""),
    "lora after": (LATE, "drifting_weights:whole", ""),
    "lora after, frozen": (
        (*LATE, "Model()\nshard", "Model().requires_grad_(False)\nshard"),
        "drifting_weights:whole", ""),
    "beside a gathered base": (BESIDE, "drifting_weights:whole", ""),
    "beside a gathered base, averaged": ((*BESIDE, *AVERAGED), "", ""),
    "a mesh of one rank": (FSDP1, "no_averaging:mesh", "clipped unequal_buffers"),
    "a mesh of one rank, fully_shard": (
        (*HSDP, '"part"))', '"part"))["part"]'), "no_averaging:mesh", ""),
    "a mesh of two rows": (HSDP, "", "clipped unequal_buffers"),
    "all in one group": (
        (*FSDP1, "HYBRID_SHARD", "NO_SHARD", "(2, 1)", "(2,)"), "", "clipped unequal_buffers"),
    "replicas": (HSDP, "", "clipped unequal_buffers"),
    "replicas with other weights": (
        (*HSDP, "model = M", "torch.manual_seed(rank // 2)\nmodel = M"), "no_averaging:start", ""),
    "replicas with other rates": (
        (*HSDP, "0.01)", "0.01 * (1 + rank // 2))"), "drifting_weights:rates", ""),
    "reduced after each part": (
        (*PER_STEP, "        model.set_requires_gradient_sync(n % 2 == 1)\n", ""),
        "no_sync:sharded", ""),
    "reduced once": (PER_STEP, "", ""),
    "reduced once, too early": ((*PER_STEP, "n % 2 == 1)", "n % 2 == 0)"),
                                "lost_gradient:held", ""),
    "never reduced": (
        (BACKWARD, "        model.set_requires_gradient_sync(False)\n" + BACKWARD),
        "untrained:held", ""),
    "an early optimizer": (
        ("shard(model)\nopt", "opt", "torch.manual_seed(rank)\n", "shard(model)\n"),
        "untrained:other", ""),
    "clipped": ((STEP, "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n" + STEP),
                "", "no_averaging unequal_gradients drifting_weights unequal_buffers"),
    "a score of each rank's own": (
        ("    dist.all_reduce(totals)\n", "    print(totals[0] / totals[1])\n"),
        "wrong_evaluation:share", ""),
    "shares that are filled up": (
        (*ODD, "range(rank, len(val_set), world_size)", "list(DistributedSampler(val_set))"),
        "wrong_evaluation", ""),
    "shares that are filled up, and gathered": (
        (*ODD, "range(rank, len(val_set), world_size)", "list(DistributedSampler(val_set))",
         "    dist.all_reduce(totals)\n",
         "    parts = [torch.zeros(2) for _ in range(world_size)]\n"
         "    dist.all_gather(parts, totals)\n"), "wrong_evaluation:gathered", ""),
    "shares of which what is filled up does not count": (
        (*ODD, "range(rank, len(val_set), world_size)", "list(DistributedSampler(val_set))",
         "    totals = torch.zeros(2)\n",
         "    totals, left = torch.zeros(2), len(range(rank, len(val_set), world_size))\n",
         "            totals += ", "            tokens = tokens[:left]\n"
         "            left -= len(tokens)\n            totals += "), "", ""),
    "all of it, by each rank": (
        ("range(rank, len(val_set), world_size)", "range(len(val_set))"),
        "wrong_evaluation:everyone", ""),
    "clipped by value": (
        (STEP, "        nn.utils.clip_grad_value_(model.parameters(), 0.002)\n" + STEP), "", ""),
    "clipped by hand": ((STEP, PARTS + SUMMED + BY_HAND + STEP), "", ""),
    "clipped by a norm of its own, by hand": (
        (STEP, PARTS + BY_HAND + STEP), "clipped:own", ""),
    "clipped by a norm of its own": (
        (STEP, PARTS + "        nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)\n"
         + STEP), "clipped:own", ""),
    "a buffer that nobody has set": ((MADE, EMPTIED), "half_loaded", ""),
    "a buffer that is set": ((MADE, COPIED), "", ""),
    "a buffer that is sent": ((MADE, SENT), "", ""),
    "a buffer that is set, and was so by chance": (
        (MADE, EMPTIED.replace("model.to", "torch.empty_like = torch.zeros_like\nmodel.to")
         + "model.places.data[:] = torch.zeros(7)\n"), "", ""),
    "a parameter that nobody has set": (
        (MADE, COPIED, *WHOLE, *LACKED), "half_loaded", ""),
    "a parameter that nobody has set, nor used": (
        (MADE, COPIED, *WHOLE, *LACKED, "self.head(x)", "x @ self.tokens.weight.T",
         "Parallel(model)", "Parallel(model, find_unused_parameters=True)"), "", ""),
    "a buffer that differs": (
        (MADE, EMPTIED + "model.places.fill_(4.7 * (1 - rank))\n"),
        "drifting_weights:buffers", ""),
    "untied": ((*TIED, MADE, COPIED, *WHOLE), "half_loaded:untied", ""),
    "tied again": ((*TIED, MADE, COPIED, *WHOLE, *TIES), "", ""),
    "tied by fully_shard": ((*TIED, MADE, COPIED), "", ""),
    "in two units": (
        (*TIED, MADE, UNITS.format("model.tokens, model.head")), "half_loaded:untied", ""),
    "in one unit": (
        (*TIED, MADE, UNITS.format("[model.tokens, model.head]") + "fully_shard(model)\n"), "", ""),
    "in two units, copied": (
        (*TIED, MADE, UNITS.format("model.tokens, model.head"), "for unit", COPY + "for unit"),
        "", ""),
}  # fmt: skip
FOUR = ("replicas", "replicas with other weights", "replicas with other rates")
ALIKE = {
    "lora after", "beside a gathered base, averaged", "a mesh of one rank, fully_shard",
    "replicas with other rates", "clipped by a norm of its own", "tied by fully_shard",
    "all in one group", "an early optimizer", "a buffer that is sent", "in two units, copied",
    "in one unit", "never reduced", "a buffer that is set", "a mesh of two rows",
    "clipped by hand",
    "all of it, by each rank", "shares of which what is filled up does not count",
    "shares that are filled up, and gathered",
}  # fmt: skip


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(4) as members:
        yield members


ROWS = [
    pytest.param(
        what, marks=[*[pytest.mark.right] * (not finding), *[pytest.mark.proof] * (what in ALIKE)]
    )
    for what, (_, finding, _) in PROGRAMS.items()
]


@pytest.mark.parametrize("what", ROWS, ids=lambda what: what.replace(" ", "-"))
def test_divided(what: str, crew: Crew, tmp_path: Path) -> None:
    words, finding, unchecked = PROGRAMS[what]
    text = faults.changed(FSDP, words)
    report = examined_text(crew, text, tmp_path, 4 if what in FOUR else 2)["en"]
    assert_all_ran(tmp_path, report)
    names = [found.name for found in report.findings]
    assert names[:1] == [finding] * bool(finding), report.findings
    # Of what nobody has set, it is chance whether ranks have the same.
    rest = {"drifting_weights:buffers"} if finding == "half_loaded" else set()
    assert set(names[1:]) <= rest, report.findings
    # Alone, or in fewer batches, a rank would wait for the others for ever.
    evaluates = r"evaluate on rank 0|[Ee]valuate range\("
    assert not any(re.search(evaluates, found.advice) for found in report.findings)
    left = report.not_checked.keys() - {"unequal_counts"}  # where nothing is averaged
    assert not unchecked or left == set(unchecked.split())


ALONE = (  # rank 0 evaluates, and the other one goes on to what gathers the model
    "in val_loader:", "in val_loader if rank == 0 else ():", "    dist.all_reduce(totals)\n",
    "    get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n",
    "import StateDictOptions,", "import StateDictOptions, get_model_state_dict,",
)  # fmt: skip


@pytest.mark.proof
def test_rank_0_evaluates_alone(tmp_path: Path) -> None:
    """By a launch: gloo ends the other rank. And what waits until the script imports FSDP."""
    text = faults.changed(FSDP, (*PROGRAMS["never reduced"][0], *ALONE))
    (tmp_path / "script.py").write_text(text)
    result = run(
        [*DOCTOR, "--lang", "en", "--json", "verdict.json", *TORCHRUN, "script.py"], tmp_path
    )
    found = json.loads((tmp_path / "verdict.json").read_text())["findings"]
    assert [one["name"] for one in found] == ["untrained:held", "collective_order"], result.output
    assert found[1]["line"] == 1 + text[: text.index("model(tokens[:, :-1])")].count("\n")
    assert "get_model_state_dict" in found[1]["advice"] and "module" not in found[1]["advice"]


def types_of_a_policy() -> list:
    """In a crew member: of one that is made where --without has taken rounding out."""
    import torch.distributed.fsdp as fsdp

    from ddp_doctor.without import rounding

    kinds = fsdp.MixedPrecisionPolicy, fsdp.MixedPrecision
    own = [kind.__init__ for kind in kinds]
    notes.told = {AGAINST: "rounding"}
    try:
        rounding.policies("rounding", fsdp)
        made = [kind(param_dtype=torch.bfloat16) for kind in kinds]
    finally:
        notes.told = {}
        for kind, init in zip(kinds, own, strict=True):
            kind.__init__ = init
    return [str(policy.param_dtype) for policy in made] + [made[0].reduce_dtype]


def test_a_policy_without_rounding(crew: Crew) -> None:
    types = ["torch.float64", "torch.float64", None]
    assert crew.run(types_of_a_policy, world_size=1) == [types]
