"""What breaks right.py, and what the doctor must then find.

python docs/examples/doctor/faults.py same_order > broken.py
python doctor torchrun --nproc-per-node 2 broken.py
"""

import sys
from pathlib import Path

RIGHT = Path(__file__).with_name("right.py")
# Right ways of doing something else, each broken below by one more change.
FILES = (  # items and classes have names
    "train_set = TensorDataset(images[:70], targets[:70])\n",
    "class Files(TensorDataset):\n"
    "    def __init__(self):\n"
    "        super().__init__(images[:70], targets[:70])\n"
    "        self.names = sorted(str(n) for n in range(70))\n"
    "        self.classes = sorted('abc')\n\n"
    "    def __getitem__(self, index):\n"
    "        image, target = super().__getitem__(int(self.names[index]))\n"
    "        return image, self.classes.index('abc'[target])\n\n"
    "train_set = Files()\n",
)
STREAM = (  # an IterableDataset, divided by rank and by worker
    "train_set = TensorDataset(images[:70], targets[:70])\n",
    "class Stream(torch.utils.data.IterableDataset):\n"
    "    def __init__(self):\n"
    "        self.items = list(zip(images[:64], targets[:64]))\n\n"
    "    def __iter__(self):\n"
    "        worker = torch.utils.data.get_worker_info()\n"
    "        first = rank * worker.num_workers + worker.id\n"
    "        return iter(self.items[first :: world_size * worker.num_workers])\n\n"
    "train_set = Stream()\n",
    "sampler = DistributedSampler(train_set)\n",
    "",
    "batch_size=8, sampler=sampler",
    "batch_size=8, num_workers=2",
    "    sampler.set_epoch(epoch)\n",
    "",
)
NOISE = (  # workers draw the noise of their items
    "train_set = TensorDataset(images[:70], targets[:70])\n",
    "class Noisy(TensorDataset):\n"
    "    def __getitem__(self, index):\n"
    "        image, target = super().__getitem__(index)\n"
    "        return image + torch.randn(8), target\n\n"
    "train_set = Noisy(images[:70], targets[:70])\n",
    "sampler=sampler",
    "sampler=sampler, num_workers=2",
)
EMPTIED = (  # memory for a model of shapes alone, and then its weights
    "model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3))\n",
    "class Scaled(nn.Linear):\n"
    "    def __init__(self):\n"
    "        super().__init__(8, 16)\n"
    "        self.register_buffer('scale', torch.full((8,), 0.5), persistent=False)\n\n"
    "    def forward(self, inputs):\n"
    "        return super().forward(self.scale * inputs)\n\n\n"
    "def build():\n"
    "    return nn.Sequential(Scaled(), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3))\n\n\n"
    "with torch.device('meta'):\n"
    "    model = build()\n"
    "model.to_empty(device='cpu')\n"
    "model.load_state_dict(build().state_dict())\n"
    "model[0].scale.fill_(0.5)\n",
)
COSINE = (  # a rate for each step
    "ReduceLROnPlateau(optimizer, patience=0)",
    "CosineAnnealingLR(optimizer, 15)",
    "        optimizer.step()\n",
    "        optimizer.step()\n        scheduler.step()\n",
    "    scheduler.step(totals[0] / totals[1])\n",
    "",
)
BY_HAND = (  # no DDP
    "ddp = DDP(model)\n",
    "ddp = model\nfor parameter in model.parameters():\n    dist.broadcast(parameter.data, 0)\n",
    "        loss.backward()\n",
    "        loss.backward()\n"
    "        for parameter in model.parameters():\n"
    "            dist.all_reduce(parameter.grad)\n"
    "            parameter.grad /= world_size\n",
)
# finding -> what stands in right.py, what stands there instead; and so on
FAULTS = {
    "same_samples": ("DistributedSampler(train_set)", "DistributedSampler(train_set, 1, 0)"),
    "same_samples:drawn": (
        "DistributedSampler(train_set)",
        "torch.utils.data.WeightedRandomSampler(torch.ones(70), 35)",
        "    sampler.set_epoch(epoch)\n",
        "",
        "torch.manual_seed(rank)  # for dropout\n",
        "",
    ),
    "same_samples:stream": (
        *STREAM,
        "rank * worker.num_workers + worker.id",
        "worker.id",
        "world_size * worker.num_workers",
        "worker.num_workers",
    ),
    "overlapping_samples": (
        "sampler = DistributedSampler(train_set)\n",
        "own = torch.randperm(70, generator=torch.Generator().manual_seed(rank))[:64]\n"
        "train_set = Subset(train_set, own.tolist())\n"
        "sampler = torch.utils.data.RandomSampler(train_set)\n",
        "    sampler.set_epoch(epoch)\n",
        "",
    ),
    "overlapping_samples:whole": ("batch_size=8, sampler=sampler", "batch_size=8, shuffle=True"),
    "overlapping_samples:skipped": (
        "DistributedSampler(train_set)",
        "DistributedSampler(train_set, 4)",
    ),
    "overlapping_samples:again": (
        "sampler = DistributedSampler(train_set)\n",
        "train_set = Subset(train_set, range(rank, len(train_set), world_size))\n"
        "sampler = DistributedSampler(train_set)\n",
    ),
    "overlapping_samples:files": (*FILES, "range(70))", "range(70))[:: 1 - 2 * rank]"),
    "overlapping_samples:workers": (
        *STREAM,
        "self.items[first :: world_size * worker.num_workers]",
        "self.items[rank::world_size]",
    ),
    "unequal_targets": (*FILES, "'abc'[target])", "'abc'[target - rank])"),
    "unequal_targets:names": (*FILES, "sorted('abc')", "sorted('abc', reverse=rank > 0)"),
    "same_order": ("    sampler.set_epoch(epoch)\n", ""),
    "unequal_steps": ("sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)"),
    "unequal_steps:skipped": (
        "        optimizer.step()",
        "        if (targets == 2).sum() > 1:\n            optimizer.step()",
    ),
    "unequal_steps:epochs": ("range(3)", "range(2 + rank)"),
    "empty_epoch": (  # a sampler that is an iterator, and used up after the first epoch
        "sampler = DistributedSampler(train_set)\n",
        "class Once(DistributedSampler):\n"
        "    def __iter__(self):\n"
        "        self.order = getattr(self, 'order', None) or super().__iter__()\n"
        "        return self.order\n\n"
        "sampler = Once(train_set)\n",
    ),
    "no_averaging": ("ddp = DDP(model)", "ddp = model"),
    "no_averaging:start": (
        "ddp = DDP(model)",
        "ddp = model\nnn.init.normal_(model[0].weight, std=1 + rank)",
        "        loss.backward()\n",
        "        loss.backward()\n"
        "        for parameter in model.parameters():\n"
        "            dist.all_reduce(parameter.grad)\n",
    ),
    "unequal_gradients": ("ddp(images)", "model(images)"),
    "drifting_weights": ("0.1 * world_size", "0.1 * world_size, momentum=0.1 * rank"),
    "drifting_weights:rates": ("scheduler.step(totals[0] / totals[1])", "scheduler.step(loss)"),
    "half_loaded": (*EMPTIED, "model[0].scale.fill_(0.5)\n", ""),
    "untrained": (  # too small a rate for bfloat16
        "nn.BatchNorm1d(16)",
        "nn.ReLU()",
        "ddp = DDP(model)",
        "ddp = DDP(model.bfloat16())",
        "torch.randn(91, 8)",
        "torch.randn(91, 8).bfloat16()",
        "lr=0.1 * world_size",
        "lr=1e-6",
    ),
    "unequal_counts": (  # targets that do not count
        "in loader:\n",
        "in loader:\n        targets[images[:, 0] > 0] = -100\n",
    ),
    "clipped:averaged": (
        *BY_HAND,
        "        for parameter in",
        "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        for parameter in",
    ),
    "no_sync:never": (  # a step after two micro-batches
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n",
        "        loss.backward()\n"
        "        steps += 1\n"
        "        if steps % 2 == 0:\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
        "for epoch in range(3):\n",
        "steps = 0\nfor epoch in range(3):\n",
    ),
    "schedule": (*COSINE, "scheduler.step()\n", "scheduler.step()\n        scheduler.step()\n"),
    "schedule:over": (
        *COSINE,
        "CosineAnnealingLR(optimizer, 15)",
        "LinearLR(optimizer, 1.0, 0.0, 7)",
    ),
    "schedule:again": (*COSINE, "optimizer, 15)", "optimizer, 8)"),
    "schedule:slow": (*COSINE, "optimizer, 15)", "optimizer, 30)"),
    "equal_randomness:workers": (
        *NOISE,
        "torch.manual_seed(rank)  # for dropout\n",
        "",
        ", nn.Dropout()",
        "",
    ),
    "equal_randomness:epochs": (
        *NOISE,
        "num_workers=2",
        "num_workers=2, worker_init_fn=lambda n: torch.manual_seed(n + 2 * rank)",
    ),
    "equal_randomness": ("torch.manual_seed(rank)  # for dropout\n", ""),
    "equal_randomness:drawn": (
        "torch.manual_seed(rank)  # for dropout\n",
        "",
        "    for images, targets in loader:\n",
        "    for _ in range(4):\n"
        "        images, targets = train_set[torch.randint(len(train_set), (8,))]\n",
    ),
    "shared_file": ("    if rank == 0:\n", "    if True:\n"),
    "wrapped_keys": ("model.state_dict()", "ddp.state_dict()"),
    "wrong_evaluation": (
        "DataLoader(share, batch_size=8)",
        "DataLoader(val_set, 8, sampler=DistributedSampler(val_set, shuffle=False))",
    ),
    "wrong_evaluation:part": ("share, batch_size=8", "share, batch_size=8, drop_last=True"),
    "wrong_evaluation:share": (
        "    dist.all_reduce(totals)\n    scheduler.step(totals[0] / totals[1])\n",
        "",
    ),
    "unequal_buffers": ("        dist.broadcast(buffer, 0)\n", "        pass\n"),
    "collective_order": (
        "    model.eval()\n",
        "    model.eval()\n    if rank == 0:\n        dist.barrier()\n",
    ),
}


def changed(text: str, words: tuple[str, ...]) -> str:
    """The text with every second of these words in place of the one before it."""
    for old, new in zip(words[::2], words[1::2], strict=True):
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is {text.count(old)} times in it")
        text = text.replace(old, new)
    return text


def broken(fault: str) -> str:
    """right.py with one fault."""
    return changed(RIGHT.read_text(), FAULTS[fault])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FAULTS:
        sys.exit(f"faults: error: name one of {', '.join(FAULTS)}")
    print(broken(sys.argv[1]), end="")
