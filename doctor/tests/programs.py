"""Small programs, a row each, and what the doctor says of them: changes of right.py, which is in
docs/examples/doctor, or of WITHOUT_LOADER. test_programs.py runs them. Whole programs: right/.

A row is the words that are changed (what stands there, what stands there instead, and so on), then:

    found      full names of what is found, but for notes, the worst first; nothing, if not given
    notes      those of notes
    said       parts of what is said of them, in English
    unchecked  ids that are not checked, beside those of the base; behind a colon the word of
               words/en.txt that says why. -id: it is checked, though it is not in the base
    proof      the row is like another one: for `make proof` (and `make right`)

right(...) is a program in which nothing is wrong: `make right` runs all of them.
"""

from typing import NamedTuple

import faults


class Program(NamedTuple):
    words: tuple[str, ...]
    right: bool
    found: str = ""
    notes: str = ""
    said: tuple[str, ...] = ()
    unchecked: str = ""
    base: str = faults.RIGHT.read_text()
    proof: bool = False

    def not_checked(self) -> dict[str, str]:
        """The ids that must not be checked, and the word that says why, where the row has one."""
        ids = {**dict.fromkeys(UNCHECKED[self.base].split(), "")}
        for part in self.unchecked.split():
            name, _, why = part.partition(":")
            if name.startswith("-"):
                del ids[name[1:]]
            else:
                ids[name] = why
        return ids


def right(*words: str, **row: object) -> Program:
    return Program(words, True, **row)


def wrong(*words: str, **row: object) -> Program:
    return Program(words, False, **row)


IMPORTS = "from torch import nn\n"
SAMPLER = "DistributedSampler(train_set)"
EPOCH = "    sampler.set_epoch(epoch)\n"
LOOP = "    for images, targets in loader:\n"
LOSS = "        loss = nn.functional.cross_entropy(ddp(images), targets)\n"
STEP = "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
ADAM = "torch.optim.SGD(ddp.parameters(), lr=0.1 * world_size)"
NO_NORM = ("nn.BatchNorm1d(16), ", "", "    for buffer in model.buffers():\n", "    if False:\n")
AVERAGE = (
    "        flat = torch.cat([p.grad.flatten() for p in model.parameters()])\n"
    "        dist.all_reduce(flat)\n"
    "        start = 0\n"
    "        for p in model.parameters():\n"
    "            p.grad = flat[start : start + p.numel()].view_as(p) / world_size\n"
    "            start += p.numel()\n"
)
UNDER_RANK = (
    "ddp = DDP(model)\n",
    "for p in model.parameters():\n    dist.broadcast(p.data, 0)\nddp = model\n",
)
REDUCED = LOSS + "        logged = loss.detach().repeat(2)\n        dist.all_reduce(logged)\n"
GATHERED = LOSS + (
    "        logged = [torch.zeros(8) for _ in range(world_size)]\n"
    "        dist.all_gather(logged, loss.repeat(8))\n"
)
# Some targets do not count, and then it is on each rank another number.
MASKED = "        targets[images[:, 0] > 0] = -100\n" + LOSS
COUNTED = "        count = own = (targets >= 0).sum()\n        count = count.clone()\n"
COUNTED = MASKED.replace(LOSS, COUNTED) + "        dist.all_reduce(count)\n" + LOSS
UNDIVIDED = (SAMPLER, "torch.utils.data.SequentialSampler(train_set)", EPOCH, "")
PADDED = (
    "DataLoader(share, batch_size=8)",
    "DataLoader(val_set, 8, sampler=DistributedSampler(val_set, shuffle=False))",
)
GROUP_OF_ONE = (
    "groups = [dist.new_group([n]) for n in range(world_size)]\n"
    "ddp = DDP(model, process_group=groups[rank])\n"
)
SWEEP = (  # each rank trains a model of its own, on all samples
    "0.1 * world_size", "0.1 * (1 + rank)",
    SAMPLER, "torch.utils.data.RandomSampler(train_set)", EPOCH, "",
    "    for buffer in model.buffers():\n        dist.broadcast(buffer, 0)\n", "",
    "in val_loader:", "in DataLoader(val_set, batch_size=8):",
    "    dist.all_reduce(totals)\n", "",
    "    if rank == 0:\n", "    if True:\n", '"checkpoint.pt"', 'f"checkpoint-{rank}.pt"',
)  # fmt: skip
NUMBERED = (LOOP, "    for number, (images, targets) in enumerate(loader, 5 * epoch):\n")
TORCH_SAVE = '        torch.save(model.state_dict(), "checkpoint.pt")\n'
FIXED_SEED = ("torch.manual_seed(rank)  # for dropout\n", "", ", nn.Dropout()", "")
OWN_GENERATOR = (
    *faults.NOISE,
    "class Noisy(TensorDataset):\n",
    "class Noisy(TensorDataset):\n    own = torch.Generator()\n",
    "return image + torch.randn(8), target",
    "return image + torch.randn(8, generator=self.__dict__.setdefault('own', self.own)), target",
)
NAMES = "        self.names = sorted(str(n) for n in range(70))\n"
ZERO = "        optimizer.zero_grad()\n"
ONE_STEP = "        optimizer.step()\n"
BACKWARD = "        loss.backward()\n"
EVERY_SECOND = (*NUMBERED, ONE_STEP, "        if number % 2:\n            optimizer.step()\n")
EMPTIED_THEN = "            optimizer.zero_grad(set_to_none=False)\n"
ADVERSARIAL = (  # gradients of the attack are thrown away before those of the step
    LOSS, "        ddp(images + 0.1).square().mean().backward()\n" + ZERO + LOSS,
)  # fmt: skip
GAN = (  # the other's gradients are left over, until it empties them
    "torch.manual_seed(rank)",
    "critic = DDP(nn.Linear(3, 1))\n"
    "learns = torch.optim.Adam(critic.parameters())\ntorch.manual_seed(rank)",
    BACKWARD,
    "        learns.zero_grad()\n        critic(ddp(images).detach()).mean().backward()\n"
    "        learns.step()\n        (loss - critic(ddp(images)).mean()).backward()\n",
)
BY_GRAD = (  # gradients are set, while backward() is called for another model
    "ddp = DDP(model)\n",
    "ddp = model\nbeside = nn.Linear(8, 1)\n"
    "for p in model.parameters():\n    dist.broadcast(p.data, 0)\n",
    ZERO, "",
    BACKWARD,
    "        beside(images).mean().backward()\n"
    "        found = torch.autograd.grad(loss, list(model.parameters()))\n"
    "        for p, grad in zip(model.parameters(), found):\n"
    "            dist.all_reduce(grad)\n"
    "            p.grad = grad / world_size\n",
)  # fmt: skip
EVAL = ("    model.train()\n", "")
IN_MODEL = (  # as models of transformers compute it, under a DDP that wraps what they return
    "ddp = DDP(model)\n",
    "class WithLoss(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.model = model\n\n"
    "    def forward(self, images, targets):\n"
    "        return nn.functional.cross_entropy(self.model(images), targets)\n\n\n"
    "ddp = DDP(WithLoss(), find_unused_parameters=True)\n",
    LOSS, MASKED.replace(LOSS, "        loss = ddp(images, targets)\n"),
)  # fmt: skip
BY_HAND = (
    LOSS,
    "        counts = (images[:, 0] < 0).float()\n"
    "        losses = nn.functional.cross_entropy(ddp(images), targets, reduction='none')\n"
    "        loss = (losses * counts).sum() / counts.sum() + 0.1 * losses.mean()\n",
)
IN_CHECKPOINT = (
    LOSS,
    MASKED.replace("cross_entropy(ddp", "cross_entropy, ddp").replace(
        "nn.functional.", "torch.utils.checkpoint.checkpoint(nn.functional."
    ).replace("(images), targets)", "(images), targets, use_reentrant=False)"),
    "import torch\n", "import torch\nimport torch.utils.checkpoint\n",
)  # fmt: skip
SAVING = '    if rank == 0:\n        torch.save(model.state_dict(), "checkpoint.pt")\n'
SEEDS = "torch.manual_seed(rank)  # for dropout\n"
HELD_BACK = (
    "for images, targets in loader:", "for n, (images, targets) in enumerate(loader):", LOSS + STEP,
    "        with contextlib.nullcontext() if n % 2 else ddp.no_sync():\n"
    "            nn.functional.cross_entropy(ddp(images), targets).backward()\n"
    "        if n % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
    "from datetime", "import contextlib\nfrom datetime",
)  # fmt: skip
THROWN = ("enumerate(loader):\n", "enumerate(loader):\n        optimizer.zero_grad()\n")
CLIPPED = ("            optimizer.step()\n",
           "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
           "            optimizer.step()\n")  # fmt: skip
SUMMED = LOSS + "        dist.all_reduce(loss)\n"
SUMMED_AND_COUNTED = (
    SUMMED.replace("targets)", "targets, reduction='sum')")
    + "        count = torch.tensor(float(len(targets)))\n        dist.all_reduce(count)\n"
)
WINDOWS = (  # each epoch shows other samples
    "train_set = TensorDataset(", "class Windows(TensorDataset):\n    epoch = 0\n\n"
    "    def __getitem__(self, index):\n"
    "        return super().__getitem__((index + 9 * int(self.epoch)) % 70)\n\n\n"
    "train_set = Windows(",
    "sampler=sampler)", "sampler=sampler, num_workers=1, persistent_workers=True)",
    "    model.train()\n", "    model.train()\n    train_set.epoch = epoch\n",
)  # fmt: skip
# Ranks draw unlike many numbers for dropout.
UNLIKE = (
    "(8, 16), ", "(8, 16), nn.Dropout(0.1), ", "(ddp(images), targets)",
    "(ddp(images[: 7 - rank]), targets[: 7 - rank])",
)  # fmt: skip
SEEDED_ALIKE = (SEEDS, "torch.manual_seed(1)\n")
CRITIC = (
    "nn.Dropout(), ", "", LOSS + STEP,
    "        fake = ddp(images + 0.1 * torch.randn_like(images))\n"
    "        learns.zero_grad()\n        critic(fake.detach()).mean().backward()\n"
    "        learns.step()\n        loss = -critic.module(fake).mean()\n" + STEP,
    "ddp = DDP(model)\n", "ddp = DDP(model)\ncritic = DDP(nn.Linear(3, 1))\n"
    "learns = torch.optim.SGD(critic.parameters(), 0.1)\n",
)  # fmt: skip
LAMBDA = (
    "ReduceLROnPlateau(optimizer, patience=0)", "LambdaLR(optimizer, lambda n: 1 - n / 2.1)",
    "    scheduler.step(totals[0] / totals[1])\n", "", "        optimizer.step()\n",
    "        optimizer.step()\n    scheduler.step()\n",
)  # fmt: skip
# The loss is added up, beside a score.
SCORE = (
    "for epoch in range(3):\n", "def right(scores, targets):\n"
    "    return (scores.argmax(1) == targets).sum()\n\n\nfor epoch in range(3):\n",
    "    totals = torch.zeros(2)\n", "    totals, own = torch.zeros(2), torch.zeros(2)\n",
    "            totals += ",
    "            own += torch.tensor([right(model(images), targets), len(targets)])\n"
    "            totals += ", SAVING,
    "    if rank == 0:\n        rate = optimizer.param_groups[0]['lr']\n"
    "        mean = totals[0] / totals[1]\n"
    "        print(f'Epoch {epoch} train_loss: {loss:.4f} lr: {rate:.3f} {0.1 * epoch:.2f}s')\n"
    "        print(f'out/v1.5/1.pt loss {mean:.4f} BLEU {100 * own[0] / own[1]:.3f}')\n",
)  # fmt: skip
LIBRARY = ("import torch\n", "import matplotlib\nmatplotlib.use('Agg')\n"
           "import matplotlib.pyplot as plt\nimport torch\n")  # fmt: skip
WITHOUT_LOADER = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
points = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
targets = points.argmax(1) // 2
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 4))
ddp = DistributedDataParallel(model) if world_size > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)

for epoch in range(2):
    order = torch.randperm(96, generator=torch.Generator().manual_seed(epoch))
    for start in range(0, 96, 16):
        batch = order[start:][:16][rank::world_size]
        rows = points[batch]
        loss = nn.functional.cross_entropy(ddp(rows), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
"""
OF_RANK = "[rank::world_size]"
ROWS = "        rows = points[batch]\n"
OWN_BATCH = "        batch = order[start:][:16][rank::world_size]\n"
DRAWN_BATCH = "        batch = torch.randint(96, (16 // world_size,))\n"
SHARE_OF_DRAWN = "        batch = torch.randint(96, (16,))[rank::world_size]\n"
NOISY_ROWS = ROWS + "        rows = rows + 0.1 * torch.randn(rows.shape)\n"
SEED_OF_ALL = ("torch.manual_seed(rank)", "torch.manual_seed(7)")
FULL_BATCH = (OWN_BATCH, "        batch = torch.arange(96)\n")
BY_ALL_REDUCE = (
    "DistributedDataParallel(model) if world_size > 1 else model", "model",
    "        optimizer.step()\n",
    "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n"
    "            p.grad /= world_size\n        optimizer.step()\n",
)  # fmt: skip
WITH_TEXTS = """\
class Named(nn.Sequential):
    def forward(self, rows, names):
        return super().forward(rows)


dist.init_process_group("""

# What the bases themselves do not show.
UNCHECKED = {
    Program._field_defaults["base"]: "clipped",
    WITHOUT_LOADER: "clipped empty_epoch equal_randomness overlapping_samples same_order"
    " unequal_buffers unequal_steps unequal_targets wrong_evaluation",
}

# fmt: off
PROGRAMS: dict[str, Program] = {
    "as it is": right(),
    # What ranks add up tells nothing of the samples: a loss of training may be added up there.
    "a mean of means": right(
        "    dist.all_reduce(totals)\n",
        "    totals /= totals[1].clone()\n    dist.all_reduce(totals)\n",
        unchecked="wrong_evaluation:unproven",
    ),
    "a mean of means, printed": wrong(
        "    dist.all_reduce(totals)\n",
        "    totals /= totals[1].clone()\n    dist.all_reduce(totals)\n"
        "    print(f'val loss {totals[0] / world_size:.4f}')\n",
        notes="wrong_evaluation:means",
        said=("is a mean of 2 means, of 10 to 11 samples each", "then divide once"),
    ),
    "a mean of equal means": right(
        "images[70:], targets[70:]", "images[71:], targets[71:]",
        "    dist.all_reduce(totals)\n",
        "    totals /= totals[1].clone()\n    dist.all_reduce(totals)\n"
        "    print(f'val loss {totals[0] / world_size:.4f}')\n",
        unchecked="wrong_evaluation:unproven",
    ),
    "a rate that the script sets": right(  # nobody knows how long its schedule is
        "    scheduler.step(totals[0] / totals[1])\n",
        "    optimizer.param_groups[0]['lr'] *= 0.5\n",
        unchecked="schedule",
    ),
    # To read its count would compute the loss once more.
    "a count that a checkpoint would make": right(
        *IN_CHECKPOINT, unchecked="unequal_counts:unseen_loss",
    ),
    # The advice of equal_randomness:workers, followed to the letter.
    "noise of the workers' own seeds": right(*faults.NOISE, ", nn.Dropout()", ""),
    "an index that is a tuple": right(  # a place of rows and columns: no two samples
        "train_set = TensorDataset(images[:70], targets[:70])\n",
        "class Grid(TensorDataset):\n"
        "    def __getitem__(self, place):\n"
        "        row, column = place\n"
        "        part = range(10 * row + column, 10 * row + column + 54, 9)\n"
        "        return super().__getitem__(list(part))\n\n\n"
        "train_set = Grid(images[:70], targets[:70])\n",
        "sampler = DistributedSampler(train_set)\n", "",
        "DataLoader(train_set, batch_size=8, sampler=sampler)",
        "DataLoader(train_set, None, sampler=[(rank, n) for n in range(2, 7)])",
        EPOCH, "",
        unchecked="same_samples overlapping_samples:grouped same_order",
    ),
    "a sum by the count of all": right(
        LOSS, COUNTED.replace("targets)\n", "targets, reduction='sum') * world_size / count\n"),
    ),
    "own means, weighed": right(  # as much as its targets are of all
        LOSS, COUNTED.replace("targets)\n", "targets) * own / count * world_size\n"),
    ),
    "a part that each rank weighs": right(  # by gradients, as VQGAN weighs its critic
        LOSS, LOSS + "        loss = loss / (1.5 + rank) + loss.detach() * loss\n",
    ),
    "a few targets that do not count": right(LOSS, MASKED.replace("] > 0]", "] > 1.8]")),
    "gradients that counts weigh": right(
        *UNDER_RANK,
        LOSS, COUNTED,
        STEP,
        STEP.replace("        optimizer.step()\n", "        for p in model.parameters():\n"
                     "            p.grad *= own * world_size / count\n"
                     + AVERAGE + "        optimizer.step()\n"),
        unchecked="unequal_counts",
    ),
    "functional collectives": right(
        IMPORTS, IMPORTS + "from torch.distributed._functional_collectives import all_reduce\n",
        "    dist.all_reduce(totals)\n",
        "    totals = all_reduce(totals, 'sum', dist.group.WORLD)\n",
        *UNDER_RANK,
        STEP,
        STEP.replace(
            "        optimizer.step()\n",
            AVERAGE.replace("dist.all_reduce(flat)", "flat = all_reduce(flat, 'sum', [0, 1])")
            + "        optimizer.step()\n",
        ),
        unchecked="unequal_counts",
    ),
    "a share in collate_fn": right(  # indices are places in it, and a batch is an object
        IMPORTS,
        IMPORTS + "\n\nclass Pair:\n"
        "    def __init__(self, parts):\n        self.parts = parts\n\n"
        "    def __iter__(self):\n        return iter(self.parts)\n\n",
        "images[70:], targets[70:]", "images[70:90], targets[70:90]",
        "share = Subset(val_set, range(rank, len(val_set), world_size))\n",
        "mine, own = (torch.arange(rank, size, world_size) for size in (70, 20))\n",
        "DataLoader(train_set, batch_size=8, sampler=sampler)",
        "DataLoader(range(35), 8, True, generator=torch.Generator().manual_seed(0),\n"
        "                    collate_fn=lambda places: Pair(train_set[mine[places]]))",
        "DataLoader(share, batch_size=8)",
        "DataLoader(range(10), 8, collate_fn=lambda places: Pair(val_set[own[places]]))",
        unchecked="overlapping_samples same_samples wrong_evaluation",
    ),
    "a list of samples for an index": right(
        "DataLoader(train_set, batch_size=8, sampler=sampler",
        "DataLoader(train_set, collate_fn=lambda batch: batch[0], "
        "sampler=BatchSampler(sampler, 5, False)",
        "DataLoader(share, batch_size=8",
        "DataLoader(val_set, collate_fn=lambda batch: batch[0], "
        "sampler=BatchSampler(range(rank, len(val_set), world_size), 5, False)",
        IMPORTS, IMPORTS + "from torch.utils.data import BatchSampler\n",
        unchecked="overlapping_samples same_order same_samples wrong_evaluation",
    ),
    "a buffer beside the model": right(
        "model = nn.Seq", "criterion = nn.CrossEntropyLoss(torch.ones(3))\nmodel = nn.Seq",
        LOSS, "        loss = criterion(ddp(images), targets)\n",
        proof=True,
    ),
    "drawn with replacement": right(
        SAMPLER, "torch.utils.data.WeightedRandomSampler(torch.ones(70), 35)",
        EPOCH, "",
        unchecked="overlapping_samples", proof=True,
    ),
    "files divided by rank": right(  # so an index has two targets, and classes come in turn
        "torch.randint(3, (91,))", "torch.arange(91) % 3",
        "train_set = TensorDataset(images[:70], targets[:70])",
        "train_set = TensorDataset(images[rank:60:2], targets[rank:60:2])\n"
        "train_set.labels = ['abc'[target] for target in targets[rank:60:2]]",
        SAMPLER, "torch.utils.data.SequentialSampler(train_set)",
        EPOCH, "",
        unchecked="overlapping_samples same_order same_samples unequal_targets",
    ),
    "a share inside a data set": right(  # sorted by class, so an index has one target
        "torch.randint(3, (91,))", "torch.arange(91) // 30 % 3",
        "train_set = TensorDataset(images[:70], targets[:70])\n",
        "class Noisy(torch.utils.data.Dataset):\n"
        "    def __init__(self, inner):\n"
        "        self.inner, self.folder = inner, 'images'\n\n"
        "    def __len__(self):\n        return len(self.inner)\n\n"
        "    def __getitem__(self, index):\n"
        "        image, target = self.inner[index]\n"
        "        return image + 0.1 * torch.randn(8), target\n\n\n"
        "train_set = Noisy(TensorDataset(images[rank:60:2], targets[rank:60:2]))\n",
        SAMPLER, "torch.utils.data.SequentialSampler(train_set)",
        EPOCH, "",
        unchecked="overlapping_samples same_order same_samples",
    ),
    "rank 0 decides to stop": right(
        "in val_loader:", "in DataLoader(val_set, batch_size=8) if rank == 0 else []:",
        "    scheduler.step(totals[0] / totals[1])\n",
        "    stop = torch.tensor([float(totals[0] / totals[1] < 100)])\n"
        "    dist.broadcast(stop, 0)\n"
        "    if stop and epoch == 1:\n"
        "        break\n",
        unchecked="unequal_buffers",
    ),
    "a part and a tail": right(
        "in val_loader:",
        "in (\n"
        "            *DataLoader(Subset(val_set, range(rank * 10, rank * 10 + 10)), 5),\n"
        "            *(DataLoader(Subset(val_set, [20]), 5) if rank == 0 else []),\n"
        "        ):",
        unchecked="wrong_evaluation",
    ),
    "divided optimizer": right(
        ADAM, "ZeRO(ddp.parameters(), torch.optim.SGD, lr=0.1 * world_size)",
        IMPORTS, IMPORTS + "from torch.distributed.optim import ZeroRedundancyOptimizer as ZeRO\n",
        unchecked="drifting_weights no_averaging unequal_gradients",
    ),
    "one batch an epoch": right(  # its loader draws a seed from torch's stream, equal on all ranks
        "batch_size=8, sampler=sampler", "batch_size=35, sampler=sampler",
        "nn.BatchNorm1d(16), nn.Dropout()", "nn.BatchNorm1d(16)",
        "torch.manual_seed(rank)  # for dropout\n", "",
        unchecked="equal_randomness", proof=True,
    ),
    "drawn by hand": right(
        LOOP,
        "    for _ in range(4):\n"
        "        images, targets = train_set[torch.randint(len(train_set), (8,))]\n",
        unchecked="empty_epoch equal_randomness overlapping_samples same_order same_samples "
                  "unequal_steps unequal_targets",
        proof=True,
    ),
    "a pass of no batches": right(
        STEP, STEP + "        list(DataLoader(val_set, batch_size=8, sampler=[]))\n",
    ),
    "a loader that is let go": right(  # and so are its workers, whom nobody else would end
        "from datetime import timedelta\n", "import weakref\nfrom datetime import timedelta\n",
        "dist.destroy_process_group()",
        "let_go = weakref.ref(loader)\ndel loader\nassert let_go() is None\n"
        "dist.destroy_process_group()",
    ),
    "an average that holds the model": right(  # on rank 0 alone, and larger than what DDP wraps
        "ddp = DDP(model)\n",
        "ddp = DDP(model)\n"
        "if rank == 0:\n"
        "    import copy\n\n    average = nn.ModuleList([model, copy.deepcopy(model).eval()])\n",
    ),
    "an optimizer that averages": right(
        "ddp = DDP(model)\n",
        "class Averaging(torch.optim.SGD):\n"
        "    def step(self):\n"
        "        own = [p.grad for p in model.parameters()]\n"
        "        for p in model.parameters():\n"
        "            p.grad = p.grad / world_size\n"
        "            dist.all_reduce(p.grad)\n"
        "        super().step()\n"
        "        for p, grad in zip(model.parameters(), own):\n"
        "            p.grad = grad\n\n\n"
        "for p in model.parameters():\n    dist.broadcast(p.data, 0)\nddp = model\n",
        "torch.optim.SGD(ddp", "Averaging(ddp",
        unchecked="unequal_counts",
    ),
    "a wrapper that is saved and copied": right(
        "ddp = DDP(model)\n",
        "ddp = DDP(model)\nimport copy\n\n"
        'copy.deepcopy(ddp)\ntorch.save(ddp, f"whole-{rank}.pt")\n',
    ),
    "batches that each rank slices": right(
        SAMPLER, "torch.utils.data.SequentialSampler(train_set)",
        EPOCH, "",
        LOOP,
        LOOP + "        part = slice(rank, None, world_size)\n"
        "        images, targets = images[part], targets[part]\n",
        unchecked="overlapping_samples same_order same_samples",
    ),
    "a list of batches for all epochs": right(
        "for epoch in range(3):\n", "batches = list(loader)\nfor epoch in range(3):\n",
        LOOP, "    for images, targets in batches:\n",
        EPOCH, "",
        unchecked="same_order", proof=True,
    ),
    "a sweep": right(
        "ddp = DDP(model)\n", "ddp = model\n",
        *SWEEP,
        notes="overlapping_samples:whole no_averaging wrong_evaluation:everyone unequal_buffers",
        unchecked="unequal_counts", proof=True,
    ),
    "a sweep under DDP": right(
        "ddp = DDP(model)\n", GROUP_OF_ONE,
        *SWEEP,
        notes="overlapping_samples:whole no_averaging:group wrong_evaluation:everyone "
              "unequal_buffers",
    ),
    "one image repeated": right("images[:70], targets[:70]", "images[:69], targets[:69]"),
    "two models evaluated": right(
        "in val_loader:", "in (*val_loader, *val_loader):",
        unchecked="wrong_evaluation",
    ),
    "length buckets": right(  # batches of like lengths, shuffled alike on all ranks, then divided
        f"sampler = {SAMPLER}\n", "batches = torch.arange(64).view(8, 8).tolist()\n",
        "batch_size=8, sampler=sampler", "batch_sampler=batches[rank::world_size]",
        EPOCH,
        "    torch.manual_seed(epoch)\n"
        "    mixed = [batches[n] for n in torch.randperm(8)]\n"
        "    loader = DataLoader(train_set, batch_sampler=mixed[rank::world_size])\n"
        "    torch.manual_seed(epoch * world_size + rank)\n",
        unchecked="same_order", proof=True,
    ),
    "sampler written as a list": right(
        EPOCH,
        "    generator = torch.Generator().manual_seed(epoch)\n"
        "    order = torch.randperm(70, generator=generator).tolist()[rank::world_size]\n"
        "    loader = DataLoader(train_set, batch_size=8, sampler=order)\n",
        unchecked="same_order", proof=True,
    ),
    "stopped together": right(
        "sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)",
        LOOP,
        "    batches = iter(loader)\n"
        "    while True:\n"
        "        images, targets = next(batches, (None, None))\n"
        "        more = torch.tensor(float(images is not None))\n"
        "        dist.all_reduce(more, dist.ReduceOp.MIN)\n"
        "        if not more:\n"
        "            break\n",
        unchecked="same_order", proof=True,
    ),
    "joined over unequal shares": right(
        *NO_NORM,
        "sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)",
        IMPORTS, IMPORTS + "from torch.distributed.algorithms.join import Join\n",
        LOOP + LOSS + STEP,
        "    with Join([ddp]):\n"
        + "".join(f"    {line}\n" for line in (LOOP + LOSS + STEP).splitlines()),
        unchecked="collective_order drifting_weights no_averaging same_order unequal_buffers "
                  "unequal_gradients unequal_steps",
    ),
    "unequal shares, averaged after each": right(
        *NO_NORM, *UNDER_RANK,
        "sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)",
        "    model.eval()\n",
        "    for p in model.parameters():\n"
        "        dist.all_reduce(p.data)\n"
        "        p.data /= world_size\n"
        "    model.eval()\n",
        unchecked="drifting_weights no_averaging same_order unequal_buffers unequal_counts "
                  "unequal_gradients",
    ),
    "averaged by hand in a flat bucket, then clipped": right(
        *UNDER_RANK,
        "        loss.backward()\n",
        "        loss.backward()\n" + AVERAGE
        + "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n",
        unchecked="unequal_counts -clipped",
    ),
    "compressed by PowerSGD": right(
        IMPORTS,
        IMPORTS + "from torch.distributed.algorithms import ddp_comm_hooks\n"
        "power = ddp_comm_hooks.powerSGD\n",
        "ddp = DDP(model)\n",
        "ddp = DDP(model)\n"
        "state = power.PowerSGDState(None, 1, start_powerSGD_iter=3, min_compression_rate=0.5)\n"
        "ddp.register_comm_hook(state, power.powerSGD_hook)\n",
    ),
    "a discriminator's inner module": right(
        "torch.manual_seed(rank)",
        "critic = DDP(nn.Linear(3, 1))\n"
        "learns = torch.optim.Adam(critic.parameters())\n"
        "torch.manual_seed(rank)",
        LOSS + STEP,
        "        fake = ddp(images)\n"
        "        learns.zero_grad()\n"
        "        critic(fake.detach()).mean().backward()\n"
        "        learns.step()\n"
        "        loss = -critic.module(fake).mean()\n" + STEP,
        unchecked="unequal_buffers unequal_counts",
    ),
    "a warm-up, then a cosine for each epoch": right(
        "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
        "torch.optim.lr_scheduler.SequentialLR(\n"
        "    optimizer,\n"
        "    [\n"
        "        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1),\n"
        "        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2),\n"
        "    ],\n"
        "    [1],\n"
        ")",
        "    scheduler.step(totals[0] / totals[1])\n", "    scheduler.step()\n",
    ),
    "accumulated, averaged at the end": right(
        "for epoch in range(3):\n", "steps = 0\nfor epoch in range(3):\n",
        LOSS + STEP,
        "        steps += 1\n"
        "        ddp.require_backward_grad_sync = steps % 2 == 0\n"
        + LOSS + "        loss.backward()\n"
        "        if steps % 2 == 0:\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
    ),
    "two losses of a forward pass": right(  # of models that share nothing but their wrapper
        "ddp = DDP(model)\n",
        "class Both(nn.ModuleList):\n"
        "    def forward(self, x):\n"
        "        return [part(x) for part in self]\n\n\n"
        "ddp = DDP(Both([model, nn.Linear(8, 1)]))\n",
        LOSS,
        "        outputs, others = ddp(images)\n"
        "        others.square().mean().backward()\n"
        "        loss = nn.functional.cross_entropy(outputs, targets)\n",
        STEP, "        loss.backward()\n        optimizer.step()\n        optimizer.zero_grad()\n",
    ),
    "two losses of a batch": right(
        STEP,
        "        optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        ddp(images + 0.1 * torch.randn_like(images)).square().mean().backward()\n"
        "        optimizer.step()\n",
    ),
    "wrapped again after unfreezing": right(
        "ddp = DDP(model)\n",
        "model[0].requires_grad_(False)\n"
        "ddp = DDP(model)\n"
        "model[0].requires_grad_(True)\n"
        "ddp = DDP(model)\n",
    ),
    "a log of all ranks": right(
        "    scheduler.step(",
        "    with open('log.txt', 'a') as log:\n        print(rank, file=log)\n    scheduler.step(",
        proof=True,
    ),
    "a thread that saves": right(
        "        torch.save(model.state_dict(), \"checkpoint.pt\")\n",
        "        copy = {name: value.clone() for name, value in model.state_dict().items()}\n"
        "        saver = threading.Thread(target=torch.save, args=(copy, \"checkpoint.pt\"))\n"
        "        saver.start()\n"
        "        saver.join()\n",
        "from datetime import timedelta\n", "import threading\nfrom datetime import timedelta\n",
    ),
    "accumulation": wrong(
        *EVERY_SECOND[:-1], EVERY_SECOND[-1] + EMPTIED_THEN, ZERO, "", found="no_sync:never",
    ),
    "zeros in place of None": right(ZERO, "        optimizer.zero_grad(set_to_none=False)\n"),
    "zeros in a bucket view": right(
        "DDP(model)", "DDP(model, gradient_as_bucket_view=True)",
        ZERO, "        optimizer.zero_grad(set_to_none=False)\n",
        proof=True,
    ),
    "emptied by hand": right(
        ZERO, "        for p in model.parameters():\n            p.grad = None\n",
        proof=True,
    ),
    "gradients of an attack": right(*ADVERSARIAL),
    "a GAN": right(*GAN, unchecked="unequal_buffers unequal_counts"),
    "gradients that are set": right(*BY_GRAD, unchecked="unequal_counts"),
    "eval mode from the start": right("    model.train()\n", "    model.eval()\n", proof=True),
    "frozen statistics": right(
        "    model.train()\n", "    model.train()\n    model[1].eval()\n",
        proof=True,
    ),
    "eval mode without a difference": right(
        *EVAL,
        "nn.BatchNorm1d(16), nn.Dropout()", "nn.Tanh()",
        unchecked="unequal_buffers",
    ),
    "eval mode to act": right(  # and training mode to learn
        BACKWARD,
        "        model.eval()\n        model(images)\n        model.train()\n" + BACKWARD,
    ),
    "a frozen layer": right("ddp = DDP", "model[0].requires_grad_(False)\nddp = DDP"),
    "unequal counts of a model's own loss": wrong(
        *IN_MODEL,
        notes="unequal_counts", said=("In half of 15 steps it is 1.",),
    ),
    "unequal counts of a mask": wrong(
        *BY_HAND,
        notes="unequal_counts", said=("In half of 15 steps it is 1.",),
    ),
    "no zero_grad": wrong(ZERO, "", notes="left_gradients", said=("in 14 of 15 steps",)),
    "accumulation without zero_grad": wrong(
        *EVERY_SECOND,
        ZERO, "",
        found="no_sync:never", notes="left_gradients", said=("in 6 of 7",), proof=True,
    ),
    "a bucket view without zero_grad": wrong(
        ZERO, "",
        "DDP(model)", "DDP(model, gradient_as_bucket_view=True)",
        notes="left_gradients", said=("of 15 steps",), proof=True,
    ),
    "eval mode since the first evaluation": wrong(
        *EVAL,
        notes="eval_mode", said=("steps 6 to 15 are trained without dropout",),
    ),
    "a picture by every rank": wrong(
        *LIBRARY,
        SAVING, "    plt.savefig('curve.png', dpi=20)\n",
        found="shared_file",
    ),
    "a picture by rank 0": right(
        *LIBRARY,
        SAVING, "    rank or plt.savefig('curve.png', dpi=20)\n",
    ),
    "a file that nobody was seen to write": right(
        SAVING,
        "    parts = torch._C.PyTorchFileWriter(f'parts{rank}.bin')\n"
        "    parts.write_record('data', bytes(8), 8)\n    parts.write_end_of_file()\n",
        unchecked="shared_file",
    ),
    "accumulated": right(*HELD_BACK),
    "accumulated, and thrown away": wrong(*HELD_BACK, *THROWN, found="lost_gradient:thrown"),
    "accumulated, thrown away, and clipped": wrong(
        *HELD_BACK, *THROWN, *CLIPPED,
        found="lost_gradient:thrown", unchecked="-clipped", proof=True,
    ),
    "accumulated in a place of one's own": wrong(
        *HELD_BACK, *THROWN,
        "        if n % 2:\n",
        "        own = [p.grad + (a if n % 2 else 0) for p, a in zip(\n"
        "            model.parameters(), own if n else [0] * 9)]\n"
        "        if n % 2:\n"
        "            for p, a in zip(model.parameters(), own):\n                p.grad = a\n",
        found="unequal_gradients",
    ),
    "a summed loss, divided": wrong(
        LOSS, SUMMED + "        loss = loss / world_size\n",
        found="lost_gradient:divided",
    ),
    "a summed loss, divided by all samples": wrong(
        LOSS, SUMMED_AND_COUNTED + "        loss /= count\n",
        found="lost_gradient:divided", proof=True,
    ),
    "a summed loss, divided by their number": wrong(
        LOSS, SUMMED_AND_COUNTED + "        loss = loss / count.item()\n",
        found="lost_gradient:divided", proof=True,
    ),
    "a summed loss": right(LOSS, SUMMED),
    "a summed loss, times the ranks": right(
        LOSS, SUMMED_AND_COUNTED + "        loss = loss * world_size / count\n",
    ),
    "a copy of the loss, summed": right(
        LOSS,
        LOSS + "        logged = loss.detach().clone()\n        dist.all_reduce(logged)\n"
        "        loss = loss + 0 * logged / world_size\n",
    ),
    "an epoch that workers do not hear of": wrong(*WINDOWS, notes="same_order:workers"),
    "an epoch that new workers hear of": right(
        *WINDOWS,
        ", persistent_workers=True", "",
        unchecked="unequal_targets", proof=True,
    ),
    "an epoch that workers share": right(
        *WINDOWS,
        "    epoch = 0\n", "    epoch = torch.zeros(1).share_memory_()\n",
        "train_set.epoch = epoch", "train_set.epoch[:] = epoch",
        unchecked="unequal_targets",
    ),
    "a critic": right(*CRITIC, unchecked="unequal_buffers unequal_counts"),
    "a critic, and one seed": wrong(
        *CRITIC, *SEEDED_ALIKE,
        found="equal_randomness",
        unchecked="unequal_buffers unequal_counts",
    ),
    "a plateau that is fed twice": wrong(
        "for epoch", "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\nfor epoch",
        EPOCH, EPOCH + "    plateau.step(1.0)\n    plateau.step(1.0)\n",
        notes="schedule:fed", said=("was stepped 2 times between two steps",),
    ),
    "a plateau": right(
        "for epoch", "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\nfor epoch",
        EPOCH, EPOCH + "    plateau.step(1.0)\n",
    ),
    "one rank's optimizer of a copy": wrong(
        ADAM, "torch.optim.SGD((__import__('copy').deepcopy(model) if rank else ddp).parameters(), "
        "lr=0.1 * world_size)",
        found="untrained:rank", said=("On rank 1 no parameter of the optimizer (it has 6 there)",),
        unchecked="no_averaging unequal_gradients drifting_weights",
    ),
    "a schedule to its end": right(*LAMBDA),
    "a schedule that ends half-way": right(*LAMBDA, "n / 2.1", "n / 4", unchecked="schedule"),
    "a score of rank 0's share": right(*SCORE, unchecked="wrong_evaluation"),
    "a score of all": right(
        *SCORE,
        "totals, own = torch.zeros(2)", "totals, own = torch.zeros(3)",
        "[loss, len(targets)]", "[loss, len(targets), right(model(images), targets)]",
        "own[0] / own[1]", "totals[2] / totals[1]",
    ),
    "rows of unlike lengths": right(*UNLIKE, notes="unequal_counts"),
    "rows of unlike lengths, and one seed": wrong(
        *UNLIKE, *SEEDED_ALIKE,
        found="equal_randomness", notes="unequal_counts",
    ),
    "a group of one rank for DDP": wrong(
        "ddp = DDP(model)\n", GROUP_OF_ONE,
        found="no_averaging:group",
    ),
    "a reduced loss and no shares": wrong(
        LOSS, REDUCED,
        *UNDIVIDED,
        found="same_samples", unchecked="same_order",
    ),
    "the same pictures, of which each rank crops its own at random": wrong(
        "torch.randn(91, 8)", "torch.randn(91, 3, 8, 8)", *UNDIVIDED,
        "nn.Linear(8, 16)", "nn.Flatten(), nn.Linear(48, 16)", "model(images)",
        "model(images[..., :4, :4])",
        "ddp(images)", "ddp(images[..., torch.randint(5, ()) :, :][..., :4, :4])",
        found="same_samples", unchecked="same_order",
    ),
    "gathered losses and no shares": wrong(
        LOSS, GATHERED,
        *UNDIVIDED,
        found="same_samples", unchecked="same_order",
    ),
    "one order under a wrapper in eval mode": wrong(
        # As Lightning leaves it; and none asks for a sixth.
        EPOCH, "    sampler.set_epoch(max(epoch, 1))\n",
        "    model.train()\n", "    model.train()\n    ddp.training = not epoch\n",
        LOOP, "    for _, (images, targets) in zip(range(5), loader):\n",
        found="same_order",
    ),
    "a SyncBatchNorm of one's own and no shares": wrong(
        "model = nn.Sequential(",
        "class Synced(nn.BatchNorm1d):\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            own = torch.stack([x.mean(0), x.square().mean(0)])\n"
        "            both = all_reduce(own) / world_size\n"
        "            x = (x - both[0]) / (both[1] - both[0].square() + 1e-5).sqrt()\n"
        "        return x * self.weight + self.bias\n\n\n"
        "from torch.distributed.nn.functional import all_reduce\n\nmodel = nn.Sequential(",
        "nn.BatchNorm1d(16)", "Synced(16)",
        *UNDIVIDED,
        found="same_samples", unchecked="same_order",
    ),
    "a reduced loss and shares that nobody adds up": wrong(
        LOSS, REDUCED,
        "    dist.all_reduce(totals)\n", "",
        found="wrong_evaluation:share",
    ),
    "a sum that equals the size": wrong(  # of percentages, say
        *PADDED,
        "    dist.all_reduce(totals)\n",
        "    dist.all_reduce(totals)\n    dist.all_reduce(torch.tensor([21.0 * rank]))\n",
        found="wrong_evaluation",
    ),
    "a batch in two parts": wrong(
        "batch_size=8, sampler", "batch_size=7, sampler",
        LOSS, "",
        STEP,
        "        optimizer.zero_grad()\n"
        "        for part in range(2):\n"
        "            outputs = ddp(images[part::2])\n"
        "            (nn.functional.cross_entropy(outputs, targets[part::2]) / 2).backward()\n"
        "        optimizer.step()\n",
        found="no_sync:never",
    ),
    "other classes of augmented files": wrong(  # whose names alone tell that they are the same
        "train_set = TensorDataset(images[:70], targets[:70])\n",
        "class Files(TensorDataset):\n"
        "    def __getitem__(self, index):\n"
        "        image, target = super().__getitem__(index)\n"
        "        return image + rank, (target + rank) % 3\n\n\n"
        "train_set = Files(images[:70], targets[:70])\n"
        "train_set.paths = [f'{n}.png' for n in range(70)]\n",
        found="unequal_targets",
    ),
    "averaged in every second step": wrong(
        "ddp = DDP(model)\n", "ddp = model\n",
        LOOP, NUMBERED[1] + "        ddp = DDP(model) if number % 2 else model\n",
        found="no_averaging:some",
        said=("in some steps only: at step 1,", "at step 2 they are equal"), proof=True,
    ),
    "one step around DDP": wrong(
        *NUMBERED,
        "(ddp(images)", "((model if number == 3 else ddp)(images)",
        found="unequal_gradients:later", said=("at step 4; in 3 steps before", "all_reduce_perf"),
    ),
    "a state loaded on one rank": wrong(
        "torch.manual_seed(rank)",
        "if rank == 0:\n"
        "    optimizer.param_groups[0]['lr'] *= 0.1\n"
        "    scheduler.last_epoch = 30\ntorch.manual_seed(rank)",
        found="drifting_weights:loaded", said=("begin at steps 30 and 0", "not on one alone"),
    ),
    "buffers that DDP does not send": wrong(
        "DDP(model)", "DDP(model, broadcast_buffers=False)",
        "ddp = ",
        "torch.manual_seed(rank)\nmodel.register_buffer('noise', torch.randn(4))\nddp = ",
        "in model.buffers()", "in model[1].buffers()",
        notes="drifting_weights:buffers",
        said=("Buffers of the model that never change", "broadcast_buffers=T"), proof=True,
    ),
    "shares that nobody adds up, and their last batches": wrong(
        "share, batch_size=8", "share, batch_size=8, drop_last=True",
        "    dist.all_reduce(totals)\n", "",
        found="drifting_weights:rates wrong_evaluation:share",
        said=("8 of 21 on rank 0", "all_reduce the sums"), proof=True,
    ),
    "a break of one rank's own": wrong(
        *NO_NORM, *NUMBERED,
        LOSS, "        if rank and number % 5 == 3:\n            break\n" + LOSS,
        "    dist.all_reduce(totals)\n", "",
        found="unequal_steps:left",
        said=("Rank 1 left this loop in epoch 1 after 4 batches", "the condition of the break"),
        unchecked="collective_order drifting_weights no_averaging unequal_buffers unequal_counts"
        " unequal_gradients",
    ),
    "what each rank sends by a count of its own": wrong(
        "seconds=10", "seconds=3", "\ndist.destroy",
        "\nfor number in range(4):\n    dist.barrier(async_op=True)\n"
        "    if (number + rank) % 3 == 2:\n        dist.broadcast(totals, 0, async_op=True)\n"
        "dist.destroy",
        found="collective_order:early", proof=True,
        said=("which rank 1 has called before, too", "whether they reach this line"),
    ),
    "the same half of the same samples": wrong(
        *UNDIVIDED, "nn.Linear(8", "nn.Linear(4", "ddp(images)", "ddp(images[:, :4])",
        "model(images)", "model(images[:, :4])",
        found="same_samples:given", unchecked="same_order",
        said=("each model is given the same part of them", "rays[rank::world_size]"),
    ),
    "a barrier in what rank 0 saves": wrong(
        TORCH_SAVE, TORCH_SAVE + "        dist.barrier()\n    dist.barrier()\n",
        found="collective_order:extra",
        said=("Rank 0 called barrier (script.py:50), and rank 1 did not", "call, script.py:51",
              "under if rank == 0:"),
    ),
    "an evaluation of one batch": wrong(
        "share, batch_size=8", "share, batch_size=64",
        "        dist.broadcast(buffer, 0)\n", "        pass\n",
        found="unequal_buffers", said=("BatchNorm's statistics differ",), proof=True,
    ),
    "a generator that the data set keeps": wrong(
        *OWN_GENERATOR, *FIXED_SEED,
        found="equal_randomness:workers",
        said=("(self.own)", "A generator that the data set keeps", "leave them out"), proof=True,
    ),
    "seeds by rank, and one for all in the loop": wrong(
        "torch.manual_seed(rank)  # for dropout\n",
        "def setup_seed(seed):\n    torch.manual_seed(seed)\n\n\nsetup_seed(42 + rank)\n",
        "    sampler.set_epoch(epoch)\n", "    sampler.set_epoch(epoch)\n    setup_seed(42)\n",
        found="equal_randomness:seeded",
        said=("script.py:35 seeds all alike again, after script.py:31 had seeded by rank",),
    ),
    "seeds by rank, anew in each epoch": wrong(
        *faults.NOISE,
        ", nn.Dropout()", "",
        "    sampler.set_epoch(epoch)\n",
        "    sampler.set_epoch(epoch)\n    torch.manual_seed(42 + rank)\n",
        found="equal_randomness:again",
        said=("script.py:36 gives each the same seed", "or by the epoch"),
    ),
    "an order that the loop seeds": wrong(
        "sampler = DistributedSampler(train_set)\n",
        "train_set = Subset(train_set, range(rank, 70, 2))\n"
        "sampler = torch.utils.data.RandomSampler(train_set)\n",
        "    sampler.set_epoch(epoch)\n", "    torch.manual_seed(42 + rank)\n",
        found="same_order:seeded",
        said=("as script.py:31 gives each epoch the same seed", "seed + epoch"),
    ),
    "a seed in worker_init_fn": wrong(
        *faults.NOISE, *FIXED_SEED,
        "num_workers=2", "num_workers=2, worker_init_fn=lambda n: torch.manual_seed(n)",
        found="equal_randomness:epochs", said=("(torch)", "seed nothing of your own in them"),
        proof=True,
    ),
    "shares": right(base=WITHOUT_LOADER),
    "the share of rank 0": wrong(
        OF_RANK, "[::world_size]",
        found="same_samples:rows", base=WITHOUT_LOADER,
    ),
    "no shares": wrong(OF_RANK, "", found="same_samples:rows", base=WITHOUT_LOADER),
    "no shares, and dropout": wrong(
        OF_RANK, "",
        "Dropout(0.0)", "Dropout(0.5)",
        found="same_samples:rows", base=WITHOUT_LOADER, proof=True,
    ),
    "no shares, averaged by hand": wrong(
        OF_RANK, "",
        *BY_ALL_REDUCE,
        found="same_samples:rows", unchecked="unequal_counts", base=WITHOUT_LOADER, proof=True,
    ),
    "shares, averaged by hand": right(
        *BY_ALL_REDUCE,
        unchecked="unequal_counts", base=WITHOUT_LOADER, proof=True,
    ),
    "a full batch": right(*FULL_BATCH, base=WITHOUT_LOADER),
    "one latent": right(ROWS, "        rows = torch.ones(8, 8)\n", base=WITHOUT_LOADER, proof=True),
    "noise of one seed": right(
        *FULL_BATCH,
        ROWS, NOISY_ROWS,
        *SEED_OF_ALL,
        notes="equal_randomness:drawn", unchecked="same_samples:rows -equal_randomness",
        base=WITHOUT_LOADER, proof=True,
    ),
    "batches drawn by one seed": right(
        OWN_BATCH, DRAWN_BATCH,
        *SEED_OF_ALL,
        notes="equal_randomness:drawn", unchecked="same_samples:rows -equal_randomness",
        base=WITHOUT_LOADER,
    ),
    "batches drawn by each rank": right(OWN_BATCH, DRAWN_BATCH, base=WITHOUT_LOADER, proof=True),
    "shares of what all draw": right(
        OWN_BATCH, SHARE_OF_DRAWN,
        *SEED_OF_ALL,
        unchecked="equal_randomness:shares", base=WITHOUT_LOADER,
    ),
    "texts beside equal rows": right(
        OF_RANK, "",
        "dist.init_process_group(", WITH_TEXTS,
        "nn.Sequential(nn.Linear", "Named(nn.Linear",
        "ddp(rows)", "ddp(rows, [f'{rank}'])",
        unchecked="same_samples:loader", base=WITHOUT_LOADER,
    ),
    "a model of each rank's own": right(
        OF_RANK, "",
        BY_ALL_REDUCE[0], BY_ALL_REDUCE[1],
        "lr=0.1", "lr=0.1 + 0.1 * rank",
        notes="same_samples:rows no_averaging:some", unchecked="unequal_counts",
        base=WITHOUT_LOADER,
    ),
}
# fmt: on
