"""Right scripts where a hasty doctor would cry wolf: changes of docs/examples/doctor/right.py.

Each is a list of texts: what stands there, what stands there instead, and so on.
"""

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
# Faulty scripts where a finding was once lost, and it.
FAULTY = {
    "a group of one rank for DDP": (
        ("ddp = DDP(model)\n", GROUP_OF_ONE), "no_averaging",
    ),
    "a reduced loss and no shares": ((LOSS, REDUCED, *UNDIVIDED), "same_samples"),
    "gathered losses and no shares": ((LOSS, GATHERED, *UNDIVIDED), "same_samples"),
    "one order under a wrapper in eval mode": (  # as Lightning leaves it; and none asks for a sixth
        (EPOCH, "    sampler.set_epoch(max(epoch, 1))\n",
         "    model.train()\n", "    model.train()\n    ddp.training = not epoch\n",
         LOOP, "    for _, (images, targets) in zip(range(5), loader):\n"),
        "same_order",
    ),
    "a SyncBatchNorm of one's own and no shares": (
        ("model = nn.Sequential(",
         "class Synced(nn.BatchNorm1d):\n"
         "    def forward(self, x):\n"
         "        if self.training:\n"
         "            own = torch.stack([x.mean(0), x.square().mean(0)])\n"
         "            both = all_reduce(own) / world_size\n"
         "            x = (x - both[0]) / (both[1] - both[0].square() + 1e-5).sqrt()\n"
         "        return x * self.weight + self.bias\n\n\n"
         "from torch.distributed.nn.functional import all_reduce\n\nmodel = nn.Sequential(",
         "nn.BatchNorm1d(16)", "Synced(16)", *UNDIVIDED),
        "same_samples",
    ),
    "a reduced loss and shares that nobody adds up": (
        (LOSS, REDUCED, "    dist.all_reduce(totals)\n", ""), "wrong_evaluation",
    ),
    "a sum that equals the size": (  # of percentages, say
        (*PADDED, "    dist.all_reduce(totals)\n",
         "    dist.all_reduce(totals)\n    dist.all_reduce(torch.tensor([21.0 * rank]))\n"),
        "wrong_evaluation",
    ),
    "a batch in two parts": (
        ("batch_size=8, sampler", "batch_size=7, sampler", LOSS, "",
         STEP,
         "        optimizer.zero_grad()\n"
         "        for part in range(2):\n"
         "            outputs = ddp(images[part::2])\n"
         "            (nn.functional.cross_entropy(outputs, targets[part::2]) / 2).backward()\n"
         "        optimizer.step()\n"),
        "no_sync",
    ),
    "other classes of augmented files": (  # whose names alone tell that they are the same
        ("train_set = TensorDataset(images[:70], targets[:70])\n",
         "class Files(TensorDataset):\n"
         "    def __getitem__(self, index):\n"
         "        image, target = super().__getitem__(index)\n"
         "        return image + rank, (target + rank) % 3\n\n\n"
         "train_set = Files(images[:70], targets[:70])\n"
         "train_set.paths = [f'{n}.png' for n in range(70)]\n"),
        "unequal_targets",
    ),
}  # fmt: skip

RIGHT = {
    "a sum by the count of all": (
        LOSS, COUNTED.replace("targets)\n", "targets, reduction='sum') * world_size / count\n"),
    ),
    "own means, weighed": (  # as much as its targets are of all
        LOSS, COUNTED.replace("targets)\n", "targets) * own / count * world_size\n"),
    ),
    "a part that each rank weighs": (  # by gradients, as VQGAN weighs its critic
        LOSS, LOSS + "        loss = loss / (1.5 + rank) + loss.detach() * loss\n",
    ),
    "a few targets that do not count": (LOSS, MASKED.replace("] > 0]", "] > 1.8]")),
    "gradients that counts weigh": (
        *UNDER_RANK, LOSS, COUNTED, STEP,
        STEP.replace("        optimizer.step()\n", "        for p in model.parameters():\n"
                     "            p.grad *= own * world_size / count\n"
                     + AVERAGE + "        optimizer.step()\n"),
    ),
    "functional collectives": (
        IMPORTS, IMPORTS + "from torch.distributed._functional_collectives import all_reduce\n",
        "    dist.all_reduce(totals)\n",
        "    totals = all_reduce(totals, 'sum', dist.group.WORLD)\n",
        *UNDER_RANK, STEP,
        STEP.replace(
            "        optimizer.step()\n",
            AVERAGE.replace("dist.all_reduce(flat)", "flat = all_reduce(flat, 'sum', [0, 1])")
            + "        optimizer.step()\n",
        ),
    ),
    "a share in collate_fn": (  # indices are places in it, and a batch is an object
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
    ),
    "a list of samples for an index": (
        "DataLoader(train_set, batch_size=8, sampler=sampler",
        "DataLoader(train_set, collate_fn=lambda batch: batch[0], "
        "sampler=BatchSampler(sampler, 5, False)",
        "DataLoader(share, batch_size=8",
        "DataLoader(val_set, collate_fn=lambda batch: batch[0], "
        "sampler=BatchSampler(range(rank, len(val_set), world_size), 5, False)",
        IMPORTS, IMPORTS + "from torch.utils.data import BatchSampler\n",
    ),
    "a buffer beside the model": (
        "model = nn.Seq", "criterion = nn.CrossEntropyLoss(torch.ones(3))\nmodel = nn.Seq",
        LOSS, "        loss = criterion(ddp(images), targets)\n",
    ),
    "drawn with replacement": (
        SAMPLER, "torch.utils.data.WeightedRandomSampler(torch.ones(70), 35)", EPOCH, "",
    ),
    "files divided by rank": (  # so an index has two targets, and classes come in turn
        "torch.randint(3, (91,))", "torch.arange(91) % 3",
        "train_set = TensorDataset(images[:70], targets[:70])",
        "train_set = TensorDataset(images[rank:60:2], targets[rank:60:2])\n"
        "train_set.labels = ['abc'[target] for target in targets[rank:60:2]]",
        SAMPLER, "torch.utils.data.SequentialSampler(train_set)", EPOCH, "",
    ),
    "a share inside a data set": (  # sorted by class, so an index has one target
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
        SAMPLER, "torch.utils.data.SequentialSampler(train_set)", EPOCH, "",
    ),
    "rank 0 decides to stop": (
        "in val_loader:", "in DataLoader(val_set, batch_size=8) if rank == 0 else []:",
        "    scheduler.step(totals[0] / totals[1])\n",
        "    stop = torch.tensor([float(totals[0] / totals[1] < 100)])\n"
        "    dist.broadcast(stop, 0)\n"
        "    if stop and epoch == 1:\n"
        "        break\n",
    ),
    "a part and a tail": (
        "in val_loader:",
        "in (\n"
        "            *DataLoader(Subset(val_set, range(rank * 10, rank * 10 + 10)), 5),\n"
        "            *(DataLoader(Subset(val_set, [20]), 5) if rank == 0 else []),\n"
        "        ):",
    ),
    "divided optimizer": (
        ADAM, "ZeRO(ddp.parameters(), torch.optim.SGD, lr=0.1 * world_size)",
        IMPORTS,
        IMPORTS + "from torch.distributed.optim import ZeroRedundancyOptimizer as ZeRO\n",
    ),
    "one batch an epoch": (  # its loader draws a seed from torch's stream, equal on all ranks
        "batch_size=8, sampler=sampler", "batch_size=35, sampler=sampler",
        "nn.BatchNorm1d(16), nn.Dropout()", "nn.BatchNorm1d(16)",
        "torch.manual_seed(rank)  # for dropout\n", "",
    ),
    "drawn by hand": (
        LOOP,
        "    for _ in range(4):\n"
        "        images, targets = train_set[torch.randint(len(train_set), (8,))]\n",
    ),
    "a pass of no batches": (
        STEP, STEP + "        list(DataLoader(val_set, batch_size=8, sampler=[]))\n",
    ),
    "a loader that is let go": (  # and so are its workers, whom nobody else would end
        "from datetime import timedelta\n", "import weakref\nfrom datetime import timedelta\n",
        "dist.destroy_process_group()",
        "let_go = weakref.ref(loader)\ndel loader\nassert let_go() is None\n"
        "dist.destroy_process_group()",
    ),
    "an average that holds the model": (  # on rank 0 alone, and larger than what DDP wraps
        "ddp = DDP(model)\n",
        "ddp = DDP(model)\n"
        "if rank == 0:\n"
        "    import copy\n\n    average = nn.ModuleList([model, copy.deepcopy(model).eval()])\n",
    ),
    "an optimizer that averages": (
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
    ),
    "a wrapper that is saved and copied": (
        "ddp = DDP(model)\n",
        "ddp = DDP(model)\nimport copy\n\n"
        'copy.deepcopy(ddp)\ntorch.save(ddp, f"whole-{rank}.pt")\n',
    ),
    "batches that each rank slices": (
        SAMPLER, "torch.utils.data.SequentialSampler(train_set)", EPOCH, "",
        LOOP,
        LOOP + "        part = slice(rank, None, world_size)\n"
        "        images, targets = images[part], targets[part]\n",
    ),
    "a list of batches for all epochs": (
        "for epoch in range(3):\n", "batches = list(loader)\nfor epoch in range(3):\n",
        LOOP, "    for images, targets in batches:\n", EPOCH, "",
    ),
    "a sweep": ("ddp = DDP(model)\n", "ddp = model\n", *SWEEP),
    "a sweep under DDP": ("ddp = DDP(model)\n", GROUP_OF_ONE, *SWEEP),
    "one image repeated": ("images[:70], targets[:70]", "images[:69], targets[:69]"),
    "two models evaluated": ("in val_loader:", "in (*val_loader, *val_loader):"),
    "length buckets": (  # batches of like lengths, shuffled alike on all ranks, then divided
        f"sampler = {SAMPLER}\n",
        "batches = torch.arange(64).view(8, 8).tolist()\n",
        "batch_size=8, sampler=sampler",
        "batch_sampler=batches[rank::world_size]",
        EPOCH,
        "    torch.manual_seed(epoch)\n"
        "    mixed = [batches[n] for n in torch.randperm(8)]\n"
        "    loader = DataLoader(train_set, batch_sampler=mixed[rank::world_size])\n"
        "    torch.manual_seed(epoch * world_size + rank)\n",
    ),
    "sampler written as a list": (
        EPOCH,
        "    generator = torch.Generator().manual_seed(epoch)\n"
        "    order = torch.randperm(70, generator=generator).tolist()[rank::world_size]\n"
        "    loader = DataLoader(train_set, batch_size=8, sampler=order)\n",
    ),
    "stopped together": (
        "sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)",
        LOOP,
        "    batches = iter(loader)\n"
        "    while True:\n"
        "        images, targets = next(batches, (None, None))\n"
        "        more = torch.tensor(float(images is not None))\n"
        "        dist.all_reduce(more, dist.ReduceOp.MIN)\n"
        "        if not more:\n"
        "            break\n",
    ),
    "joined over unequal shares": (
        *NO_NORM,
        "sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)",
        IMPORTS, IMPORTS + "from torch.distributed.algorithms.join import Join\n",
        LOOP + LOSS + STEP,
        "    with Join([ddp]):\n"
        + "".join(f"    {line}\n" for line in (LOOP + LOSS + STEP).splitlines()),
    ),
    "unequal shares, averaged after each": (
        *NO_NORM, *UNDER_RANK,
        "sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)",
        "    model.eval()\n",
        "    for p in model.parameters():\n"
        "        dist.all_reduce(p.data)\n"
        "        p.data /= world_size\n"
        "    model.eval()\n",
    ),
    "averaged by hand in a flat bucket, then clipped": (
        *UNDER_RANK, "        loss.backward()\n",
        "        loss.backward()\n" + AVERAGE
        + "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n",
    ),
    "compressed by PowerSGD": (
        IMPORTS,
        IMPORTS + "from torch.distributed.algorithms import ddp_comm_hooks\n"
        "power = ddp_comm_hooks.powerSGD\n",
        "ddp = DDP(model)\n",
        "ddp = DDP(model)\n"
        "state = power.PowerSGDState(None, 1, start_powerSGD_iter=3, min_compression_rate=0.5)\n"
        "ddp.register_comm_hook(state, power.powerSGD_hook)\n",
    ),
    "a discriminator's inner module": (
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
    ),
    "a warm-up, then a cosine for each epoch": (
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
    "accumulated, averaged at the end": (
        "for epoch in range(3):\n", "steps = 0\nfor epoch in range(3):\n",
        LOSS + STEP,
        "        steps += 1\n"
        "        ddp.require_backward_grad_sync = steps % 2 == 0\n"
        + LOSS + "        loss.backward()\n"
        "        if steps % 2 == 0:\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
    ),
    "two losses of a forward pass": (  # of models that share nothing but their wrapper
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
    "two losses of a batch": (
        STEP,
        "        optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        ddp(images + 0.1 * torch.randn_like(images)).square().mean().backward()\n"
        "        optimizer.step()\n",
    ),
    "wrapped again after unfreezing": (
        "ddp = DDP(model)\n",
        "model[0].requires_grad_(False)\n"
        "ddp = DDP(model)\n"
        "model[0].requires_grad_(True)\n"
        "ddp = DDP(model)\n",
    ),
    "a log of all ranks": (
        "    scheduler.step(",
        "    with open('log.txt', 'a') as log:\n        print(rank, file=log)\n    scheduler.step(",
    ),
    "a thread that saves": (
        "        torch.save(model.state_dict(), \"checkpoint.pt\")\n",
        "        copy = {name: value.clone() for name, value in model.state_dict().items()}\n"
        "        saver = threading.Thread(target=torch.save, args=(copy, \"checkpoint.pt\"))\n"
        "        saver.start()\n"
        "        saver.join()\n",
        "from datetime import timedelta\n", "import threading\nfrom datetime import timedelta\n",
    ),
}  # fmt: skip
