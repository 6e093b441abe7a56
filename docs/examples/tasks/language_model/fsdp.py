"""A language model that one GPU cannot hold, with FSDP2: each rank keeps a part of every weight,
of its gradient and of Adam's state. Its checkpoints go on on any number of ranks.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/language_model/fsdp.py --resume
"""

import argparse
import math
import os
import re
import shutil
import signal
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

VOCAB, CONTEXT, PAD = 32, 24, 0
BATCH, ACCUMULATE = 12, 2  # 24 sentences a step
RATE, WARMUP = 1e-2, 4
EVERY = 7  # steps, from one evaluation and checkpoint to the next
ALPHA = 8  # of LoRA: what its two layers add is multiplied by ALPHA / rank
STOP = []  # signals that this process has got


def make_sentences(count, seed):
    """Stands for your tokens: 5 to 24 of them, each one to three after the one before."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, CONTEXT + 1, (count,), generator=generator)
    steps = [torch.randint(1, 4, (length,), generator=generator) for length in lengths]
    return [1 + step.cumsum(0) % (VOCAB - 1) for step in steps]


def collate(sentences):
    tokens = pad_sequence(sentences, batch_first=True, padding_value=PAD)
    return tokens[:, :-1], tokens[:, 1:]


def groups(loader, done, device):
    """The micro-batches of each step after so many that are done, epoch after epoch."""
    while True:
        # The last group of an epoch may be a smaller one.
        epoch, before = divmod(done, math.ceil(len(loader) / ACCUMULATE))
        loader.sampler.set_epoch(epoch)
        # What was trained on is read once more, and dropped: that is cheap for tokens. Where
        # reading costs time, let the sampler leave it out.
        batches = islice(loader, before * ACCUMULATE, None)
        while group := list(islice(batches, ACCUMULATE)):
            yield [(inputs.to(device), targets.to(device)) for inputs, targets in group]
            done += 1


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each: batch, heads, places, width of a head
        # No mask for PAD, which comes last: no token looks at what is behind it.
        y = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(y))
        return x + self.drop(self.down(gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LoRALinear(nn.Linear):
    """A layer that stays as it is, its names too, and beside it two thin ones that train."""

    def __init__(self, linear, rank):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.scale = linear.weight, linear.bias, ALPHA / rank
        self.lora_a = nn.Linear(self.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, self.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)  # so it begins as the layer alone

    def forward(self, x):
        return super().forward(x) + self.scale * self.lora_b(self.lora_a(x))


def add_lora(model, rank):
    """Before fully_shard: what is added after it belongs to nobody, and is not averaged."""
    model.requires_grad_(False)
    for block in model.blocks:
        layers = {n: m for n, m in block.named_modules() if isinstance(m, nn.Linear)}
        if not layers:
            raise SystemExit(f"error: --lora finds no nn.Linear in {type(block).__name__}")
        for name, layer in layers.items():
            parent, _, own = name.rpartition(".")
            setattr(block.get_submodule(parent), own, LoRALinear(layer, rank))


def merged(weights):
    """LoRA's two layers are one matrix, which is added to that of the layer beside them."""
    for name in [name for name in weights if name.endswith(".lora_a.weight")]:
        layer = name.removesuffix(".lora_a.weight")
        a, b = weights.pop(name), weights.pop(f"{layer}.lora_b.weight")
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + ALPHA / len(a) * b @ a
    return weights


def build_model(lora, weights=None):
    torch.manual_seed(0)
    model = GPT()
    if weights:
        model.load_state_dict(weights, assign=True)  # these tensors themselves, no copies
    if lora:
        add_lora(model, lora)
    return model


def whole_model(args):
    """On rank 0 alone, on its CPU. With mmap a file is read page by page, when it is needed."""
    options = {"map_location": "cpu", "mmap": True, "weights_only": True}
    return build_model(args.lora, args.weights and torch.load(args.weights, **options))


def sharded_model(args, device):
    """Of which each rank has its part. None has all of it on its GPU, at no time."""
    with torch.device("meta"):  # shapes alone, at no cost
        model = build_model(args.lora)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if args.bf16:
        # Blocks compute in 16 bits; gradients of many ranks need 32 to be added up, and weights
        # to be changed by little.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = OffloadPolicy()  # none
    if args.offload:
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    sharding = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload}
    for block in model.blocks:
        if args.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, **sharding)  # gathered when it computes, then freed
    fully_shard(model, **sharding)  # the root last: it takes what is left
    # Layers that share a weight, such as embedding and head, must be in one unit: the root's.

    # Now there is memory, with anything in it.
    model.to_empty(device="cpu" if args.offload else device)

    whole = whole_model(args) if dist.get_rank() == 0 else None
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole.state_dict() if whole else {}, options=options)
    for name, buffer in model.named_buffers():  # those, too, that no state dict has
        if whole:
            buffer.copy_(whole.get_buffer(name))
        dist.broadcast(buffer, src=0)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))  # FSDP brings weights to the GPU, not these
    return model


def parameter_groups(model):
    """Matrices decay; norms, biases and embeddings do not. What is frozen needs no state."""
    decaying, others, seen = [], [], set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            matrix = parameter.dim() > 1 and not isinstance(module, nn.Embedding)
            if parameter.requires_grad and parameter not in seen:
                (decaying if matrix else others).append(parameter)
            seen.add(parameter)  # a head that is tied to the embedding comes once more
    return [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def say_sizes(model):
    """What each rank keeps from step to step. Beside it: activations, and one block as a whole."""
    all_of_it, trained = 0, 0
    for parameter in model.parameters():
        all_of_it += parameter.numel()
        trained += parameter.numel() if parameter.requires_grad else 0
    # In float32: the weight; and where it trains, its gradient and two averages of Adam.
    kept = (4 * all_of_it + 12 * trained) / dist.get_world_size() / 1e6
    print(f"{all_of_it} parameters, {trained} of them train: {kept:.2f} MB on each rank")


def sum_of_losses(model, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    # 16 bits cannot add up the losses of some hundred tokens.
    return cross_entropy(logits.float(), targets.flatten(), ignore_index=PAD, reduction="sum")


@torch.no_grad()  # after inference_mode a model that was evaluated first could not train
def evaluate(model, loader, device):
    """The sum of losses, and the number of tokens, of this rank's share. All ranks call the model
    equally often, as each call gathers weights: one that called it once more would hang."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        totals[0] += sum_of_losses(model, inputs, targets)
        totals[1] += (targets != PAD).sum()
    return totals


def random_state():
    """Dropout draws from the CPU's generator, or from that of the GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states):
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def state_of(model, optimizer, step, args):
    """Of LoRA without what is frozen: that is in the file that the run begins with."""
    options = StateDictOptions(ignore_frozen_params=bool(args.lora))
    weights, averages = get_state_dict(model, optimizer, options=options)
    state = {"model": weights, "optimizer": averages, "base": Path(args.weights or "").name}
    return state | {"step": step, "world_size": dist.get_world_size()}


def record_of(folder):
    """What this run has saved: first the newest that is whole (step0: none yet), then older ones,
    and one whose save was not finished. Nothing else is ever removed. Empty: no whole record."""
    file = folder / "latest"
    names = file.read_text(errors="replace").split() if file.is_file() else []
    return names if all(re.fullmatch(r"step\d+", name) for name in names) else []


def write_record(folder, names):
    """Beside, flushed, then renamed: a power cut leaves the old record or this one."""
    with open(folder / "latest.tmp", "w") as file:
        print(*names, sep="\n", file=file, flush=True)
        os.fsync(file.fileno())
    os.replace(folder / "latest.tmp", folder / "latest")


def save(model, optimizer, step, args):
    """On all ranks, each of which writes its parts into the folder, and its random state."""
    folder = args.folder / f"step{step}"
    state = state_of(model, optimizer, step, args)
    state["random"] = {f"rank{dist.get_rank()}": random_state()}
    if dist.get_rank() == 0:
        names = record_of(args.folder)
        write_record(args.folder, [*names, folder.name])
    dcp.save(state, checkpoint_id=folder)  # ends when all have written
    if dist.get_rank() == 0:
        older = [name for name in names if 0 < int(name[4:]) < step]
        older = [name for name in older if (args.folder / name).exists()]
        # Only now: a run that is killed before this line goes on from the folder before.
        write_record(args.folder, [folder.name, *older])
        for name in older[args.keep - 1 :] if args.keep else []:
            shutil.rmtree(args.folder / name, ignore_errors=True)  # or at the next save


def resume(model, optimizer, args):
    """Fill model and optimizer, on any number of ranks; returns the steps that are done."""
    name, *others = record_of(args.folder)
    rank = dist.get_rank()
    for other in others:
        if rank == 0 and not (args.folder / other / ".metadata").exists():
            shutil.rmtree(args.folder / other, ignore_errors=True)  # a save that was not finished
    if name == "step0":
        return 0

    folder = args.folder / name
    known = {"step": 0, "world_size": 0, "base": ""}
    dcp.load(known, checkpoint_id=folder)  # no more than it asks for
    state = state_of(model, optimizer, 0, args)
    if args.lora and known["base"] != state["base"]:  # the frozen weights would be others
        raise SystemExit(f"error: {folder} needs --weights with the file {known['base']!r}")
    alike = known["world_size"] == dist.get_world_size()
    if alike:
        state["random"] = {f"rank{rank}": random_state()}
    dcp.load(state, checkpoint_id=folder)  # into the tensors that are there
    options = StateDictOptions(ignore_frozen_params=bool(args.lora), strict=not args.lora)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=options,
    )
    # Another number of ranks goes on with the same samples, and with other dropout.
    torch.manual_seed(1 + rank + 1000 * state["step"])
    if alike:
        set_random_state(state["random"][f"rank{rank}"])
    return state["step"]


def export(model, args):
    """Of all weights, and of LoRA alone, one plain file. All ranks must come: they gather."""
    for path, alone in ((args.export, False), (args.export_lora, True)):
        if path:
            options = StateDictOptions(
                full_state_dict=True, cpu_offload=True, ignore_frozen_params=alone
            )
            weights = get_model_state_dict(model, options=options)  # on rank 0; elsewhere nothing
            if dist.get_rank() == 0:
                torch.save(weights if alone else merged(weights), f"{path}.tmp")
                os.replace(f"{path}.tmp", path)


def check_paths(args, fail):
    """Before the training, not after it: all can be written, and the folder is that of this run."""
    record = path = args.folder / "latest"
    paths = [args.export, args.export_lora]
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        for path in filter(None, (record, *paths)):
            tempfile.TemporaryFile(dir=Path(path).parent).close()
            if Path(path).is_dir():
                fail(f"{path} is a folder")
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")

    files = [Path(one).resolve() for one in (record, *paths, args.weights) if one]
    if len(set(files)) < len(files):
        fail("--weights, --export, --export-lora and the record must be files of their own")

    found = [one for one in args.folder.iterdir() if re.fullmatch(r"step\d+", one.name)]
    whole = [int(one.name[4:]) for one in found if (one / ".metadata").exists()]
    if not found and not record.exists() and os.environ["RANK"] == "0":
        write_record(args.folder, ["step0"])
    elif found or record.exists():
        names = record_of(args.folder)
        if not names or int(names[0][4:]) not in [0, *whole]:
            mend = f"`echo step{max(whole)} > {record}`, or " if whole else ""
            fail(f"{record} names no whole checkpoint: {mend}name another --folder")
        if names[0] != "step0" and not args.resume:
            fail(f"{args.folder} holds a run: add --resume, or name another --folder")


def read_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--bf16", action="store_true", help="compute in it; weights stay float32")
    parser.add_argument("--recompute", action="store_true", help="activations, block by block")
    parser.add_argument("--offload", action="store_true", help="weights and Adam's state to CPUs")
    parser.add_argument("--weights", help="begin with this plain file")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="freeze the rest")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--keep", type=int, default=2, help="so many checkpoints; 0: all")
    parser.add_argument("--resume", action="store_true", help="from the folder, once it has one")
    parser.add_argument("--export", help="in the end, all weights as one plain file; LoRA merged")
    parser.add_argument("--export-lora", help="the same of LoRA alone")
    args = parser.parse_args()
    if args.export_lora and not args.lora:
        parser.error("--export-lora needs --lora RANK")
    if args.steps < 1 or args.keep < 0 or args.lora < 0:
        parser.error("--steps must be at least 1, --keep and --lora at least 0")
    world_size = int(os.environ.get("WORLD_SIZE", 0))
    if not world_size:
        parser.error("start it by torchrun, also on one GPU: see the first lines of this file")
    if BATCH % world_size:
        parser.error(f"a batch of {BATCH} does not divide among {world_size} processes")
    check_paths(args, parser.error)
    return args


def main():
    args = read_arguments()
    for number in (signal.SIGTERM, signal.SIGUSR1):  # Slurm's, for instance: the time is over
        signal.signal(number, lambda number, _: STOP.append(number))

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Clipping adds up norms where the gradients are: with --offload on the CPU, by gloo.
    backends = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl" if args.offload else "nccl"}
    dist.init_process_group(backends[device.type])
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, val_set = make_sentences(255, seed=7), make_sentences(61, seed=2)
    # To equal shares, by sentences of nothing but PAD, which count as no tokens.
    val_set += [torch.full((2,), PAD)] * (-len(val_set) % world_size)
    # Loaders draw at the beginning of a pass. Were it from dropout's generator, a run that is
    # resumed inside an epoch, and begins one pass more, would have other dropout.
    own = torch.Generator().manual_seed(1 + rank)
    options = {"batch_size": BATCH // world_size, "collate_fn": collate, "generator": own}
    sampler = DistributedSampler(train_set, drop_last=True)
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, sampler=share, **options)

    model = sharded_model(args, device)
    optimizer = torch.optim.AdamW(parameter_groups(model))  # of the parts: after fully_shard
    if rank == 0:
        say_sizes(model)
    torch.manual_seed(1 + rank)  # other dropout on each rank
    done = resume(model, optimizer, args) if args.resume else 0

    steps = range(done + 1, args.steps + 1)
    for step, group in zip(steps, groups(train_loader, done, device), strict=False):
        model.train()
        for part in optimizer.param_groups:  # the rate follows from the step: nothing to save
            cosine = 0.55 + 0.45 * math.cos(math.pi * step / args.steps)
            part["lr"] = RATE * min(step / WARMUP, cosine)

        # A mean over all tokens of the step, however many a micro-batch of a rank has. And all
        # stop together, after a step, if one of them shall.
        tokens = sum((targets != PAD).sum() for _, targets in group)
        counts = torch.stack([tokens, torch.tensor(len(STOP), device=device)])
        dist.all_reduce(counts)
        tokens, stop = counts[0], counts[1].item() > 0
        for number, (inputs, targets) in enumerate(group, start=1):
            # Until the last micro-batch each rank adds up whole gradients, 4 bytes a parameter on
            # its GPU. Where that is too much, parts are added up, and each micro-batch sends them.
            model.set_requires_gradient_sync(args.offload or number == len(group))
            loss = sum_of_losses(model, inputs, targets) / tokens
            (loss * world_size).backward()  # FSDP divides by world_size, as DDP does
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the norm of all parts
        optimizer.step()
        optimizer.zero_grad()

        due = step % EVERY == 0 or step == args.steps
        if due:
            totals = evaluate(model, val_loader, device)
            dist.all_reduce(totals)
            loss, tokens = totals.tolist()
            if rank == 0:
                perplexity = math.exp(loss / tokens)
                print(f"step {step}: perplexity {perplexity:.4f} on {tokens:.0f} tokens")
        if due or stop:
            save(model, optimizer, step, args)
        if stop:
            if rank == 0:
                print(f"stopped after step {step}: go on with --resume")
            break
    else:
        export(model, args)

    if rank == 0 and device.type == "cuda":
        print(f"peak on this GPU: {torch.cuda.max_memory_allocated() / 1e6:.0f} MB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
