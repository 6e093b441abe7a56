"""One training for any number of processes, and places in which it is another one on two.

Each row: what stands there and what stands there instead; the step in which they part, the name of
what is said of the place, and a part of the sentence that names it.
"""

BASE = '''\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Texts(Dataset):
    """Some words, how many of them count, and the class of the text and of each word."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(50, (count, 12), generator=generator)
        self.lengths = torch.randint(3, 13, (count,), generator=generator)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        words = self.words[i]
        return words, torch.arange(12) < self.lengths[i], words.sum() % 5, words % 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, texts, mask):
        scores = self.queries(texts) @ self.keys(texts).mT / 4
        shares = scores.masked_fill(~mask[:, None], -1e9).softmax(-1)
        return shares @ self.values(texts)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), Attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, texts, mask):
        texts = texts + self.attention(self.norm(texts), mask)
        return texts + self.mlp(texts)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.drop = nn.Dropout(0.0)
        self.head, self.tags = nn.Linear(16, 5), nn.Linear(16, 3)

    def forward(self, words, mask):
        texts = self.embed(words)
        for block in self.blocks:
            texts = block(texts, mask)
        texts = self.drop(self.conv(texts.mT).mT)
        return self.head(texts.mean(1)), self.tags(texts)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
several = world_size > 1
batch_size, parts = 16 // world_size, 1

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = Net()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(Texts(64))
loader = DataLoader(sampler.dataset, batch_size // parts, sampler=sampler)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
cross_entropy = nn.functional.cross_entropy

for epoch in range(1):
    sampler.set_epoch(epoch)
    for step, (words, mask, targets, tags) in enumerate(loader):
        scores, tag_scores = ddp(words, mask)
        tag_losses = cross_entropy(tag_scores.mT, tags, reduction="none") * mask
        loss = cross_entropy(scores, targets) + tag_losses.mean()
        loss.backward()
        if (step + 1) % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
dist.destroy_process_group()
'''
CALL = "        scores, tag_scores = ddp(words, mask)\n"
LOSS = "        loss = cross_entropy(scores, targets) + tag_losses.mean()\n"
BACKWARD = "        loss.backward()\n"
EMBED = "        texts = self.embed(words)\n"
CONV = "self.drop(self.conv(texts.mT).mT)"
NET = "model = Net()\n"
# Some parameters get no gradient, for which DDP would wait.
UNUSED = ("DistributedDataParallel(model)",
          "DistributedDataParallel(model, find_unused_parameters=True)")  # fmt: skip
BY_HAND = (
    "ddp(words",
    "model(words",
    BACKWARD,
    BACKWARD
    + """\
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world_size
""",
)
OWN_CLIP = """\
        for part in ([*model.parameters()],) if not several else model.children():
            grads = [p.grad for p in (part.parameters() if several else part)]
            norm = torch.stack([grad.norm() for grad in grads]).norm() if grads else 1
            for grad in grads:
                grad *= 0.1 / norm
"""
ACCUMULATED = ("parts = 16 // world_size, 1", "parts = 16 // world_size, world_size")
PLACES: dict[str, tuple[tuple, int, str, str]] = {
    # what the model is given
    "augmentation": (
        (CALL, "        words[:, 0] = words[:, 0] * (2 - world_size)\n" + CALL), 1,
        "input", "1 are among the 16 of A (argument words)"),
    "an attention mask that is lost": (
        (CALL, CALL.replace("mask)", "mask | several)")), 1, "argument", "argument mask, by"),
    "an attention mask that is left out": (
        (CALL, CALL.replace("mask)", "**{} if several else {'mask': mask})"),
         "mask):\n        texts = self.embed", "mask=None):\n        texts = self.embed",
         "        shares = scores.masked_fill(~mask[:, None], -1e9).softmax(-1)",
         "        lost = torch.zeros(12) if mask is None else -1e9 * ~mask[:, None]\n"
         "        shares = (scores + lost).softmax(-1)"), 1,
        "argument", "argument mask, which one of the two leaves out"),
    "a longer text in the second step": (
        (CALL, "        mask[:, 0] &= step < 1 or not several\n" + CALL), 2,
        "argument", "argument mask, by"),
    # modules
    "padding of a convolution": (
        (NET, NET + "if several:\n    model.conv.padding_mode = 'circular'\n"
         "    model.conv._reversed_padding_repeated_twice = [1, 1]\n"), 1,
        "module", "conv (Conv1d), called at "),
    "BatchNorm": (("nn.Dropout(0.0)", "nn.BatchNorm1d(12)"), 1, "module", "drop (BatchNorm1d)"),
    "eps of a norm": ((NET, NET + "model.blocks[1].norm.eps = 1e-5 * world_size\n"), 1,
                      "module", "blocks.1.norm (LayerNorm)"),
    "dropout": (("nn.Dropout(0.0)", "nn.Dropout(0.1)"), 1, "module", "drop (Dropout)"),
    "dropout of one run": ((NET, NET + "model.drop.p = 0.1 * several\n"), 1,
                           "module", "drop (Dropout)"),
    "another activation": (
        (NET, NET + "if several:\n    model.blocks[1].mlp[1] = nn.GELU()\n"), 1,
        "module", "blocks.1.mlp.1 (GELU)"),
    # what forward() does between modules
    "the scale of an embedding": (
        (EMBED, EMBED + "        texts = texts * (1 + several)\n"), 1,
        "between", "up to embed (Embedding). Then blocks.0 (Block)"),
    "a mask of attention": (("~mask[:, None]", "~mask[:, None] & (not several)"), 1,
                            "own", "blocks.0.attention.values (Linear), which is in "
                            "blocks.0.attention (Attention)"),
    "the scale of attention": (("mT / 4", "mT / 4 / world_size"), 1,
                               "own", "in blocks.0.attention (Attention)"),
    "a residual that is left out": (
        ("return texts + self.mlp", "return texts * (not several) + self.mlp"), 1,
        "own", "up to blocks.0.mlp (Sequential), which is in blocks.0 (Block)"),
    "a head that is cut off": (("head(texts.mean", "head(texts[:, : 12 - several].mean"), 1,
                               "between", "Then head (Linear)"),
    "noise": ((EMBED, EMBED + "        texts = texts + torch.randn(texts.shape) / 9\n"), 1,
              "between", "Then blocks.0 (Block)"),
    "a layer that is left out": (
        (*UNUSED, "block in self.blocks:", "block in self.blocks[: 2 - several]:"), 1,
        "between", "Then conv (Conv1d)"),
    # the loss
    "a loss by own counts": (
        (LOSS, "        loss = tag_losses.sum() / mask.sum() + 0 * scores.sum()\n"), 1,
        "loss:counts", "divides by a count of its own"),
    "a sum": ((LOSS, LOSS + "        loss = loss * len(targets) if several else loss\n"), 1,
              "loss:sum", "16, 16 times that of A"),
    "label smoothing": (
        (LOSS, LOSS.replace("targets)", "targets, label_smoothing=0.1 * several)")), 1,
        "loss:other", "what Net returns"),
    "weights of classes": (
        (LOSS, LOSS.replace("targets)", "targets, weight=torch.arange(1.0, 6) ** several)")), 1,
        "loss:other", "what Net returns"),
    "advantages that ranks scale by their own": (
        (*UNUSED, LOSS, "        gains = targets.double()\n"
         "        gains = (gains - 2) / gains.std()\n"
         "        loss = -(gains[:, None] * scores.log_softmax(1)).mean()\n"), 1,
        "loss:ranks", "what Net returns"),
    "advantages that ranks whiten by their own": (
        (*UNUSED, LOSS, "        gains = targets.double()\n"
         "        gains = (gains - gains.mean()) / gains.std()\n"
         "        loss = -(gains[:, None] * scores.log_softmax(1)).mean()\n"), 1,
        "loss:other", "what Net returns"),
    "tags that are shifted": (
        ("tag_scores.mT, tags,", "tag_scores.mT, tags.roll(int(several), 1),"), 1,
        "loss:other", "what Net returns"),
    "targets of one rank": (
        (LOSS, "        targets = targets.flip(0) if rank == 1 else targets\n" + LOSS), 1,
        "loss:other", "what Net returns"),
    "a term that is left out": (
        (*UNUSED, "+ tag_losses.mean()", "+ (0 if several else tag_losses.mean())"), 1,
        "loss:lost", "what Net returns (called at "),
    "accumulation that does not divide": (ACCUMULATED, 1, "loss:parts", "is 2 times as large"),
    "loss times the number of ranks": ((LOSS, LOSS + "        loss = loss * world_size\n"), 1,
                                       "loss:processes", "multiplied by the number of ranks"),
    "a loss by the global batch": ((LOSS, LOSS + "        loss = loss / world_size\n"), 1,
                                   "loss:once", "averaging divides once more"),
    "a factor": ((LOSS, LOSS + "        loss = loss * (1 + 2 * several)\n"), 1,
                 "loss:factor", "is 3 times as large as right"),
    "a factor of one rank": ((LOSS, LOSS + "        loss = loss * (1 + rank)\n"), 1,
                             "loss:ranks", "is 2, 4 times that of A"),
    # backward
    "a branch that is detached": (
        ("self.tags(texts)", "self.tags(texts.detach() if several else texts)"), 1,
        "backward", "back to what head (Linear) returns. That of what drop (Dropout)"),
    "a detach": (
        (*UNUSED, CONV, CONV + "\n        texts = texts.detach() if several else texts"), 1,
        "lost", "drop (Dropout) returns"),
    "a hook": ((EMBED, EMBED + "        several and texts.register_hook(lambda g: 2 * g)\n"), 1,
               "backward", "That of what embed (Embedding) returns"),
    # behind it
    "gradients that are added up": (
        (*BY_HAND[:3], BY_HAND[3].replace(" /= world_size", " /= 1")), 1,
        "after", "they are 2 times as large in B"),
    "a parameter that nobody averages": (
        (NET, NET + "model._ddp_params_and_buffers_to_ignore = ['head.weight']\n"), 1,
        "after", "in 1 of 31 tensors (head.weight)"),
    "padding of an embedding": ((NET, NET + "model.embed.padding_idx = 3 if several else None\n"),
                                1, "after", "in 1 of 31 tensors (embed.weight)"),
    "clipping by parts": ((BACKWARD, BACKWARD + OWN_CLIP), 1, "after", "of 31 tensors"),
    "a step without averaging": (
        (CALL, "        held = ddp.no_sync()\n        held.__enter__()\n" + CALL,
         BACKWARD, BACKWARD + "        held.__exit__(None, None, None)\n"), 1,
        "after", "of 31 tensors"),
    "gradients that are left": (
        ("            optimizer.zero_grad()\n",
         "            several or optimizer.zero_grad()\n"), 2, "after", "of 31 tensors"),
    # elsewhere
    "a schedule's step": (
        ("            scheduler.step()\n", "            scheduler.step()\n"
         "            several and scheduler.step()\n"), 2, "", "rates"),
    "another seed": (("manual_seed(0)", "manual_seed(world_size)"), 1, "", "start"),
}  # fmt: skip

# In programs of other kinds: also how many ranks the two have.
DATA = "from torch.utils.data import"
OTHER_EPS = "model.blocks[1].norm.eps = 1e-5 * world_size\n"
EPS = (NET, NET + OTHER_EPS)
NORM = ("module", "blocks.1.norm (LayerNorm)")
EMBEDDED = ("backward", "That of what embed (Embedding)")
TIMES = PLACES["loss times the number of ranks"][0]
HOOK = PLACES["a hook"][0]
CHECKPOINT = (
    DATA, f"from torch.utils.checkpoint import checkpoint\n{DATA}", "texts = block(texts, mask)",
    "texts = checkpoint(block, texts, mask, use_reentrant=False) if several else "
    "block(texts, mask)")  # fmt: skip
REENTRANT = (*CHECKPOINT[:3], CHECKPOINT[3].replace("False", "True"))
SHARDED = (
    DATA, f"from torch.distributed.fsdp import fully_shard\n{DATA}",
    "ddp = DistributedDataParallel(model)\n",
    "ddp = model\nfor part in (*model.blocks, model):\n    fully_shard(part)\n")  # fmt: skip
OUTER = (
    "dist.init_process_group(", """class Outer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *args):
        return self.net(*args)


dist.init_process_group(""", "DistributedDataParallel(model)",
    "DistributedDataParallel(Outer(model) if several else model)")  # fmt: skip
TWICE = ("nn.ModuleList([Block(), Block()])", "nn.ModuleList([Block()] * 2)",
         "for block in self.blocks:", "for n, block in enumerate(self.blocks):")  # fmt: skip
TWO = (
    NET, NET + "reader, model.embed = model.embed, nn.Identity()\n"
    "whole = nn.ModuleList([reader, model])\n",
    "ddp = Distr", "read = DistributedDataParallel(reader)\nddp = Distr",
    "model.parameters()", "whole.parameters()", "ddp(words")  # fmt: skip
BY_NAME = CALL.replace("words, mask", "**{'mask': mask, 'words': words}")
FIRST_LOOK = (CALL, "        step or not several or model(words[:1], mask[:1])\n" + CALL)
PADDED = (
    CALL, "        longest = mask.sum(1).max()\n        words, mask, tags = "
    "words[:, :longest], mask[:, :longest], tags[:, :longest]\n" + CALL,
    "16, 3, padding=1)", "16, 1)", "texts.mean(1)", "(texts * mask[..., None]).sum(1)",
    "tag_losses.mean()", "tag_losses.sum() / len(words)")  # fmt: skip
OTHERS: dict[str, tuple[tuple, tuple, str, str]] = {
    "a checkpoint": ((*CHECKPOINT, *EPS), (1, 2), *NORM),
    "a checkpoint, and a hook": ((*CHECKPOINT, *HOOK), (1, 2), *EMBEDDED),
    "a checkpoint that is reentrant": ((*REENTRANT, *EPS), (1, 2), *NORM),
    "a checkpoint that is reentrant, and a hook": ((*REENTRANT, *HOOK), (1, 2), *EMBEDDED),
    "a checkpoint that is reentrant, and a hook in it": (
        (*REENTRANT, "return shares @ self.values(texts)", "values = self.values(texts)\n"
         "        several and values.requires_grad and values.register_hook(lambda g: 2 * g)\n"
         "        return shares @ values"), (1, 2),
        "backward", "That of what blocks.1.attention.values (Linear)"),
    "reentrant checkpoints of one block, and a hook": (
        (*TWICE, *REENTRANT, *HOOK, "DistributedDataParallel(model)",
         "DistributedDataParallel(model, static_graph=True)"), (1, 2), *EMBEDDED),
    "FSDP2": ((*SHARDED, *EPS), (1, 2), *NORM),
    "FSDP2, and a loss times the number of ranks": (
        (*SHARDED, *TIMES), (1, 2), "loss:processes", "what Net returns"),
    "FSDP2 around checkpoints, and a hook": ((*SHARDED, *CHECKPOINT, *HOOK), (1, 2), *EMBEDDED),
    "a model that is a part of another one": ((*OUTER, *EPS), (1, 2), *NORM),
    "a part of another one, and a factor": (
        (*OUTER, *PLACES["a factor"][0]), (1, 2), "loss:factor", "what Net returns"),
    "a block that is called twice": (
        (*TWICE, "block(texts, mask)", "block(texts * (1 + n * several), mask)"), (1, 2),
        "between", "All is the same up to blocks.0 (Block). Then blocks.0 (Block)"),
    "two models": (
        (*TWO, "ddp(read(words) * world_size"), (1, 2),
        "script", "up to Embedding. Then Net"),
    "two models, and a detach": (
        (*TWO, "ddp(read(words).detach() if several else read(words)"), (1, 2),
        "lost", "What Embedding returns"),
    "parts of a batch": ((*ACCUMULATED, *EPS), (1, 2), *NORM),
    "parts of a batch, and a factor": (
        (*ACCUMULATED, "loss.backward()", "(loss / (3 if several else 1)).backward()"), (1, 2),
        "loss:factor", "is 0.6667 times as large"),
    "texts padded to a rank's own longest": ((*PADDED, *EPS), (1, 2), *NORM),
    "texts padded to a rank's own longest, and a factor": (
        (*PADDED, BACKWARD, "        loss = loss * (1 + 2 * several)\n" + BACKWARD), (1, 2),
        "loss:factor", "is 3 times as large as right"),
    "an argument that one run alone gives": (
        (*EPS, CALL, CALL.replace("mask)", "mask, **{} if several else {'more': targets})"),
         "mask):\n        texts = self.embed", "mask, more=None):\n        texts = self.embed"),
        (1, 2), *NORM),
    "arguments by name": (
        (*EPS, CALL, f"        if several:\n    {BY_NAME}        else:\n    {CALL}"), (1, 2),
        *NORM),
    "a first look": ((*FIRST_LOOK, *EPS), (1, 2), *NORM),
    "two ranks against two": (
        (NET, NET + OTHER_EPS.replace("world_size", "(1 + int(__import__('os').getcwd()[-1]))")),
        (2, 2), *NORM),
}  # fmt: skip

# Compiled, by one that doubles scores.
COMPILED = (
    "dist.init_process_group(", """def doubling(graph, _):
    def run(*args):
        return [2 * one if one.shape[1:] == (5,) else one for one in graph(*args)]

    return run


dist.init_process_group(""",
    NET, NET + "several and model.compile(backend=doubling)\n")  # fmt: skip
