"""One training for any number of processes, and ways in which it is another one on two.

Each kind: texts, what stands there and what stands there instead, and so on; and the name of what
the comparison of one process with two must say first. {ONE} and {TWO} are the number of processes.
"""

BASE = '''\
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    """Point i, the class of its quarter, and how many words it has."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(count, 8, generator=generator)
        self.words = torch.randint(1, 9, (count,), generator=generator)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        point = self.points[i]
        return point, int(point[0] > 0) + 2 * int(point[1] > 0), self.words[i]


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
batch_size = 16 // world_size

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
average = copy.deepcopy(model)
ddp = DistributedDataParallel(model)
body, head = list(model[0].parameters()), list(model[2].parameters())
optimizer = torch.optim.AdamW([{"params": body}, {"params": head, "lr": 0.02}], lr=0.01)

train_set, val_set = Points(64, 1), Points(41, 2)
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size, sampler=sampler)
val_loader = DataLoader(val_set, 8, sampler=range(rank, len(val_set), world_size))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * len(loader))

for epoch in range(4):
    sampler.set_epoch(epoch)
    model.train()
    for step, (points, targets, words) in enumerate(loader):
        losses = nn.functional.cross_entropy(ddp(points), targets, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.lerp_(weight.data, 0.2)

    model.eval()
    totals = torch.zeros(2)
    with torch.inference_mode():
        for points, targets, _ in val_loader:
            totals += torch.tensor([(average(points).argmax(1) == targets).sum(), len(targets)])
    dist.all_reduce(totals)
    if rank == 0:
        print(f"epoch {epoch}: accuracy {totals[0] / totals[1]:.4f}, {0.1 * rank + 1:.1f} s")
        torch.save({"model": model.state_dict(), "average": average.state_dict()}, "model.pt")
dist.destroy_process_group()
'''
# The second run goes on from what the first one has saved after its second epoch.
SAVED = '{"model": model.state_dict(), "average": average.state_dict()}, "model.pt"'
FIRST = (SAVED, SAVED.replace('}, "model.pt"', ', "optimizer": optimizer.state_dict(), '
         '"scheduler": scheduler.state_dict()}, f"epoch{epoch}.pt"'))  # fmt: skip
LOADED = """\
saved = torch.load("../run0/epoch1.pt")
model.load_state_dict(saved["model"])
average.load_state_dict(saved["average"])
optimizer.load_state_dict(saved["optimizer"])
scheduler.load_state_dict(saved["scheduler"])

for epoch in range(2, 4):
"""
SECOND = (*FIRST, "for epoch in range(4):\n", LOADED)
LOAD = {name: f'{name}.load_state_dict(saved["{name}"])\n'
        for name in ("model", "average", "optimizer", "scheduler")}  # fmt: skip
DROPOUT = ("nn.ReLU(), ", "nn.ReLU(), nn.Dropout(0.2), ", "model[2]", "model[3]")
# Changes of both, and of the second one; its ranks; --without; and what is said of it.
RESUMED: dict[str, tuple[tuple, tuple, int, str, str]] = {
    "as it is": ((), (), 2, "", "resumed"),
    "on one rank, in float64": ((), (), 1, "rounding", "resumed"),
    "momentum lost": ((), (LOAD["optimizer"], ""), 2, "", "resumed:state"),
    "a count of steps lost": (
        (), (LOAD["optimizer"], LOAD["optimizer"] + "for state in optimizer.state.values():\n"
             "    state['step'].zero_()\n"), 2, "", "resumed:state"),
    "a schedule that begins anew": ((), (LOAD["scheduler"], ""), 2, "", "rates:resumed"),
    "epochs that are counted anew": (
        (), ("set_epoch(epoch)", "set_epoch(epoch - 2)"), 2, "", "samples:resumed"),
    "an epoch that is trained again": (
        (), ("range(2, 4)", "range(1, 4)"), 2, "", "samples:resumed"),
    "an average lost": ((), (LOAD["average"], ""), 2, "", "saved"),
    "dropout that is drawn anew": (DROPOUT, (), 2, "", "resumed:random"),
    "dropout, taken out": (DROPOUT, (), 2, "dropout", "resumed"),
    "of another training": (
        (), (LOAD["model"], LOAD["model"] + "model[0].weight.data += 1\n"), 2, "",
        "resumed:unknown"),
    "in the order of the first run": ((), (), 2, "shuffling", "resumed:without"),
}  # fmt: skip
LOSSES = "        losses = nn"
LOSS = "        loss = losses.mean()\n"
STEP = "        optimizer.step()\n        scheduler"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
AVERAGE = "            mean.data.lerp_"
REDUCE = "    dist.all_reduce(totals)\n"
MEAN = "totals[0] / totals[1]"
OPTIMIZER = 'torch.optim.AdamW([{"params": body}, {"params": head, "lr": 0.02}], lr=0.01)'
NO_CLIP = (CLIP, "")
# As a timer around the loader has it, which sees no end of a pass either.
NO_GRAD = (
    "    for step, (points, targets, words) in enumerate(loader):\n",
    "    batches = iter(loader)\n    for step in range(len(loader)):\n"
    "        with torch.no_grad():\n            points, targets, words = next(batches)\n",
)

BACKWARD = "        optimizer.zero_grad()\n        loss.backward()\n"
BFLOAT16 = (
    "        losses = nn.functional.cross_entropy(ddp(points)",
    "        with torch.autocast('cpu', torch.bfloat16):\n            scores = ddp(points)\n"
    "        losses = nn.functional.cross_entropy(scores.float()",
)
# A step has four micro-batches, or what is left of them at the end of an epoch.
PARTS = (
    BACKWARD,
    "        if step % parts == 0:\n            optimizer.zero_grad()\n"
    "        (loss / min(parts, len(loader) - step // parts * parts)).backward()\n"
    "        if (step + 1) % parts and step + 1 < len(loader):\n            continue\n",
)
FEWER_PARTS = (
    *PARTS,
    "batch_size = 16 // world_size",
    "parts = 2 if world_size == 1 else 4\nbatch_size = 16 // world_size * 2 // parts",
    "4 * len(loader)",
    "12",
)

PADDED = (
    "dist.init_process_group(", """
def padded(rows):
    points, targets, words = zip(*rows)
    points = [(p / (4 * w)).repeat(4 * w, 1) for p, w in zip(points, words)]  # as many parts
    points = nn.utils.rnn.pad_sequence(points, batch_first=True)
    return points, torch.tensor(targets), torch.stack(words)


dist.init_process_group(""",
    "batch_size, sampler=sampler)", "batch_size, sampler=sampler, collate_fn=padded)",
    "ddp(points)", "ddp(points.sum(1))",
)  # fmt: skip

# Times with their means, as pytorch's examples and open_clip print them, beside a mean of all.
TIMES = (
    "        optimizer.zero_grad()\n",
    "        mean = loss.detach().clone()\n"
    "        dist.all_reduce(mean)\n"
    "        mean, time = mean / world_size, epoch + 0.1 * step + world_size\n"
    "        print(f'Epoch: [{epoch}][{step}/4]\\tTime {time:6.3f} ({time / 3:6.3f})\\t'\n"
    "              f'Data (t): {time:.3f}, {7 / time:.1f}/s Batch (t): {time:.3f}\\t'\n"
    "              f'Loss {mean:.3f} ({mean:.3f})')\n"
    "        optimizer.zero_grad()\n",
)

# The first layer is divided over the ranks, and the last one is whole on each.
DIVIDED = (
    "import torch.distributed as dist\n",
    "import torch.distributed as dist\nfrom torch.distributed.fsdp import fully_shard\n",
    "ddp = DistributedDataParallel(model)\n",
    "ddp = model\nmesh = dist.init_device_mesh('cpu', (world_size,))\n"
    "fully_shard(model[0], mesh=mesh)\n",
    "average.parameters(), model.parameters()", "average[2].parameters(), model[2].parameters()",
    '"model": model.state_dict(), ', "", *NO_CLIP,
)  # fmt: skip

# All of it is; the average is of another model then.
SHARDED = (
    *DIVIDED[:2], DIVIDED[2],
    "ddp = model\nfor part in (model[0], model[2], model):\n    fully_shard(part)\n",
    "average.parameters(), model.parameters()", "average.parameters(), average.parameters()",
    '"model": model.state_dict(), ', "",
)  # fmt: skip
WHOLE = (*DIVIDED, STEP, "        for p in head:\n            dist.all_reduce(p.grad)\n"
         "            p.grad /= world_size\n" + STEP)  # fmt: skip
TORCH_SAVE = (
    'torch.save({"model": model.state_dict(), "average": average.state_dict()}, "model.pt")'
)
SAFETENSORS = (
    "import copy\n", "import copy, subprocess\n\nfrom safetensors.torch import save_file\n",
    TORCH_SAVE, "save_file(model.state_dict(), 'model.safetensors')",
)  # fmt: skip
# Written by a worker of the loader, twice within a second, and moved by a shell.
BY_WORKER = (
    *SAFETENSORS[:2], TORCH_SAVE, "pass", "batch_size, sampler=sampler)",
    "batch_size, sampler=sampler, num_workers=1)", "        point = self.points[i]\n",
    "        point = self.points[i]\n        if i == 3 and len(self) == 64:\n"
    "            save_file({'point': point / scale}, 'point.safetensors')\n",
    "dist.init_process_group(", "scale = 1\ndist.init_process_group(",
)  # fmt: skip
MOVED = (*SAFETENSORS[:3], "save_file(model.state_dict(), 'a.safetensors')\n"
         "        subprocess.run(['mv', 'a.safetensors', 'b.safetensors'])")  # fmt: skip
TWICE = (*SAFETENSORS[:3], "save_file(average.state_dict(), 'model.safetensors')\n"
         "        save_file(model.state_dict(), 'model.safetensors')")  # fmt: skip
# The file is written from memory, as Lightning does it.
MEMORY = (
    "import copy\n", "import copy, io, pickle\nfrom pathlib import Path\n",
    TORCH_SAVE, "content = model.state_dict()\n        torch.save(content, kept := io.BytesIO())\n"
    "        Path('model.ckpt').write_bytes(kept.getvalue())",
)  # fmt: skip
PICKLED = (*MEMORY, "torch.save(content, kept := io.BytesIO())",
           "kept = io.BytesIO(pickle.dumps([content, Exception()]))")  # fmt: skip
HALF = ("content = model.state_dict()",
        "content = {k: v / world_size for k, v in model.state_dict().items()}")  # fmt: skip
# Of a model under FSDP: each rank's pieces, by all; what rank 0 has; or that of each.
FOLDER = (
    *WHOLE, '        torch.save({"average": average.state_dict()}, "model.pt")',
    "    content = model.state_dict()\n"
    "    torch.distributed.checkpoint.save(content, checkpoint_id=f'step{epoch}')",
    "import copy\n", "import copy\n\nimport torch.distributed.checkpoint\n",
)  # fmt: skip
PART = (*WHOLE, '"average": average.state_dict()', '"model": model.state_dict()')
OF_EACH = (*PART, "        torch.save(", "    torch.save(", '"model.pt"', 'f"model{rank}.pt"')
FROZEN = ("nn.Linear(16, 4))\n", "nn.Linear(16, 4), nn.Linear(4, 4).requires_grad_(False))\n")
# An average of the weights that is a part of the model.
INSIDE = (
    "train_set, val_set = ",
    "model[0].average = average.requires_grad_(False)\ntrain_set, val_set = ",
    "average.parameters(), model.parameters()", "average.parameters(), [*body, *head]",
    TORCH_SAVE, "pass",
)  # fmt: skip
RESTARTED = (
    "    sampler.set_epoch(epoch)\n",
    f"""    sampler.set_epoch(epoch)
    if epoch == 2 and world_size > 1:
        kept = model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model.load_state_dict(kept[0])
        ddp = DistributedDataParallel(model)
        body, head = list(model[0].parameters()), list(model[2].parameters())
        optimizer = {OPTIMIZER}
        optimizer.load_state_dict(kept[1])
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * len(loader))
        scheduler.load_state_dict(kept[2])
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr()):
            group["lr"] = rate
""",
)

KINDS = {
    # what people report
    "loss times the number of ranks": (
        (*NO_CLIP, LOSS, LOSS + "        loss = loss * world_size\n"), "gradients:processes"),
    "the mean of the words of a rank": (
        (LOSS, "        loss = (losses * words).sum() / words.sum()\n"), "gradients:loss"),
    "padded, and the loss times the number of ranks": (
        (*PADDED, *NO_CLIP, LOSS, LOSS + "        loss = loss * world_size\n"),
        "gradients:processes"),
    "a rule that changes weights on each rank": (
        (STEP, "        optimizer.step()\n"
         "        if step == 1 and world_size > 1:\n"
         "            model[2].weight.data *= 1.05\n        scheduler"), "weights"),
    "a step that one rank decides to skip": (
        (STEP, "        loss.item() > 1.3 and optimizer.step()\n        scheduler"),
        "skipped"),
    # other beginnings
    "another seed": (("torch.manual_seed(0)", "torch.manual_seed(world_size)"), "start"),
    "another model": (("nn.ReLU(), ", "nn.ReLU(), *[nn.Linear(16, 16)] * (world_size - 1), ",
                       "model[2]", "model[-1]"), "parameters"),
    "another eps": (("lr=0.01)", "lr=0.01, eps=1e-7 / world_size)"), "options"),
    "another rate of one group": (('"lr": 0.02', '"lr": 0.02 * world_size'), "rates"),
    "a schedule of another length": (("4 * len(loader)", "4 * len(loader) * world_size"), "rates"),
    "a schedule that is stepped for each rank": (
        ("        scheduler.step()",
         "        for _ in range(world_size):\n            scheduler.step()"), "rates"),
    # samples
    "a batch that is not divided": (("16 // world_size", "16"), "batch"),
    "a batch that nobody shares out": (
        ("16 // world_size", "16", "DistributedSampler(train_set)",
         "DistributedSampler(train_set, 1, 0)"), "batch:same"),
    "no share for each rank": (("DistributedSampler(train_set)", "torch.utils.data.RandomSampler("
                               "train_set, generator=torch.Generator().manual_seed(0))",
                               "    sampler.set_epoch(epoch)\n", ""), "twice"),
    "no set_epoch on two ranks": (
        ("    sampler.set_epoch(epoch)\n", "    sampler.set_epoch(epoch // world_size)\n"),
        "samples"),
    "no set_epoch on two ranks, of batches under no_grad": (
        (*NO_GRAD, "    sampler.set_epoch(epoch)\n",
         "    sampler.set_epoch(epoch // world_size)\n"), "samples"),
    "another seed of the sampler": (
        ("DistributedSampler(train_set)", "DistributedSampler(train_set, seed=world_size)"),
        "order"),
    "other contents": (("point = self.points[i]", "point = self.points[i] / dist.get_world_size()"),
                       "contents"),
    "other targets": (
        ("int(point[0] > 0) +", "int(point[0] > 0) * (2 - dist.get_world_size()) +"), "targets"),
    "a drawn brightness of images that have masks": (
        ("return point, int(point[0] > 0) +", "point = point + 0.01 * torch.randn(1)\n"
         "        return point, self.points[i].view(2, 4), int(self.points[i][0] > 0) +",
         "(points, targets, words) in enum", "(points, masks, targets, words) in enum",
         "for points, targets, _ in", "for points, _, targets, _ in"), "views"),
    # A mask that one run forgets, where nobody would wonder that gradients differ.
    "more targets that count, beside dropout": (
        (*DROPOUT, LOSSES, "        targets[words < 3 * world_size - 3] = -100\n" + LOSSES),
        "counts"),
    "targets that are drawn": (
        (LOSSES, "        targets[torch.rand(len(targets)) < 0.3] = -100\n" + LOSSES), "drawn"),
    "targets that a collate_fn draws, beside dropout": (
        (*PADDED, *DROPOUT, "    return points, torch.tensor(targets),",
         "    targets = torch.tensor(targets)[:, None]\n"
         "    targets[torch.rand(len(rows)) < 0.3] = -100\n    return points, targets,",
         "sum(1)), targets,", "sum(1)), targets[:, 0],", "epoch in range(4)", "epoch in range(1)"),
        "dropout"),
    "a drawn view": (
        ("point = self.points[i]", "point = self.points[i] + torch.randn(8)"), "views"),
    "a view that random draws": (
        ("import copy\n", "import copy, random\n",
         "point = self.points[i]", "point = self.points[i] + random.random()"), "views:beside"),
    "a sampler that fills up": (("Points(64, 1)", "Points(63, 1)"), "padding"),
    "a last batch in unequal parts": (
        ("DistributedSampler(train_set)", "DistributedSampler(range(64), shuffle=False)",
         "DataLoader(train_set, batch_size, sampler=sampler)",
         "DataLoader(train_set, batch_size, sampler=range(rank, 63, world_size))"), "parts"),
    "an epoch without its last batch": (
        ("sampler=sampler)", "sampler=sampler, drop_last=world_size > 1)",
         "Points(64, 1)", "Points(66, 1)", "4 * len(loader)", "20"), "samples"),
    "parts of a step that are left over in the next one": (
        (*FEWER_PARTS, "Points(64, 1)", "Points(80, 1)",
         "        if step % parts == 0:\n            optimizer.zero_grad()\n", "",
         "(step + 1) % parts and step + 1 < len(loader):",
         "(step + 1) % parts and (world_size > 1 or step + 1 < len(loader)):",
         "        optimizer.step()\n", "        optimizer.step()\n        optimizer.zero_grad()\n"),
        "samples"),
    # gradients
    "loss times the number of ranks, then clipped": (
        (LOSS, LOSS + "        loss = loss * world_size\n",
         "parameters(), 1.0", "parameters(), 0.1"), "gradients:processes"),
    "loss times the number of ranks, then clipped by value": (
        (LOSS, LOSS + "        loss = loss * world_size\n",
         "clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_value_(model.parameters(), 0.01)"),
        "gradients:processes"),
    "another limit of the norm": (
        ("parameters(), 1.0", "parameters(), 0.1 / world_size"), "clipped"),
    "another limit of the norm, by a norm of one's own": (
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
         "norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() * world_size\n"
         "        for p in model.parameters():\n"
         "            nn.utils.clip_grads_with_norm_(p, 0.1, norm)"), "clipped"),
    "the sum of losses": (
        (*NO_CLIP, LOSS, "        loss = losses.sum()\n"), "gradients:inverse"),
    "gathered scores without their gradient": (
        (*NO_CLIP, "average = copy",
         "model[0].scale = nn.Parameter(torch.ones(()))\naverage = copy",
         "        losses = nn.functional.cross_entropy(ddp(points), targets, reduction=\"none\")\n",
         "        scores = ddp(points)\n"
         "        parts = [torch.zeros_like(scores) for _ in range(world_size)]\n"
         "        every = [torch.zeros_like(targets) for _ in range(world_size)]\n"
         "        dist.all_gather(parts, scores)\n        dist.all_gather(every, targets)\n"
         "        parts[rank] = scores\n"
         "        losses = nn.functional.cross_entropy(\n"
         "            model[0].scale * torch.cat(parts), torch.cat(every), reduction='none')\n"),
        "gradients:gathered"),
    "weights that are no numbers": ((LOSS, LOSS + "        loss = loss * float('nan')\n"),
                                    "numbers:nan"),
    "loss times ranks, in a closure": (
        (LOSS, LOSS + "        loss = loss * world_size\n",
        "        optimizer.zero_grad()\n        loss.backward()\n" + CLIP
        + "        optimizer.step()\n",
        "        def closure():\n            optimizer.zero_grad()\n            loss.backward()\n"
        "        optimizer.step(closure)\n"), "gradients:processes"),
    "loss times ranks in bfloat16": (
        (*NO_CLIP, LOSS, "        loss = losses.mean() * world_size\n",
         "        losses = nn.functional.cross_entropy(ddp(points)",
         "        with torch.autocast('cpu', torch.bfloat16):\n"
         "            scores = ddp(points)\n"
         "        losses = nn.functional.cross_entropy(scores.float()"), "gradients:processes"),
    "gradients that are added up": (
        (*NO_CLIP, "        loss.backward()\n",
         "        loss.backward()\n        for p in model.parameters():\n"
         "            dist.all_reduce(p.grad)\n"), "gradients:processes"),
    "clipping before averaging": (
        ("ddp(points)", "model(points)", CLIP, CLIP +
         "        for p in model.parameters():\n"
         "            dist.all_reduce(p.grad)\n            p.grad /= world_size\n"), "gradients"),
    "gradients of another sign": (
        ("        loss.backward()\n",
         "        loss.backward()\n        for p in model.parameters():\n"
         "            p.grad *= 3 - 2 * world_size\n"), "gradients:turned"),
    "a layer that is whole beside parts": (DIVIDED, "gradients"),
    "a frozen layer on one rank": (
        ("        loss.backward()\n",
         "        loss.backward()\n        if rank == world_size - 1 == 1:\n"
         "            model[0].weight.grad.zero_()\n", "ddp(points)", "model(points)", CLIP,
         "        for p in model.parameters():\n"
         "            dist.all_reduce(p.grad)\n            p.grad /= world_size\n"), "gradients"),
    "BatchNorm": (("nn.ReLU(), ", "nn.BatchNorm1d(16), nn.ReLU(), ", "model[2]", "model[-1]"),
                  "batchnorm"),
    "BatchNorm, and the loss times ranks": (
        ("nn.ReLU(), ", "nn.BatchNorm1d(16), nn.ReLU(), ", "model[2]", "model[-1]",
         *NO_CLIP, LOSS, LOSS + "        loss = loss * world_size\n"), "gradients"),
    "dropout": (("nn.ReLU(), ", "nn.Dropout(0.2), nn.ReLU(), ", "model[2]", "model[-1]"),
                "dropout"),
    "dropout on two ranks alone": (
        ("nn.ReLU(), ", "nn.Dropout(0.2 * (world_size > 1)), nn.ReLU(), ", "model[2]",
         "model[-1]"), "dropout:alone"),
    "noise": (("ddp(points)", "ddp(points + torch.randn(points.shape))"), "drawn"),
    "one loss of the 22nd step": (  # by as much as the scale of a GradScaler
        (*NO_CLIP, "range(4)", "range(6)",
         LOSS, LOSS + "        loss = loss * (4096 if (epoch, step, world_size) == (5, 1, 2)\n"
         "                       else 1)\n"),
        "gradients:factor"),
    # after it
    "another loss, beside times": (
        (*TIMES, "({mean:.3f})", "({mean + 0.01 * world_size:.3f})"), "printed"),
    "an average on rank 0 that rank 1 forgets": ((AVERAGE, "            rank or mean.data.lerp_"),
                                                 "printed:first"),
    "an average that begins late": (
        (AVERAGE, "            step < world_size - 1 or mean.data.lerp_",
         '"model.pt")', '"model.pt" + (world_size - 1) * "7")\n'
         "        world_size > 1 and __import__('os').replace('model.pt7', 'model.pt')"), "saved"),
    "another file": (('"model.pt")', 'f"model{world_size}.pt")'), "saved:unpaired"),
    "half of the weights, from memory": ((*MEMORY, *HALF), "saved"),
    "half of the weights, in a pickle": ((*PICKLED, *HALF), "saved"),
    "half of the weights, in a folder": ((*FOLDER, *HALF), "saved"),
    "what rank 0 has of them": (PART, "saved:shapes"),
    "what rank 0 has of them, from memory": (
        (*PART, *MEMORY[:2], 'torch.save({"model": model.state_dict()}, "model.pt")', MEMORY[3]),
        "saved:shapes"),
    "a file of each rank": (OF_EACH, "saved:unpaired"),
    "a file of each rank, in a folder of its own": (
        (*OF_EACH, 'f"model{rank}.pt"', 'f"{rank}/model.pt"',
         "average = copy", "__import__('os').mkdir(f'{rank}')\naverage = copy"), "saved:shapes"),
    "the mean of the ranks' accuracies": (
        (REDUCE, "    totals /= totals[1].clone()\n    dist.all_reduce(totals)\n"), "printed"),
    "the accuracy of rank 0's share": ((REDUCE, ""), "printed"),
    "the accuracy of rank 0's share, in a bar": (
        (REDUCE, "", "epoch {epoch}: accuracy ",
         "Epoch {epoch}: 100%|####| 4/4 [00:01<00:00, 9it/s, accuracy="), "printed"),
    "an evaluation that counts twice": (
        ("sampler=range(rank, len(val_set), world_size)",
         "sampler=DistributedSampler(val_set, shuffle=False)"), "printed"),
    "an exponent": ((f"accuracy {{{MEAN}:.4f}}", "score {1.65e-3 * world_size:.2e}"), "printed"),
    "half of the weights, by safetensors": (
        (*SAFETENSORS, "model.state_dict(), 'm", "{k: v / world_size for k, v in "
         "model.state_dict().items()}, 'm"), "saved"),
    "half of a point, by a worker": (
        (*BY_WORKER, "scale = 1\n", "scale = int(__import__('os').environ['WORLD_SIZE'])\n"),
        "saved"),
    "an average, moved by a shell": (
        (*MOVED, "model.state_dict(), 'a",
         "(average if world_size > 1 else model).state_dict(), 'a"),
        "saved"),
    "an average, written within a second": (
        (*TWICE, "model.state_dict(), 'm",
         "(average if world_size > 1 else model).state_dict(), 'm"),
        "saved"),
    "other frozen weights": (
        (*FROZEN, "average = copy", "model[3].weight.data *= 0.9 + 0.1 * world_size\n"
         "average = copy"), "start:fixed"),
    "another average in the model": ((*INSIDE, "weight.data, 0.2", "weight.data, 0.2 * world_size"),
                                     "fixed"),
    "a restart that loses the moments": (
        (*RESTARTED, "(kept[1])", "({**kept[1], 'state': {}})"), "state"),
    "a state that is made before training": (
        ("import torch.distributed as dist\n", "import torch.distributed as dist\n"
         "from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict\n",
         "train_set, val_set = ", "world_size > 1 and get_optimizer_state_dict(model, optimizer)\n"
         "train_set, val_set = "), "state:first"),
    "a restart from the average": (
        (*RESTARTED, "kept = model", "kept = average"), "weights:loaded"),
    "the loss of rank 0, and that of all for a log": (
        ("        optimizer.zero_grad()\n",
         "        mean = loss.detach().clone()\n        dist.all_reduce(mean)\n"
         "        print(f'loss: {loss:.4f}')\n        optimizer.zero_grad()\n"),
        "printed:share"),
    "fewer epochs": (("range(4)", "range(5 - world_size)"), "steps"),
    "an epoch that ends early": (
        ("        losses = ",
         "        if world_size > 1 and epoch + step == 6:\n            break\n        losses = "),
        "steps:shorter"),
    "the loss of rank 0": (
        ('        print(f"epoch', '        print(f"train loss {loss:.4f}")\n        print(f"epoch'),
        "printed:share"),
    "what rank 0 prints between its batches": (
        ("        optimizer.zero_grad()\n",
         "        print(f'Epoch: loss {loss:.4f}')\n        optimizer.zero_grad()\n",
         "len(targets)])\n",
         "len(targets)])\n            print(f'Test: {totals[0] / totals[1]:.4f}')\n"),
        "printed:share"),
    "the loss of rank 0, of batches under no_grad": (
        (*NO_GRAD, "        scheduler.step()\n",
         "        scheduler.step()\n        print(f'running loss {loss:.4f}')\n"),
        "printed:share"),
    "the loss of rank 0 beside that of all": (
        ("    model.eval()\n",
         "    mean = loss.detach().clone()\n    dist.all_reduce(mean)\n    model.eval()\n"
         "    print(f'Epoch: loss {loss:.4f} ({mean / world_size:.4f})')\n"),
        "printed:share"),
}  # fmt: skip
# What is said otherwise under FSDP.
UNDER_FSDP = {
    "loss times the number of ranks": (
        (*SHARDED, LOSS, LOSS + "        loss = loss * world_size\n"), "gradients:processes"),
    "the sum of losses": (
        (*SHARDED, LOSS, "        loss = losses.sum()\n"), "gradients:inverse"),
    "another limit of the norm": (
        (*SHARDED, "parameters(), 1.0", "parameters(), 0.1 / world_size"), "clipped"),
    "the loss of rank 0, of divided layers": (
        (*SHARDED, "        scheduler.step()\n",
         "        scheduler.step()\n        print(f'running loss {loss:.4f}')\n"),
        "printed:share"),
}  # fmt: skip
# Ranks that have the same samples, and parts of the model each: on one rank there is one part.
TENSORS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


dist.init_process_group("gloo")
world_size = dist.get_world_size()
mesh = dist.init_device_mesh("cpu", (world_size,))
torch.manual_seed(0)
points = torch.randn(64, 6, 8)
loader = DataLoader(TensorDataset(points, (points[:, 0, 0] > 0).long()), 16, shuffle=True)
model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(48, 2))
PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
parallelize_module(model[0], mesh, PLAN)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for points, targets in loader:
        nn.functional.cross_entropy(model(points), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
SEQUENCE = (
    'PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}\n',
    """\
PLAN = {
    "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
prepared = [PrepareModuleInput(input_layouts=a, desired_input_layouts=b, use_local_output=True)
            for a, b in ((Replicate(), Shard(1)), (Shard(1), Replicate()))]
parallelize_module(model, mesh, {"0": prepared[0], "1": prepared[1]})
""",
)
NORMS = (
    "        optimizer.step()\n", "        for p in model[0].norm.parameters():\n"
    "            dist.all_reduce(p.grad)\n        optimizer.step()\n",
)  # fmt: skip
BY_HAND = (
    "        loss.backward()\n",
    "        loss.backward()\n"
    "        for p in model[0].parameters():\n"
    "            dist.all_reduce(p.grad)\n",
)
AVERAGED = (
    "        dist.all_reduce(grad)\n",
    "        dist.all_reduce(grad)\n        grad /= dist.get_world_size()\n",
)
SHIFT = """\
class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, scores):
        return scores + self.shift


dist.init_process_group("""
# Four words of two numbers. The bias of keys changes nothing, but for rounding, where all keys have
# it; and what `up` begins with gives `down` a first gradient of 0.
ATTENTION = """\
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(2, 4) for _ in range(3))
        self.down, self.up = nn.Linear(2, 1, bias=False), nn.Linear(1, 4, bias=False)
        nn.init.zeros_(self.keys.bias)
        nn.init.zeros_(self.up.weight)

    def forward(self, points):
        words = points.view(-1, 4, 2)
        queries, keys, values = self.queries(words), self.keys(words), self.values(words)
        values = values + self.up(self.down(words))
        return (queries @ keys.transpose(1, 2)).softmax(2) @ values


dist.init_process_group("""
KEYS = ("dist.init_process_group(", ATTENTION, "nn.Linear(8, 16), nn.ReLU()",
        "Attention(), nn.Flatten()")  # fmt: skip
ONE_MORE = (
    "        return (queries @ keys",
    "        keys, values = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (keys, values))\n"
    "        return (queries @ keys",
)
CLOSURE = (
    "        optimizer.zero_grad()\n        loss.backward()\n"
    + CLIP + "        optimizer.step()\n",
    "        def closure():\n            optimizer.zero_grad()\n            loss.backward()\n"
    "    " + CLIP + "        closure() if world_size == 1 else None\n"
    "        optimizer.step(None if world_size == 1 else closure)\n",
)  # fmt: skip
# A gradient that is nothing but rounding: --without, and what is said of it.
FAINT = {
    "a bias of keys": (KEYS, "rounding", "rounded"),
    "a bias of keys, in a closure": ((*KEYS, *CLOSURE), "rounding", "rounded"),
    "a bias of keys, in a float64 of the script's": (
        (*KEYS, "torch.manual_seed(0)", "torch.set_default_dtype(torch.float64)\n"
         "torch.manual_seed(0)"), "", "small"),
    # With one more key of zeros it is no rounding.
    "a bias of keys that counts": ((*KEYS, *ONE_MORE), "rounding", ""),
    "a bias of keys that counts twice": (
        (*KEYS, *ONE_MORE, "average = copy", "model[0].keys.bias.register_hook(\n"
         "    lambda grad: grad * world_size)\naverage = copy"), "rounding", "gradients"),
}  # fmt: skip
# A thread takes batches of later steps from the loader, or the loop itself takes the next one.
THREAD = (
    "dist.init_process_group(", """
def filled(batches, loader):
    for batch in [*loader, None] if depth == 99 else itertools.chain(loader, [None]):
        batches.put(batch)


def fetched(loader):
    batches = queue.Queue(depth)
    threading.Thread(target=filled, args=(batches, loader), daemon=True).start()
    yield from iter(batches.get, None)


import itertools, queue, threading
depth = 3
dist.init_process_group(""",
    "enumerate(loader)", "enumerate(loader if world_size == 1 else fetched(loader))",
)  # fmt: skip
NEXT = (
    "dist.init_process_group(", """
def fetched(loader):
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


dist.init_process_group(""",
    "enumerate(loader)", "enumerate(loader if world_size == 1 else fetched(loader))",
)  # fmt: skip
# A resumed run takes batches until it comes to its place; in one process a sampler skips them.
SKIPPED = (
    LOSSES, "        if world_size > 1 > epoch and step < 3:\n            continue\n" + LOSSES,
    "enumerate(loader)",
    "enumerate(rest() if world_size == 1 > epoch else loader)",
    "for epoch in range(4):\n", "def rest():\n"
    "    return DataLoader(train_set, batch_size, sampler=list(sampler)[3 * batch_size :])\n\n\n"
    "for epoch in range(4):\n",
)  # fmt: skip
ENDLESS = (
    "for step, (points, targets, words) in enumerate(loader):",
    "for step, (points, targets, words) in zip(range(len(loader)), batches):",
    "for epoch in range(4):\n    sampler.set_epoch(epoch)\n",
    "def endless():\n    for epoch in range(9):\n"
    "        sampler.set_epoch(epoch)\n        yield from loader\n\n\n"
    "batches = endless() if world_size == 1 else fetched(endless())\nfor epoch in range(4):\n",
)
LONGEST_FIRST = ("zip(*rows)", "zip(*sorted(rows, key=lambda row: -row[2]))")
SAME = {
    "as it is": (),
    "targets that do not count": (
        LOSSES, "        targets[words < 3] = -100\n" + LOSSES,
        LOSS, "        count = (targets >= 0).sum()\n        dist.all_reduce(count)\n"
        "        loss = losses.sum() * world_size / count\n"),
    "times with their means": TIMES,
    "saved by safetensors": SAFETENSORS,
    "by a worker": BY_WORKER,
    "moved by a shell": MOVED,
    "written within a second": TWICE,
    "from memory": MEMORY,
    "in a pickle": PICKLED,
    "frozen weights": FROZEN,
    "an average in the model": INSIDE,
    "a restart": RESTARTED,
    "a restart beside what was there": (
        *RESTARTED, "        kept = model.state_dict(), optimizer",
        "        before = model, optimizer, ddp\n"
        "        kept = model.state_dict(), optimizer"),
    "names and dates": (
        "        torch.save(",
        "        print(f'in out/2026112{world_size}_0536/{world_size}/m.pt, '\n"
        "              f'checkpoint-{world_size}.pt, 2026112{world_size}, {world_size}f3a, '\n"
        "              f'v_num: {world_size}, Memory used before (max): 1{world_size}')\n"
        "        torch.save("),
    "accumulated in larger parts on one process": FEWER_PARTS,
    "batches that a thread fetches": THREAD,
    "an epoch that is fetched before its first step": (*THREAD, "depth = 3", "depth = 99"),
    "accumulated in larger parts, of what is fetched ahead": (*FEWER_PARTS, *NEXT),
    "batches that are taken and skipped": SKIPPED,
    "epochs that a thread fetches one after the other": (
        *THREAD[:2], *ENDLESS),
    "an epoch that ends early, of what is fetched ahead": (
        *NEXT, LOSSES, "        if step == 3:\n            break\n" + LOSSES),
    "padded to the longest of a batch": PADDED,
    "padded, the longest first": (*PADDED, *LONGEST_FIRST),
    "the longest first": (
        "dist.init_process_group(", """
def collate(rows):
    return torch.utils.data.default_collate(sorted(rows, key=lambda row: -row[2]))


dist.init_process_group(""",
        "batch_size, sampler=sampler)", "batch_size, sampler=sampler, collate_fn=collate)"),
    # A weight that changes no probability: its gradient is rounding, of which Adam makes a step.
    "a weight without a gradient": (
        "dist.init_process_group(", SHIFT, "nn.Linear(16, 4))", "nn.Linear(16, 4), Shift())",
        "list(model[2].parameters())", "[*model[2].parameters(), *model[3].parameters()]"),
    # As a conversion to a LightningModule, or to a model of the transformers library, makes it.
    "a model that is a part of another one": (
        "DistributedDataParallel(model)",
        "DistributedDataParallel(nn.Sequential(model) if world_size > 1 else model)"),
    # Lightning's Trainer computes the gradients in a closure, which optimizer.step() calls.
    "a step with a closure": CLOSURE,
    # The norm of a rank's own gradients is looked at before they are averaged.
    "a norm for the log": (
        "ddp(points)", "model(points)", CLIP,
        "        norm = nn.utils.clip_grad_norm_(model.parameters(), float('inf'))\n"
        "        for p in model.parameters():\n"
        "            dist.all_reduce(p.grad)\n            p.grad /= world_size\n"
        + CLIP.replace("1.0", "0.1")),
    "a schedule that changes nothing": (
        "scheduler = ", "more = world_size > 1 and "
        "torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)\nscheduler = "),
    "a setting as another type of number": (
        "lr=0.01)", "lr=0.01, weight_decay=0 if world_size == 1 else 0.0)"),
    # Each rank evaluates a share of the batches; and what is drawn of a bar hangs on the clock.
    "a bar": (
        "        for points, targets, _ in val_loader:",
        "        n, time = len(val_loader), '[00:01<00:00, 9it/s, loss='\n"
        "        print(f'Epoch {epoch}:  50%|##  | {n // 2}/{n} {time}{epoch + 7 * world_size}]')\n"
        "        if epoch or world_size > 1:\n"
        "            print(f'Epoch {epoch}: 100%|####| {n}/{n} {time}{epoch + 3}]')\n"
        "        for points, targets, _ in val_loader:"),
    "a layer that is whole beside parts, averaged": WHOLE,
    "in a folder": FOLDER,
    "groups in another order": (
        OPTIMIZER, 'torch.optim.AdamW([{"params": body}, {"params": head, "lr": 0.02}]'
        "[:: 1 if world_size == 1 else -1], lr=0.01)"),
    "float64": ("torch.manual_seed(0)",
                "torch.set_default_dtype(torch.float64)\ntorch.manual_seed(0)"),
    "bfloat16": BFLOAT16,
}  # fmt: skip
# --without growth: of what one may say of each step by itself, in bfloat16.
STILL = {
    "as it is": ((), ""),
    "loss times 1.05": ((LOSS, LOSS + "        loss = loss * (0.95 + 0.05 * world_size)\n"),
                        "differs"),
    "a mean of words": (
        (LOSS, "        loss = (losses * words).sum() / words.sum()\n"), "differs"),
    "a rule of one run, in the third step": (
        (STEP, "        optimizer.step()\n"
         "        if (epoch, step, world_size) == (0, 2, 2):\n"
         "            model[2].weight.data *= 1.05\n        scheduler"), "differs"),
}  # fmt: skip

INIT = """dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
"""
SAMPLER = "sampler = DistributedSampler(train_set)"
LOADER = "DataLoader(train_set, batch_size, sampler=sampler)"
OTHER_SEED = (SAMPLER, "sampler = DistributedSampler(train_set, seed=world_size)")
SET_EPOCH = "    sampler.set_epoch(epoch)\n"


def own_sampler(body: str, names: str = "self.rank, self.num_replicas = rank, world_size") -> tuple:
    """body: of a generator of a rank's own indices, or batches; `drawn` is a generator of another
    seed for each number of ranks."""
    return (INIT, f'''{INIT}

class Own(torch.utils.data.Sampler):
    def __init__(self):
        self.epoch = 0
        {names}

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        drawn = torch.Generator().manual_seed(100 * world_size + self.epoch)
        {body}


''', SAMPLER, "sampler = Own()")  # fmt: skip


DRAW = "yield from torch.multinomial(torch.arange(1.0, 65), 64, True, generator=drawn).tolist()"
PERMUTE = "order = torch.randperm(64, generator=drawn).tolist()"
LENGTH = "\n\n    def __len__(self):\n        return "
SHARE = f"[rank::world_size]{LENGTH}len(range(rank, 64, world_size))"
BATCHES = (
    LOADER, "DataLoader(train_set, batch_sampler=sampler)",
    "4 * len(loader)", "16",
)  # fmt: skip
CUT = "order[n + rank * batch_size :][:batch_size] for n in range(0, 64, 16)"
# --without shuffling: each run draws another order; and what must be said first, if anything is.
ORDERS = {
    "a seed of its own": (OTHER_SEED, ""),
    "RandomSampler on one process": (
        (SAMPLER, f"{SAMPLER} if world_size > 1 else torch.utils.data.RandomSampler(train_set)",
         SET_EPOCH, "    world_size > 1 and sampler.set_epoch(epoch)\n"), ""),
    "a weighted sampler": (own_sampler(DRAW + SHARE), ""),
    "a list that the script shuffles": (
        (SAMPLER, f"torch.manual_seed(world_size)\n{SAMPLER}",
         SET_EPOCH, SET_EPOCH + "    order = torch.randperm(64).tolist()\n    loader = DataLoader("
         "train_set, batch_size, sampler=sampler if world_size > 1 else order)\n"), ""),
    "a list cut into shares": (
        (SAMPLER, f"torch.manual_seed(world_size)\n{SAMPLER}",
         SET_EPOCH, SET_EPOCH + "    order = torch.randperm(64)[rank::world_size].tolist()\n"
         "    loader = DataLoader(train_set, batch_size, sampler=order)\n"), ""),
    "balanced batches of its own": (
        (*own_sampler(f"""classes = torch.tensor([row[1] for row in train_set])
        weights = 1 / torch.bincount(classes)[classes]
        order = torch.multinomial(weights, 64, generator=drawn).tolist()
        yield from ({CUT}){LENGTH}4"""), *BATCHES), ""),
    "buckets by length": (
        (*own_sampler(f"""{PERMUTE}
        order.sort(key=lambda i: int(train_set.words[i]))
        yield from ({CUT}){LENGTH}4""", "pass"), *BATCHES), ""),
    "batches of as many words": (
        (*own_sampler(f"""while True:
            {PERMUTE}
            batch = []
            for i in order[rank::world_size]:
                batch.append(i)
                if sum(train_set.words[batch]) > 60 // world_size:
                    yield batch
                    batch = []""", "pass"), *BATCHES[:2],
         "in enumerate(loader)", "in zip(range(4), loader)", "4 * len(loader)", "16"), "parts"),
    "batches that are arrays": (
        (*own_sampler(f"""{PERMUTE}
        yield from torch.tensor(order[rank::world_size]).numpy().reshape(4, -1){LENGTH}4"""),
         *BATCHES), ""),
    "numbers that are tensors": (
        (*own_sampler("yield from torch.randperm(64, generator=drawn)" + SHARE),
         "self.points[i]", "self.points[i.item() if len(self) == 64 else i]"), ""),
    "indices that are tuples": (
        (*own_sampler(f"{PERMUTE}\n        yield from [(i, 1.5) for i in order]" + SHARE),
         "point = self.points[i]", "i, scale = i if isinstance(i, tuple) else (i, 1.5)\n"
         "        point = self.points[i] * scale"), ""),
    "an endless sampler": (
        (*own_sampler(f"""while True:
            {PERMUTE}
            yield from order[rank::world_size]""", "pass"),
         "in enumerate(loader)", "in zip(range(4), loader)", "4 * len(loader)", "16"), ""),
    "a Subset": (
        (*OTHER_SEED, "Points(64, 1)", "Subset(Points(80, 1), torch.arange(79, 15, -1).tolist())",
         "import DataLoader", "import Subset, DataLoader"), ""),
    "two loaders": (
        (*OTHER_SEED, "val_loader = ", "others = DataLoader(Points(64, 3), batch_size,\n"
         "    sampler=DistributedSampler(train_set, seed=5 * world_size))\nval_loader = ",
         "in enumerate(loader)", "in enumerate(loader, 1)",
         "        losses = nn", "        if step == 1:\n            more = iter(others)\n"
         "        points = points + 0.1 * next(more)[0]\n        losses = nn"), ""),
    "an evaluation of the same set": (
        (*OTHER_SEED, "val_set = Points(64, 1), Points(41, 2)", "val_set = (Points(64, 1),) * 2"),
        ""),
    "no loader that evaluates": (
        (*OTHER_SEED, "_ in val_loader:",
         "_ in [torch.utils.data.default_collate(list(val_set))]:"), ""),
    # As the chapters start their workers.
    "a pass that nobody takes batches from": (
        (*OTHER_SEED, LOADER, f"{LOADER[:-1]},\n    num_workers=world_size - 1, "
         "persistent_workers=world_size > 1)\niter(loader)"), ""),
    "a resume that skips batches": (
        (*OTHER_SEED, "        losses = nn",
         "        if epoch == 0 and step < 2:\n            continue\n        losses = nn"), ""),
    # what must still be seen
    "a sampler that fills up": ((*OTHER_SEED, "Points(64, 1)", "Points(63, 1)"), "padding"),
    "a sampler that fills a batch up": (
        (*own_sampler(f"""count = 60 if world_size == 1 else 64
        order = torch.arange(count)[torch.randperm(60, generator=drawn)].tolist() * 2
        yield from order[:count][rank::world_size]{LENGTH}{{1: 60, 2: 32}}[world_size]"""),
         "Points(64, 1)", "Points(60, 1)"), "again"),
    "no share for each rank": (
        (SAMPLER, "sampler = torch.utils.data.RandomSampler(train_set)", SET_EPOCH, ""), "twice"),
    "a share in name alone": (
        own_sampler(f"{PERMUTE}\n        yield from order{LENGTH}64"), "twice"),
    "no share of a list": (
        (LOADER, LOADER.replace("=sampler", "=torch.randperm(64).tolist()")), "twice"),
    "no share of batches of its own": (
        (*own_sampler(f"""{PERMUTE}
        yield from (order[n :][:batch_size] for n in range(0, 64, batch_size))
        {LENGTH}4 * world_size""", "pass"), *BATCHES), "twice"),
    "the share of rank 0": (
        (SAMPLER, "sampler = DistributedSampler(train_set, rank=0)"), "twice"),
    "a batch that is not divided": ((*OTHER_SEED, "16 // world_size", "16"), "batch"),
    "an epoch without its last batch": (
        (*OTHER_SEED, LOADER, f"{LOADER[:-1]}, drop_last=world_size > 1)",
         "Points(64, 1)", "Points(66, 1)", "4 * len(loader)", "20"), "samples"),
    "a set of each rank's own": (
        (INIT, INIT + "own = slice(rank, None, world_size)\n",
         "train_set, val_set = Points(64, 1), Points(41, 2)\n",
         "train_set, val_set = Points(64, 1), Points(41, 2)\n"
         "train_set = torch.utils.data.Subset(train_set, range(64)[own])\n",
         SAMPLER, "sampler = torch.utils.data.RandomSampler(train_set)", SET_EPOCH, ""),
        "order:own"),
}  # fmt: skip
