r"""Train a language model on text, divided among GPUs in up to four ways at once.

Use it for a model or a sequence that one GPU is too small for, or too slow. FSDP2
divides every weight, its gradient and Adam's state, by default among all ranks.

    # two processes on generated text, on two GPUs or on CPUs
    torchrun --standalone --nproc-per-node 2 main.py --synthetic \
        --width 64 --layers 2 --heads 4 --context 64 --batch-size 16 --steps 100
    # your text (.txt, .md, .jsonl, .tar, also .gz) on all GPUs of a machine
    torchrun --standalone --nproc-per-node gpu main.py --data /text --bf16
    # on two machines of 8 GPUs: the same line on both; HOST is the name of one of them
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \
        --rdzv-endpoint HOST:29400 main.py --data /text --bf16 --replicas 2

All machines need the same --data, --tokens and --output-dir. SIGTERM makes it save and
stop: the same line with --resume goes on at that step, on any number of ranks.

    --replicas  groups of ranks with a whole model each, which average their gradients
    --shard     ranks of a group that divide every weight, and have other text
    --sequence  ranks that divide every sequence: for a long --context
    --tensor    ranks that divide every layer: for one machine with fast links
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import hashlib
import io
import json
import math
import mmap
import os
import pickle
import random
import re
import shutil
import signal
import tarfile
import time
import zlib
from argparse import Namespace
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing import errors
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as tp
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint as recompute


# ---- flags ----
def build_parser() -> argparse.ArgumentParser:
    """The flags, with their defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.error = fail  # so that torchrun repeats the line about a mistyped flag
    text = parser.add_mutually_exclusive_group(required=True).add_argument
    text("--data", type=Path, metavar="DIR", help="files of text, jsonl, or tars of it")
    made = "train on N bytes of generated text (100000 if N is left out)"
    text("--synthetic", type=int, nargs="?", const=100_000, metavar="N", help=made)

    add = parser.add_argument
    here = Path(__file__).resolve().parent.name
    add("--val", type=Path, metavar="DIR", help="else the last twentieth of --data")
    add("--text-key", default="text", metavar="KEY", help="of a line of jsonl")
    add("--tokenizer", type=Path, metavar="FILE", help="JSON of tokenizers; else bytes")
    add("--end-token", default="<|endoftext|>", help="the tokenizer's, after a text")
    add("--tokens", type=Path, default="runs/tokens", metavar="DIR", help="of --data")
    add("--width", type=int, default=768, help="numbers that stand for a token")
    add("--layers", type=int, default=12, help="blocks of attention and SwiGLU")
    add("--heads", type=int, default=12, help="of attention, that divide the width")
    add("--key-heads", type=int, default=0, help="of keys and values; 0: as --heads")
    add("--context", type=int, default=1024, help="tokens of a sequence")
    add("--weights", type=Path, metavar="FILE", help="to begin with, else random ones")
    add("--steps", type=int, default=5000, help="of the optimizer, in the whole run")
    add("--batch-size", type=int, default=64, help="sequences a step, over all ranks")
    add("--accumulate", type=int, default=1, help="micro-batches that make a step")
    add("--lr", type=float, default=1e-3, help="peak rate of AdamW")
    add("--weight-decay", type=float, default=0.1, help="of matrices alone")
    add("--clip-grad", type=float, default=1, help="largest norm of gradients; 0: any")
    add("--bf16", action="store_true", help="compute in it; weights stay float32")
    add("--recompute", action="store_true", help="activations, instead of keeping them")
    add("--replicas", type=int, default=1, help="groups with a whole model each")
    add("--shard", type=int, default=0, help="ranks a model; 0: all that are left")
    add("--sequence", type=int, default=1, help="ranks that divide each sequence")
    add("--tensor", type=int, default=1, help="ranks that divide each layer")
    add("--output-dir", type=Path, default=f"runs/{here}", help="log, checkpoints")
    goes_on = "go on with the run in --output-dir, if any; or from the checkpoint PATH"
    add("--resume", metavar="PATH", nargs="?", const="", help=goes_on)
    add("--save-minutes", type=float, default=15, help="between checkpoints")
    add("--keep", type=int, default=2, help="newest checkpoints to keep; 0: all")
    add("--eval-steps", type=int, default=500, help="between evaluations, which save")
    add("--eval-windows", type=int, default=2000, help="of them, at most")
    add("--evaluate", action="store_true", help="no training: --val, or unseen --data")
    add("--sample", type=int, default=200, help="tokens to write at the end")
    add("--seed", type=int, default=0, help="for weights and order")
    add("--print-freq", type=int, default=20, help="steps between two lines of the log")
    return parser


# ---- data ----
def micro_batches(
    args: Namespace, train: Windows, step: int, work: DeviceMesh
) -> Iterator[Tensor]:
    """Those (N, context + 1) of this rank in one step, which counts from 0. The windows
    of a step, and so the training, are the same for any number of ranks."""
    epoch, inside = divmod(step, steps_per_epoch(args, train))
    group, groups = work.get_local_rank("batches"), work.size(0)
    size = args.batch_size // groups // args.accumulate
    for micro in range(args.accumulate):
        # each group of ranks has its own windows; the ranks of one have the same
        first = inside * args.batch_size + (micro * groups + group) * size
        places = range(first, first + size)
        numbers = [shuffled(place, len(train), args.seed, epoch) for place in places]
        yield torch.stack([train[number] for number in numbers])


# ---- model ----
class Exchange(torch.autograd.Function):
    """From all heads of some places to all places of some heads, or back: of x (batch,
    heads, places, width) each rank gets a part of side `split` from every rank, and
    puts them together along side `join`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: int, join: int, group: Any) -> Tensor:
        ctx.split, ctx.join, ctx.group = split, join, group
        parts = torch.stack(x.chunk(dist.get_world_size(group), split))
        got = torch.empty_like(parts)
        dist.all_to_all_single(got, parts, group=group)  # [dist] a part from each rank
        return torch.cat(got.unbind(), join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        return Exchange.apply(gradient, ctx.join, ctx.split, ctx.group), *[None] * 3


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864): x (batch, heads, places,
    width), of which the two halves are turned by angles (2, places, width / 2), given
    as cosine and sine."""
    cos, sin = angles
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Each place looks at those before it. With fewer heads of keys and values than of
    queries, several queries share one (Ainslie et al. 2023, arXiv:2305.13245)."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, key_heads * self.head_width, bias=False)
        self.v = nn.Linear(width, key_heads * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.group = None  # of the ranks that divide a sequence

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )  # each (batch, heads, places, width of a head)
        q, k = rotate(q, angles), rotate(k, angles)
        if self.group:  # [dist] attention needs all places: of these heads
            q, k, v = (Exchange.apply(one, 1, 2, self.group) for one in (q, k, v))
        gqa = q.shape[1] > k.shape[1]
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
        if self.group:
            y = Exchange.apply(y, 2, 1, self.group)  # [dist] all else needs all heads
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, and SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        hidden = 64 * math.ceil(width * 8 / 3 / 64)
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.attention = Attention(width, heads, key_heads)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), angles)
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """A decoder as models of today are. tokens: vocabulary, width, layers, heads."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, key_heads: int
    ) -> None:
        super().__init__()
        self.half = width // heads // 2
        self.tokens = nn.Embedding(vocabulary, width)
        blocks = [Block(width, heads, key_heads) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width, 1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Logits (batch, places, vocabulary) for tokens (batch, places), which stand at
        these places of their sequences."""
        dtype = torch.get_default_dtype()  # bfloat16 cannot count to 300
        turns = torch.arange(self.half, device=tokens.device, dtype=dtype) / self.half
        angles = places.to(dtype)[:, None] * 10_000**-turns
        angles = torch.stack([angles.cos(), angles.sin()])
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


def build_model(args: Namespace, vocabulary: int) -> Model:
    """Yours maps (tokens, places) to logits; divide_model and others name its parts."""
    key_heads = args.key_heads or args.heads
    return Model(vocabulary, args.width, args.layers, args.heads, key_heads)


def divide_model(
    args: Namespace, model: Model, weights: DeviceMesh, work: DeviceMesh
) -> None:
    """Fill the model, which has shapes alone, and leave each rank its parts of it."""
    # Gradients of many ranks need 32 bits to be added up, and so do losses.
    kinds = (torch.bfloat16, torch.float32) if args.bf16 else (None, None)
    sides = ("replicas", "parts") if args.replicas > 1 else ("parts",)
    divide = partial(fully_shard, mesh=weights[sides])  # [dist] among the parts

    for name in ("tokens", "norm", "head"):
        initialize(args, name, model.get_submodule(name), weights.device_type)
    if args.tensor > 1:
        split_layers(model, weights["tensor"])
    for number, block in enumerate(model.blocks):
        initialize(args, f"blocks.{number}", block, weights.device_type)
        if args.sequence > 1:
            block.attention.group = work.get_group("sequence")  # [dist]
        if args.tensor > 1:
            split_layers(block, weights["tensor"])
        if args.recompute:
            block.forward = partial(recompute, block.forward, use_reentrant=False)
        # Whole while it computes, then freed. The root comes last, and takes the rest.
        divide(block, mp_policy=MixedPrecisionPolicy(*kinds))  # [dist]
    divide(model, mp_policy=MixedPrecisionPolicy(*kinds, kinds[1]))  # [dist]


def build_optimizer(args: Namespace, model: nn.Module) -> Optimizer:
    """Matrices decay; norms, and the embedding by its name, do not."""
    matrices, others = [], []
    for name, weight in model.named_parameters():
        decays = weight.dim() > 1 and "tokens." not in name
        (matrices if decays else others).append(weight)
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return AdamW(groups, args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay)


def lr_factor(args: Namespace, step: int) -> float:
    """What the peak rate is multiplied by in a step, from 1: a linear warm-up, then a
    cosine (Loshchilov & Hutter 2017, arXiv:1608.03983) to a tenth."""
    warmup = max(1, min(1000, args.steps // 10))
    if step <= warmup:
        return step / warmup
    progress = (step - warmup) / (args.steps - warmup)
    return 0.55 + 0.45 * math.cos(math.pi * progress)


# ---- training ----
def losses(model: nn.Module, windows: Tensor, places: Tensor) -> Tensor:
    """Of each target (batch, places) at this rank's places, on its device."""
    windows = to_device(windows, places.device)
    inputs, targets = windows[:, :-1][:, places], windows[:, 1:][:, places]
    logits = model(inputs, places)
    return cross_entropy(logits.transpose(1, 2), targets, reduction="none")


def train(
    args: Namespace,
    log_file: TextIO | None,
    model: nn.Module,
    optimizer: Optimizer,
    data: Windows,
    work: DeviceMesh,
    done: int,
    until: int,
) -> tuple[int, bool, bool]:
    """Train from `done` steps on to `until`, or until the ranks agree to save or stop.
    Returns the steps done, whether to save, and whether to stop."""
    rank, places = dist.get_rank(), my_places(args, work)
    totals = torch.zeros(1, dtype=torch.float64, device=places.device)  # of losses
    logged, start = done, time.perf_counter()  # step and moment of the last row
    meetings = Meetings(args, done, until, clock=rank == 0)  # [dist] one clock for all

    model.train()
    for step in range(done + 1, until + 1):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * lr_factor(args, step)

        for micro, windows in enumerate(micro_batches(args, data, step - 1, work), 1):
            # Parts are added up in each micro-batch, or every rank would keep
            # all gradients; replicas send them to each other once.
            model.set_requires_all_reduce(micro == args.accumulate)
            loss = losses(model, windows, places).mean() / args.accumulate
            loss.backward()  # [dist] averages over replicas, parts and sequences
            totals[0] += loss.detach()
        # by the norm of all gradients, on every rank the same
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
        optimizer.step()
        optimizer.zero_grad()  # here, so that no gradients lie beside activations

        if step == meetings.next:
            # One sum tells all ranks the loss, who shall stop, and rank 0's clock.
            sums = torch.cat([totals, totals.new_tensor(meetings.news())])
            dist.all_reduce(sums)  # [dist]
            loss_sum, *news = sums.tolist()
            grad_norm = whole(norm).item()
            check_finite(loss_sum + grad_norm, f"at step {step}")  # before a save
            save, stop = meetings.learn(news)
            if save or stop or step % args.print_freq == 0 or step == until:
                row = {
                    **place_of(args, step, data),
                    "loss": loss_sum / (step - logged) / dist.get_world_size(),
                    "grad_norm": grad_norm,
                    "lr": group["lr"],
                    **speed_of(args, model, step - logged, time.perf_counter() - start),
                }
                log(log_file, "train", row)
                totals.zero_()
                logged, start = step, time.perf_counter()
            if save or stop:
                return step, save, stop
    return until, False, False


# ---- evaluation ----
@torch.no_grad()  # after inference_mode it could not train
def evaluate(
    args: Namespace, model: nn.Module, data: Windows, coder: Coder, work: DeviceMesh
) -> dict:
    """Loss, perplexity and bits per byte, exact for any number of windows and ranks.
    Each call of the model gathers weights: all ranks call it equally often."""
    places = my_places(args, work)
    group, groups = work.get_local_rank("batches"), work.size(0)
    size = args.batch_size // groups // args.accumulate
    count = min(len(data), args.eval_windows)
    totals = torch.zeros(3, dtype=torch.float64, device=places.device)

    model.eval()
    for first in range(0, count, groups * size):
        numbers = [first + group * size + number for number in range(size)]
        # In the last call some have none left: they take the last one, and drop it.
        windows = torch.stack([data[min(number, count - 1)] for number in numbers])
        real = sum(number < count for number in numbers)
        found = losses(model, windows, places)[:real]
        totals[0] += found.double().sum()
        totals[1] += found.numel()
        if work.get_local_rank("sequence") == 0:  # [dist] one rank counts a window
            totals[2] += sum(coder.count_bytes(one[1:]) for one in windows[:real])

    model.reshard()  # [dist] without a backward the root would stay whole
    if work.get_local_rank("tensor"):  # [dist] these ranks have computed the same
        totals.zero_()
    dist.all_reduce(totals)  # [dist]
    return scores_of(*totals.tolist())


# ---- the run ----
@errors.record  # [dist] torchrun shows the traceback of the rank that failed
def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    check_launcher()
    rank = int(os.environ["RANK"])  # [dist] of this process, across all machines
    local_rank = int(os.environ["LOCAL_RANK"])  # [dist] on this machine
    world_size = int(os.environ["WORLD_SIZE"])  # [dist] processes on all machines
    sides = check_flags(args, world_size)
    log_file = open_log(args) if rank == 0 else None  # [dist] not the local rank

    # Before the process group, which would not wait for hours.
    train_set, val_set, coder = build_data(args, rank, world_size)
    run = describe_run(args, train_set, val_set, coder)
    saved = find_checkpoint(args, run)  # {} for a new run

    device = setup_device(local_rank)
    # Waits for all ranks, which meet at torchrun's MASTER_ADDR and MASTER_PORT.
    dist.init_process_group(  # [dist]
        dist.get_default_backend_for_device(device),  # nccl on NVIDIA's GPUs, else gloo
        device_id=None if device.type == "cpu" else device,  # connects at once
    )
    check_ranks(args, run, saved)

    weights, work = build_meshes(device, sides)  # [dist] who stands where
    with torch.device("meta"):  # shapes alone, at no cost
        model = build_model(args, coder.padded)
    divide_model(args, model, weights, work)
    optimizer = build_optimizer(args, model)  # of the parts: after fully_shard
    restore(args, saved, model, optimizer)
    log_start(log_file, args, device, sides, saved, model, train_set)

    # A round trains until an evaluation is due or the ranks save; then it evaluates.
    catch_signals(args)
    done, evaluated, stop = saved.get("step", 0), saved.get("evaluated", True), False
    if args.evaluate:
        scores = evaluate(args, model, val_set, coder, work)
        log(log_file, "eval", place_of(args, done, train_set) | scores)
    while not (args.evaluate or stop) and (done < args.steps or not evaluated):
        save = False
        if evaluated or (done % args.eval_steps and done < args.steps):
            until = min(args.steps, done - done % args.eval_steps + args.eval_steps)
            done, save, stop = train(
                args, log_file, model, optimizer, train_set, work, done, until
            )
            evaluated = False
        if not stop and (done % args.eval_steps == 0 or done == args.steps):
            scores = evaluate(args, model, val_set, coder, work)
            log(log_file, "eval", place_of(args, done, train_set) | scores)
            evaluated = save = True
        if save or stop:
            save_checkpoint(args, run, model, optimizer, done, evaluated)
    if not (args.evaluate or stop):
        export(args, run, model)  # one file for all who use it
        print_sample(args, model, val_set, coder, work)
    log(log_file, "stopped" if stop else "end", place_of(args, done, train_set))
    dist.barrier()  # [dist] rank 0 may still save, and the first that ends may end all
    wait_for_gloo()
    dist.destroy_process_group()  # [dist] without it a finished process may abort
    if stop:
        raise SystemExit(75)  # EX_TEMPFAIL of sysexits.h: the run can go on


# ---- what protects a long run: a first reading needs none of it ----
def fail(message: str) -> NoReturn:
    """End with one line. torchrun then ends the other ranks, and repeats the line at
    the end of its report."""
    try:
        raise SystemExit(f"error: {message}")
    except SystemExit as error:  # which @errors.record, on main, does not report
        errors.get_error_handler().record_exception(error)
        raise


class HelpFormatter(
    argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter
):
    """Of --help: says the defaults, and leaves the docstring's lines as they are."""


def check_launcher() -> None:
    """Refuse to be started by hand: a single process would know of no other."""
    if not {"RANK", "LOCAL_RANK"} <= os.environ.keys():  # [dist] torchrun sets them
        fail(f"start it with torchrun --standalone --nproc-per-node 2 {__file__} ...")


class Sides(NamedTuple):
    """How many ranks stand along each side of the mesh; their product is all of them.
    Neighbours, on one machine, are those of --tensor, then those of --sequence."""

    replicas: int
    shard: int
    sequence: int
    tensor: int


def check_flags(args: Namespace, world_size: int) -> Sides:
    """Refuse flags that would silently do something else, and what does not go
    together. Returns how many ranks stand along each side."""
    for flag, value, least, most in (
        ("--width", args.width, 2, math.inf),
        ("--layers", args.layers, 1, math.inf),
        ("--heads", args.heads, 1, math.inf),
        ("--key-heads", args.key_heads, 0, args.heads),
        ("--synthetic", 1 if args.data else args.synthetic, 1, math.inf),
        ("--context", args.context, 2, math.inf),
        ("--steps", args.steps, 1, math.inf),
        ("--batch-size", args.batch_size, 1, math.inf),
        ("--accumulate", args.accumulate, 1, math.inf),
        ("--lr", args.lr, 1e-12, math.inf),
        ("--weight-decay", args.weight_decay, 0, math.inf),
        ("--clip-grad", args.clip_grad, 0, math.inf),
        ("--replicas", args.replicas, 1, world_size),
        ("--shard", args.shard, 0, world_size),
        ("--sequence", args.sequence, 1, world_size),
        ("--tensor", args.tensor, 1, world_size),
        ("--save-minutes", args.save_minutes, 0, math.inf),
        ("--keep", args.keep, 0, math.inf),
        ("--eval-steps", args.eval_steps, 1, math.inf),
        ("--eval-windows", args.eval_windows, 1, math.inf),
        ("--sample", args.sample, 0, math.inf),
        ("--print-freq", args.print_freq, 1, math.inf),
    ):
        if not (least <= value <= most and math.isfinite(value)):  # nan is not, either
            fail(f"{flag} {value} is out of range: use {least} to {most}")
    if args.val and not args.data:
        fail("--val goes with --data: of --synthetic the last twentieth is evaluated")
    if args.evaluate and args.resume is None and not args.weights:
        fail("--evaluate needs weights: add --resume, --resume PATH or --weights")
    check_folders(args)

    taken = args.replicas * args.sequence * args.tensor
    shard = args.shard or max(1, world_size // taken)
    if taken * shard != world_size:
        told = f"--replicas {args.replicas} x --shard {shard} x"
        told += f" --sequence {args.sequence} x --tensor {args.tensor}"
        fail(f"{told} is {taken * shard} ranks: {world_size} were started")
    check_shape(args)
    groups, micro = args.replicas * shard, args.accumulate
    if args.batch_size % (groups * micro):
        share = groups * micro
        lower = max(1, args.batch_size // share) * share
        told = f"{groups} groups of ranks x --accumulate {micro}"
        sizes = f"use {lower} or {lower + share}"
        fail(f"--batch-size must be a multiple of {share} ({told}): {sizes}")
    return Sides(args.replicas, shard, args.sequence, args.tensor)


def check_folders(args: Namespace) -> None:
    """Fail where a folder of text holds what is not to be trained on, or where the run
    would write over the weights that it begins with."""
    out = args.output_dir.resolve()
    written = [out, out / "model.safetensors", out / "model.pt"]
    if args.weights and args.weights.resolve() in written and not args.evaluate:
        fail(f"--weights {args.weights} would be overwritten: use another --output-dir")
    folders = {"--val": args.val, "--output-dir": args.output_dir}
    inside = {flag: path.resolve() for flag, path in folders.items() if path}
    for flag, path in inside.items() if args.data else ():
        if path.is_relative_to(args.data.resolve()):
            fail(f"{flag} {folders[flag]} lies in --data: name a folder beside it")
    if args.val and args.data.resolve().is_relative_to(inside["--val"]):
        fail(f"--data {args.data} lies in --val: name a folder beside it")


def build_meshes(device: torch.device, sides: Sides) -> tuple[DeviceMesh, DeviceMesh]:
    """Two views of the same ranks: by what they have of the weights, and by what they
    compute. Those that divide a sequence divide the weights as well."""
    replicas, shard, sequence, tensor = sides
    weights = init_device_mesh(  # [dist] makes a group of ranks for each side
        device.type,
        (replicas, shard * sequence, tensor),
        mesh_dim_names=("replicas", "parts", "tensor"),
    )
    work = init_device_mesh(  # [dist] "batches": ranks with other text
        device.type,
        (replicas * shard, sequence, tensor),
        mesh_dim_names=("batches", "sequence", "tensor"),
    )
    return weights, work


def check_shape(args: Namespace) -> None:
    """Fail where the model, or a sequence, does not divide."""
    key_heads, split = args.key_heads or args.heads, args.sequence * args.tensor
    if args.width % (2 * args.heads):
        fail(f"--width must be a multiple of twice the {args.heads} heads")
    if args.heads % key_heads:
        fail(f"--heads must be a multiple of the {key_heads} of --key-heads")
    if key_heads % split:
        fail(
            f"{key_heads} heads of keys do not divide among {split} ranks (--sequence "
            f"{args.sequence} x --tensor {args.tensor}): use fewer ranks there"
        )
    if args.context % split:
        fail(f"--context must be a multiple of --sequence x --tensor, {split}")


def setup_device(local_rank: int) -> torch.device:
    """The GPU of this process, made its current one, or the CPU."""
    check_gpus(local_rank)
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    torch.accelerator.set_device_index(local_rank)  # [dist] or all ranks open GPU 0
    torch.set_float32_matmul_precision("high")  # allow TF32
    return torch.device(torch.accelerator.current_accelerator().type, local_rank)


def check_gpus(local_rank: int) -> None:
    """Fail where this process would share a GPU, or silently take the CPU."""
    # With a driver that is too old torch counts the GPUs, but would take the CPU.
    if torch.cuda.device_count() and not torch.cuda.is_available():
        fail("torch cannot use the GPUs of this machine: its driver may be too old")
    gpus = torch.accelerator.device_count()
    if torch.accelerator.is_available() and local_rank >= gpus:
        fail(f"more processes than GPUs on this machine: start {gpus}")


def check_finite(loss: float, where: str) -> None:
    """Fail if the loss, to which the norm of the gradients may be added, is infinite or
    not a number."""
    if not math.isfinite(loss):
        told = f"the loss, or the norm of the gradients, is {loss} {where}"
        fail(f"{told}: use a lower --lr, and --resume")


def check_enough(args: Namespace, train_set: Windows, val_set: Windows) -> None:
    """Fail where a pass would have no step, or an evaluation nothing to do."""
    if len(train_set) < args.batch_size and not args.evaluate:
        told = f"the text has {len(train_set)} sequences of {args.context} tokens"
        told = f"{told} to train on, fewer than --batch-size {args.batch_size}"
        fail(f"{told}: use more text, or a smaller --batch-size or --context")
    if not len(val_set):
        fail(f"the text to evaluate is shorter than --context {args.context}: add some")


def check_ranks(args: Namespace, run: dict, saved: dict) -> None:
    """Fail if the ranks have other flags, text or checkpoints than one another."""
    mine = {f"--{flag}".replace("_", "-"): value for flag, value in vars(args).items()}
    mine |= {"checkpoint": str(saved), "size of weights": sizes_of(args.weights), **run}
    may_differ = {"--data", "--val", "--tokens", "--tokenizer", "--output-dir"}
    may_differ |= {"--resume", "--weights"}  # by machine
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)  # [dist] unequal ranks would train in silence
    for name in sorted(mine.keys() - may_differ):
        values = sorted({str(theirs.get(name)) for theirs in found})
        if len(values) > 1:
            fail(f"ranks differ in {name}: {values[0]:.200} and {values[1]:.200}")


def initialize(
    args: Namespace, name: str, module: nn.Module, device: str = "cpu"
) -> None:
    """Read the weights of a module that has none yet, or draw them, each by a seed of
    its own: they are the same on all ranks, and no rank needs more than one module's.
    Then they go to the device."""
    module.to_empty(device="cpu")  # whose random numbers are the same everywhere
    generator = torch.Generator()
    for own, weight in module.named_parameters():
        if args.weights:
            weight.data.copy_(read_weight(args.weights, f"{name}.{own}", weight.shape))
            continue
        if weight.dim() == 1:
            nn.init.ones_(weight)  # of a norm
            continue
        generator.manual_seed(seed_of(args.seed, f"{name}.{own}"))
        # What is added up from all layers begins smaller (Radford et al. 2019).
        adds = own.endswith(("out.weight", "down.weight"))
        deviation = 0.02 / math.sqrt(2 * args.layers if adds else 1)
        nn.init.normal_(weight, 0, deviation, generator=generator)
    module.to(device)


def sizes_of(path: Path | None) -> list[int]:
    """Of the files of --weights, by their names: one, or a folder's safetensors."""
    try:
        return [file.stat().st_size for file in weight_files(path)] if path else []
    except OSError as error:
        fail(f"cannot read --weights {path}: {error}")


def weight_files(path: Path) -> list[Path]:
    """The file, or those of the folder."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


@cache
def open_weights(path: Path) -> dict[str, Callable[[str], Tensor]]:
    """What reads a tensor, by its name, of a file that `export` has written. Nothing is
    read before that."""
    readers = {}
    try:
        for file in weight_files(path):
            if file.suffix == ".safetensors":
                from safetensors import safe_open

                tensors = safe_open(file, "pt")
                readers |= dict.fromkeys(tensors.keys(), tensors.get_tensor)
            else:
                tensors = torch.load(file, "cpu", mmap=True, weights_only=True)
                readers |= dict.fromkeys(tensors, tensors.__getitem__)
    except Exception as error:  # of many kinds
        fail(f"cannot read --weights {path}: {error!r:.200}")
    return readers


def told_by(path: Path) -> dict[str, str]:
    """What `export` has written of the run into a file of weights; if it could not,
    what the record beside it says."""
    files = [file for file in weight_files(path) if file.suffix == ".safetensors"]
    if not files:
        whole = read_record(path.parent)["whole"]
        return whole[0]["run"] if whole else {}
    try:
        from safetensors import safe_open

        return safe_open(files[0], "pt").metadata() or {}
    except Exception as error:  # of many kinds
        fail(f"cannot read --weights {path}: {error!r:.200}")


def read_weight(path: Path, name: str, shape: torch.Size) -> Tensor:
    """A tensor of --weights. Fails if it has none of this shape."""
    reader = open_weights(path).get(name)
    found = reader(name) if reader else None
    if found is None or found.shape != shape:
        had = f"it has {[*found.shape]}" if reader else "it has none"
        fail(f"--weights {path}: {name} must have the shape {[*shape]}, and {had}")
    return found


def my_places(args: Namespace, work: DeviceMesh) -> Tensor:
    """The places of a sequence that this rank computes, on its device: all of them,
    without --sequence."""
    length = args.context // args.sequence
    first = length * work.get_local_rank("sequence")  # [dist]
    device = torch.device(work.device_type)  # the current one
    return torch.arange(first, first + length, device=device)


def to_device(windows: Tensor, device: torch.device) -> Tensor:
    """From pinned memory a copy goes on by itself: the host does not wait until the GPU
    has done what came before."""
    if device.type == "cuda":
        windows = windows.pin_memory()
    return windows.to(device, non_blocking=True)


def split_layers(module: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053), of a block or of what
    is around them: columns of the first layers, rows of those behind them. Between them
    each rank has a part of the places: Shard(1)."""
    whole = {"input_layouts": (Shard(1), None)}
    whole |= {"desired_input_layouts": (Replicate(), None)}
    plan = {
        "tokens": tp.RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1)
        ),
        "norm1": tp.SequenceParallel(),
        "attention": tp.PrepareModuleInput(**whole),
        "attention.q": tp.ColwiseParallel(),
        "attention.k": tp.ColwiseParallel(),
        "attention.v": tp.ColwiseParallel(),
        "attention.out": tp.RowwiseParallel(output_layouts=Shard(1)),
        "norm2": tp.SequenceParallel(),
        "gate": tp.ColwiseParallel(input_layouts=Shard(1)),
        "up": tp.ColwiseParallel(input_layouts=Shard(1)),
        "down": tp.RowwiseParallel(output_layouts=Shard(1)),
        "norm": tp.SequenceParallel(),
        "head": tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    names = dict(module.named_modules())
    plan = {name: style for name, style in plan.items() if name in names}
    tp.parallelize_module(module, mesh, plan)  # [dist]


# ---- the text, once ----
def build_data(
    args: Namespace, rank: int, world_size: int
) -> tuple[Windows, Windows, Coder]:
    """Windows to train on and to evaluate, and what makes text of tokens. All ranks
    need the same ones."""
    coder = build_coder(args)
    if not args.data:
        texts = synthetic_text(args.synthetic).decode().split("\0")
        row = Row([coder.encode(texts)[: -coder.width]], coder.width)  # cut: no end
    else:
        row = tokenized(args, args.data, coder, rank, world_size)
    windows = (len(row) - 1) // args.context
    train = Windows(row, args.context, 0, windows - max(1, windows // 20))
    val = Windows(row, args.context, len(train), windows)
    if args.val:
        train = Windows(row, args.context, 0, windows)
        row = tokenized(args, args.val, coder, rank, world_size)
        val = Windows(row, args.context, 0, (len(row) - 1) // args.context)
    elif args.evaluate and args.data and is_unseen(args, row):
        train = val = Windows(row, args.context, 0, windows)
    check_enough(args, train, val)
    if args.evaluate and rank == 0:
        text = args.val or args.data or "--synthetic"
        text = f"the last twentieth of {text}" if 0 < val.begin else f"all of {text}"
        count = min(len(val), args.eval_windows)
        most = f" (--eval-windows {args.eval_windows})" if count < len(val) else ""
        print(f"evaluates {count} of {len(val)} sequences of {text}{most}", flush=True)
    return train, val, coder


def is_unseen(args: Namespace, row: Row) -> bool:
    """Whether the run, whose weights are evaluated, has trained on another text than
    --data: by its record, or what `export` has told of it. Fails where it has trained
    on all of this."""
    if args.resume is not None:
        whole = read_record(folder_to_resume(args))["whole"]
        run = whole[0]["run"] if whole else {}
    else:
        run = told_by(args.weights)
    trained_on, evaluated = str(run.get("text")), str(run.get("text to evaluate"))
    if f"(checksum {row.digest})" not in trained_on:
        return True
    if f"(checksum {row.digest})" not in evaluated:
        fail(f"the run has trained on all of {args.data}: add its --val")
    return False


class Windows:
    """Sequences of `context` tokens, and of each the one behind, side by side in one
    long row of tokens. The row lies in buffers that are mapped files: the system reads
    what is asked for, so it may be larger than the memory."""

    def __init__(self, row: Row, context: int, begin: int, end: int) -> None:
        self.row, self.context, self.begin, self.end = row, context, begin, end

    def __len__(self) -> int:
        return max(0, self.end - self.begin)

    def __getitem__(self, number: int) -> Tensor:
        """Window (context + 1) of int64: inputs are all but the last, targets all but
        the first."""
        start = (self.begin + number) * self.context
        return self.row.read(start, self.context + 1)


def shuffled(number: int, count: int, *key: int) -> int:
    """Where `number` of 0 to count - 1 goes in an order that depends on the key: by
    arithmetic, as a list of all would fill the memory. A Feistel network: whatever its
    rounds compute, no two numbers go to one place."""
    half = max(1, (count - 1).bit_length() + 1 >> 1)
    while True:
        left, right = number >> half, number & (1 << half) - 1
        for turn in range(4):
            told = repr((key, turn, right)).encode()
            mixed = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big")
            left, right = right, left ^ mixed & (1 << half) - 1
        number = left << half | right
        if number < count:  # else it left the range: another turn brings it back
            return number


def steps_per_epoch(args: Namespace, train: Windows) -> int:
    """Steps of a pass over all windows. Those that fill no step are left out of it."""
    return len(train) // args.batch_size


class Row:
    """Tokens in one long row, which lies in buffers of whole tokens: mapped files, or
    bytes. Reading copies what is asked for, and nothing else. `made_of` is for the
    log: numbers of files and texts, and of files that are not read, by their ending."""

    def __init__(
        self, buffers: list, width: int, digest: str = "", made_of: dict | None = None
    ) -> None:
        self.buffers, self.width = buffers, width  # bytes of a token: 1, 2 or 4
        self.ends = list(accumulate(len(one) // width for one in buffers))
        self.digest = digest or f"{zlib.crc32(b''.join(buffers)):x}"
        self.made_of = made_of or {}

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def read(self, start: int, count: int) -> Tensor:
        """`count` tokens (count,) as int64, from token `start` on."""
        data, width = b"", self.width
        while len(data) < count * width:
            number = bisect_right(self.ends, start)
            inside = start - (self.ends[number - 1] if number else 0)
            taken = self.buffers[number][inside * width : (inside + count) * width]
            taken = taken[: count * width - len(data)]
            data, start = data + taken, start + len(taken) // width
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]
        tokens = torch.frombuffer(bytearray(data), dtype=kind).long()
        return tokens & 0xFFFF if width == 2 else tokens  # they have no sign


class Coder:
    """Bytes as tokens: 0 ends a text. There is nothing to download or to train."""

    size, width, digest = 256, 1, "bytes"

    @property
    def padded(self) -> int:
        """Rows of embedding and head: as many as many numbers of ranks divide."""
        return 64 * math.ceil(self.size / 64)

    def encode(self, texts: list[str]) -> bytes:
        """All of them, each with its end, as they are written."""
        return b"".join(text.replace("\0", " ").encode() + b"\0" for text in texts)

    def decode(self, tokens: list[int]) -> str:
        """What a character cut at an end leaves becomes a question mark."""
        return bytes(tokens).replace(b"\0", b"\n").decode(errors="replace")

    def count_bytes(self, tokens: Tensor) -> int:
        """Bytes of text that these tokens (N,) stand for; the end of one has none."""
        return int((tokens != 0).sum())


class FileCoder(Coder):
    """Tokens of a file that the library `tokenizers` has written."""

    def __init__(self, path: Path, end: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            fail("--tokenizer needs the library: pip install tokenizers")
        try:
            data = path.read_bytes()
            self.tokenizer = Tokenizer.from_buffer(data)
            self.tokenizer.no_truncation()  # such files may cut each text at 512
            self.tokenizer.no_padding()
        except Exception as error:  # of the library's own kind
            fail(f"cannot read --tokenizer {path}: {error}")
        self.end = self.tokenizer.token_to_id(end)
        if self.end is None:
            fail(f"{path} has no token {end!r}: add --end-token {eos_beside(path)}")
        # Its numbers may have gaps, so their count may be less than the largest one.
        self.size = max(self.tokenizer.get_vocab().values()) + 1
        self.width = 2 if self.size <= 1 << 16 else 4
        self.digest = hashlib.sha256(data + end.encode()).hexdigest()[:16]

    def encode(self, texts: list[str]) -> bytes:
        row = array("H" if self.width == 2 else "I")
        try:
            all_found = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # a character that it does not know, for instance
            fail(f"--tokenizer cannot encode a text: {error}")
        for found in all_found:
            row.extend(found.ids)
            row.append(self.end)
        return row.tobytes()

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def count_bytes(self, tokens: Tensor) -> int:
        return len(self.decode(tokens.tolist()).encode())


def eos_beside(path: Path) -> str:
    """The token that ends a text, as typed, if the tokenizer's folder tells it."""
    try:
        told = json.loads((path.parent / "tokenizer_config.json").read_text())
        eos = told["eos_token"]
        return "'" + (eos["content"] if isinstance(eos, dict) else eos) + "'"
    except (OSError, ValueError, KeyError, TypeError):
        return "NAME, of the one that ends a text"


def build_coder(args: Namespace) -> Coder:
    """What makes tokens of text."""
    return FileCoder(args.tokenizer, args.end_token) if args.tokenizer else Coder()


def synthetic_text(count: int) -> bytes:
    """`count` bytes of sentences that can be learned: who counts what, and how many
    there are then."""
    draw = random.Random(0)
    names, things = ["Ada", "Ben", "Cleo", "Dan"], ["apples", "boats", "cats", "doors"]
    data = bytearray()
    while len(data) < count:
        a, b = draw.randrange(10), draw.randrange(10)
        who, what = draw.choice(names), draw.choice(things)
        data += f"{who} has {a} {what}, gets {b} and has {a + b} {what}.\0".encode()
    return bytes(data[:count])


KINDS = (".txt", ".md", ".jsonl", ".tar")
PART = 64 << 20  # bytes of text, about, that are tokenized into one file


def tokenized(
    args: Namespace, folder: Path, coder: Coder, rank: int, world_size: int
) -> Row:
    """The row of all tokens of a folder's texts, by the order of names. Each rank makes
    the files of some parts, unless they are there; then all wait for all of them."""
    parts, skipped = list_parts(folder)
    names = [
        (str(path.relative_to(folder)), size) for part in parts for path, size in part
    ]
    target = args.tokens / name_of(names, coder, args.text_key)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for number in range(rank, len(parts), world_size):  # [dist] its share
            if not (target / f"{number:05}.json").exists():
                write_part(
                    args, [path for path, _ in parts[number]], coder, target, number
                )
    except OSError as error:
        fail(f"cannot write tokens to {target}: {error}")
    said = time.monotonic()
    for number in range(len(parts)):  # [dist] there is no process group yet
        while not (target / f"{number:05}.json").exists():
            time.sleep(0.2)
            if time.monotonic() > said + 60:
                said = time.monotonic()
                missing = target / f"{number:05}.json"
                hint = "it makes it now, or has other text or another --tokens folder"
                print(f"rank {rank} waits for {missing} of another rank: {hint}")
    row = open_row(target, parts, coder.width, skipped)
    if rank == 0 and skipped:
        print(f"{folder}: {not_read(skipped)}", flush=True)
    return row


def name_of(names: list[tuple[str, int]], coder: Coder, key: str) -> str:
    """Of the folder for tokens of these files with these sizes."""
    told = repr((names, coder.digest, key, PART)).encode()
    return hashlib.sha256(told).hexdigest()[:16]


def list_parts(folder: Path) -> tuple[list[list[tuple[Path, int]]], Counter]:
    """The files of text below a folder with their sizes, in parts that make a file of
    tokens each; and how many are not read, by their endings."""
    if not folder.is_dir():
        fail(f"there is no folder {folder}: --data and --val are folders of text")
    parts, filled, skipped = [], PART, Counter()
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if is_text(path.name):
            if filled >= PART:
                parts.append([])
                filled = 0
            parts[-1].append((path, path.stat().st_size))
            filled += path.stat().st_size
        else:
            skipped[ending(path.name)] += 1
    if not parts:
        fail(f"{folder} has no text: {not_read(skipped)}")
    return parts, skipped


def is_text(name: str) -> bool:
    """Whether a file with this name holds text."""
    return name.removesuffix(".gz").endswith(KINDS)


def ending(name: str) -> str:
    """Of a file that is not read: the last part of its name, two if it is packed."""
    first, *parts = name.rpartition("/")[2].lstrip(".").split(".")
    packed = parts and parts[-1] in ("gz", "zst", "xz", "bz2", "zip")
    return "." + ".".join(parts[-2 if packed else -1 :]) if parts else "no ending"


def not_read(skipped: Counter) -> str:
    """For a line: what is not read, and what is."""
    read = f"read are {', '.join(KINDS)}, each also as .gz"
    most = skipped.most_common(9)
    told = ", ".join(f"{count} {name}" for name, count in most)
    told += f", and {len(skipped) - 9} other kinds" if len(skipped) > 9 else ""
    if any(name.startswith(".json") for name in skipped):
        told += " (to .jsonl rename what has JSON in each line)"
    return f"not read are {told}; {read}" if skipped else read


def write_part(
    args: Namespace, paths: list[Path], coder: Coder, target: Path, number: int
) -> None:
    """Tokenize files into one; beside it, last, as JSON its size, its checksum, and of
    what it is made."""
    checksum, size, count, skipped = 0, 0, 0, Counter()
    temporary = target / f"{number:05}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            each = (texts_of(path, args.text_key, skipped) for path in paths)
            found = chain.from_iterable(each)
            while texts := list(islice(found, 1000)):
                data, count = coder.encode(texts), count + len(texts)
                checksum, size = zlib.crc32(data, checksum), size + len(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target / f"{number:05}.bin")
        told = {"size": size, "checksum": checksum, "texts": count, "skipped": skipped}
        temporary.write_text(json.dumps(told))
        temporary.replace(target / f"{number:05}.json")
    finally:
        temporary.unlink(missing_ok=True)  # the disk may be full


def texts_of(path: Path, key: str, skipped: Counter) -> Iterator[str]:
    """The texts of a file: the lines of jsonl, those of each file in a tar, or one.
    Files in a tar that are not read are counted, by their endings."""
    try:
        with path.open("rb") as file:
            yield from texts_in(file, path.name, key, skipped)
    except Exception as error:  # tar, gzip, disk and text have their own kinds
        fail(f"cannot read text of {path}: {error or type(error).__name__}")


def texts_in(file: Any, name: str, key: str, skipped: Counter) -> Iterator[str]:
    """The same, of an open file with this name."""
    if name.endswith(".gz"):
        file, name = gzip.open(file), name.removesuffix(".gz")
    if name.endswith(".tar"):
        read, others = 0, Counter()
        with tarfile.open(fileobj=file, mode="r|") as archive:  # read once, in order
            for member in archive:
                if not member.isfile():
                    continue
                if not is_text(member.name):
                    others[ending(member.name)] += 1
                    continue
                read += 1
                inside = archive.extractfile(member)
                yield from texts_in(inside, member.name, key, skipped)
        if others and not read:
            raise ValueError(f"{name} has no text: {not_read(others)}")
        skipped.update(others)
    elif name.endswith(".jsonl"):
        for number, line in enumerate(file, 1):
            where = f"line {number} of {name}"
            if line.strip() and (text := text_of(line, key, where)):
                yield text
    else:
        try:
            text = file.read().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not UTF-8: {error}") from None
        yield text


def text_of(line: bytes, key: str, where: str) -> str:
    """That of a line of jsonl."""
    try:
        text = json.loads(line)[key]
        text.encode()  # fails for half a character, such as \\ud83d
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{where} has no text {key!r}, {error!r:.100}") from None
    return text


def open_row(target: Path, parts: list, width: int, skipped: Counter) -> Row:
    """Map the files of tokens. Fails if one is not as it was written, or older than its
    text. skipped: files that are not read, to which those in tars are added."""
    buffers, digest, texts = [], hashlib.sha256(), 0
    for number, part in enumerate(parts):
        path = target / f"{number:05}.bin"
        try:
            known = json.loads(path.with_suffix(".json").read_text())
            whole = path.stat().st_size == known["size"]
            newest = max(one.stat().st_mtime for one, _ in part)
            if not whole or newest > path.stat().st_mtime:
                why = "older than its text" if whole else "not whole"
                fail(f"{path} is {why}: remove {target}, and it is made again")
            digest.update(f"{known['size']} {known['checksum']} ".encode())
            texts += known.get("texts", 0)
            skipped.update(known.get("skipped", {}))
            if known["size"]:
                with path.open("rb") as file:
                    buffers.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError, KeyError, TypeError) as error:
            fail(f"cannot read tokens {path}: {error!r:.200}")
    files, texts = sum(map(len, parts)), texts or None  # older tokens do not tell
    made_of = {"files": files, "texts": texts, "skipped": dict(skipped)}
    return Row(buffers, width, digest.hexdigest()[:16], made_of)


def seed_of(*numbers: int) -> int:
    """One seed that depends on all of the numbers, such as --seed and epoch."""
    return zlib.crc32(" ".join(map(str, numbers)).encode())


# A cluster asks a run to save and end by these signals; and those that have come.
STOP_SIGNALS = [signal.SIGTERM, signal.SIGUSR1]
ASKED_TO_STOP: list[int] = []


class Meetings:
    """The steps at which the ranks tell each other how it goes: rows of the log, and
    every 5 seconds by one rank's clock, as torchrun kills 30 s after a signal."""

    seconds = 5

    def __init__(self, args: Namespace, done: int, steps: int, clock: bool) -> None:
        self.print_freq, self.steps, self.clock = args.print_freq, steps, clock
        self.last, self.next = done, done + 1
        self.moment = time.perf_counter()  # of the last one
        self.save_at = self.moment + 60 * args.save_minutes
        self.seconds_per_step = math.inf

    def news(self) -> list[float]:
        """How many signals to stop this rank has got. And from the one with the clock:
        whether to save, and the step to meet at next. The ranks add them up."""
        if not self.clock:
            return [len(ASKED_TO_STOP), 0, 0]
        row = self.next + self.print_freq - self.next % self.print_freq
        soon = self.next + max(1, int(self.seconds / self.seconds_per_step))
        due = time.perf_counter() > self.save_at
        return [len(ASKED_TO_STOP), due, min(row, soon, self.steps)]

    def learn(self, news: list[float]) -> tuple[bool, bool]:
        """Takes the sum of all ranks' news. Returns whether to save, and to stop."""
        # The host has read the sum: here a GPU is not behind it, so the time is real.
        now = time.perf_counter()
        self.seconds_per_step = (now - self.moment) / (self.next - self.last)
        self.moment, self.last = now, self.next
        asked, due, self.next = map(int, news)
        return due > 0, asked > 0


def catch_signals(args: Namespace) -> None:
    """From now on a signal to stop is only noted: the ranks stop together, where they
    meet. A second one changes nothing: launcher and cluster may send one each."""

    def note(number: int, frame: object) -> None:
        ASKED_TO_STOP.append(number)

    ASKED_TO_STOP.clear()
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_DFL if args.evaluate else note)


# ---- the log ----
def open_log(args: Namespace) -> TextIO:
    """The log, locked until this process ends: one run at a time writes into a folder.
    Fails if it holds a run that this one does not continue."""
    path = args.output_dir / ("evaluate.jsonl" if args.evaluate else "metrics.jsonl")
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # whose reader would be waited for
            raise OSError("it is a pipe")
        file = path.open("a", buffering=1)  # a line at a time
    except OSError as error:
        fail(f"cannot write {path}: {error}")
    if args.evaluate:
        return file

    # The lock is lost, without a word, when this process opens the file once more and
    # closes it: nothing else may open it.
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"another run is at work in {args.output_dir}: `fuser {path}` names it")
    except OSError as error:  # some file systems of clusters have no locks
        print(f"cannot lock {path} ({error}): start no second run in its folder")
    holds_run = file.tell() or os.path.lexists(args.output_dir / RECORD)
    if args.resume and folder_to_resume(args).resolve() == args.output_dir.resolve():
        holds_run = True  # whose record this one would write anew
    if holds_run and args.resume != "":
        hint = "use --resume without PATH, or another --output-dir"
        fail(f"{args.output_dir} holds a run: {hint}")
    return file


def log(file: TextIO | None, event: str, fields: dict) -> None:
    """Add a line to the log, which only rank 0 has, and print it."""
    if file is None:
        return
    words = [event]
    for name, value in fields.items():
        if name != "args":  # all flags would be too long to print
            value = f"{value:.4g}" if isinstance(value, float) else value
            words.append(f"{name} {value}")
    row = {"event": event, "time": time.time(), **fields}
    try:
        file.write(json.dumps(row, default=str) + "\n")  # str: a Path becomes text
        print("  ".join(words), flush=True)
    except OSError as error:
        fail(f"cannot write {file.name} or stdout: {error}")


def log_start(
    file: TextIO | None,
    args: Namespace,
    device: torch.device,
    sides: Sides,
    saved: dict,
    model: nn.Module,
    train_set: Windows,
) -> None:
    """The first row of the log: what is trained, on how much, divided how."""
    if file is None:
        return
    parameters, own, trained = 0, 0, 0
    for weight in model.parameters():
        mine = weight.to_local() if isinstance(weight, DTensor) else weight
        parameters, own = parameters + weight.numel(), own + mine.numel()
        trained += mine.numel() * weight.requires_grad
    # In float32, and two averages of Adam. Beside them come activations, and one block
    # as a whole.
    kept = {"weights": 4 * own, "gradients": 4 * trained, "optimizer": 8 * trained}
    a_step, groups = tokens_of(args, 1), sides.replicas * sides.shard
    start = {
        **place_of(args, saved.get("step", 0), train_set),
        "torch": torch.__version__,
        "device": str(device),
        **describe_gpu(device),
        "world_size": dist.get_world_size(),
        **sides._asdict(),
        "parameters": parameters,
        "megabytes_per_rank": {name: size / 1e6 for name, size in kept.items()},
        **train_set.row.made_of,
        "tokens": len(train_set) * args.context,
        "tokens_per_step": a_step,
        "tokens_per_rank": a_step // groups // args.sequence,
        "tokens_per_micro_batch": a_step // groups // args.accumulate // args.sequence,
        "steps_per_epoch": steps_per_epoch(args, train_set),
        "args": vars(args),
    }
    log(file, "start", start)
    if saved and saved["step"] >= args.steps and not args.evaluate:
        print(f"nothing to train: all {args.steps} steps are done")


def place_of(args: Namespace, done: int, train_set: Windows) -> dict:
    """For the log: the last of so many steps. An epoch is a pass over all windows;
    epochs count from 0, and the steps of one from 1. --evaluate knows no epochs: its
    text and --batch-size may be others."""
    if args.evaluate:
        return {"step": done}
    steps = steps_per_epoch(args, train_set)
    epoch = max(0, done - 1) // steps
    return {"epoch": epoch, "step": done - epoch * steps}


def tokens_of(args: Namespace, steps: int) -> int:
    """How many tokens so many steps train on, over all ranks."""
    return steps * args.batch_size * args.context


def speed_of(args: Namespace, model: nn.Module, steps: int, seconds: float) -> dict:
    """For the log, of all ranks together."""
    tokens = tokens_of(args, steps) / seconds
    tflops = tokens * flops_of_token(args, model) / 1e12
    return {"tokens_per_second": tokens, "model_tflops_per_second": tflops}


def flops_of_token(args: Namespace, model: nn.Module) -> int:
    """Floating-point operations to train on one token: 6N + 12 layers x width x context
    (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). N are the weights that
    multiply: all but the embedding, which is looked up (theirs is the head, too).
    Attention counts all places, not only those before; --recompute counts nothing."""
    flops = 12 * args.layers * args.width * args.context
    for name, weight in model.named_parameters():  # a DTensor counts as the whole
        if "tokens." not in name:
            # times its input, the gradient of that, and its own gradient if it trains
            flops += (6 if weight.requires_grad else 4) * weight.numel()
    return flops


def whole(norm: Tensor) -> Tensor:
    """The norm of all ranks' parts, where this rank has that of its own."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm  # [dist]


def describe_gpu(device: torch.device) -> dict:
    """For the log: the name and the memory of this process's GPU."""
    if device.type != "cuda":
        return {}
    gpu = torch.cuda.get_device_properties(device)
    return {"gpu": f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"}


# ---- checkpoints ----
RECORD = "checkpoints.json"


def describe_run(
    args: Namespace, train_set: Windows, val_set: Windows, coder: Coder
) -> dict:
    """What a checkpoint says of its run: all on which weights and steps depend."""
    shape = f"--width {args.width} --layers {args.layers} --heads {args.heads}"
    shape += f" --key-heads {args.key_heads or args.heads}, {coder.size} tokens"
    typed = f"--batch-size {args.batch_size} --context {args.context}"
    return {
        "model": shape,
        "flags": f"{typed} --seed {args.seed}",
        "text": f"{len(train_set)} windows (checksum {train_set.row.digest})",
        "text to evaluate": f"{len(val_set)} windows (checksum {val_set.row.digest})",
        "tokenizer": coder.digest,
    }


def read_record(folder: Path) -> dict:
    """What the run of a folder has saved: "whole", newest first, and "begun", the step
    of a save that may not have ended. Nothing else is ever removed. Fails if it is
    damaged."""
    path = folder / RECORD
    if not os.path.lexists(path):
        return {"whole": [], "begun": 0}
    try:
        record = json.loads(path.read_text())
        begun, steps = record["begun"], [one["step"] for one in record["whole"]]
        if any(type(step) is not int or step < 0 for step in [begun, *steps]):
            raise ValueError("a step is out of range")
        if 0 in steps or begun in steps:  # what is begun will be removed
            raise ValueError("a step is begun, or 0, and whole")
        for one in record["whole"]:
            if not (one["files"] and isinstance(one["run"], dict)):
                raise ValueError("a checkpoint is not described")
            for name, (size, checksum) in one["files"].items():
                if not re.fullmatch(r"\.metadata|__\d+_\d+\.distcp", name):
                    raise ValueError(f"{name!r} is no file of a checkpoint")
                int(size), int(checksum)
            if type(one["evaluated"]) is not bool:
                raise ValueError("whether it is evaluated is not known")
    except RecursionError:
        fail(f"{path} is damaged: name another --output-dir")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f"{path} is damaged, {error!r:.150}: name another --output-dir")
    return record


def write_record(args: Namespace, record: dict) -> None:
    """Beside, flushed, then renamed: a power cut leaves the old record or this one."""
    path = args.output_dir / RECORD
    temporary = path.with_suffix(".tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link would be written through
        with temporary.open("x") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        fail(f"cannot write {path}: {error}")


def folder_of(args: Namespace, step: int) -> Path:
    """Of the checkpoint after this step."""
    return args.output_dir / f"step{step}"


def folder_to_resume(args: Namespace) -> Path:
    """That of the run: PATH of --resume is one, or a checkpoint in it."""
    path = Path(args.resume or args.output_dir)
    return path.parent if args.resume and is_checkpoint(path) else path


def is_checkpoint(path: Path) -> bool:
    """Whether a path names one by its last part."""
    return re.fullmatch(r"step\d+", path.name) is not None


def find_checkpoint(args: Namespace, run: dict) -> dict:
    """What the record says of the one that --resume names, or {} to begin anew. Fails
    if this run would misread it."""
    if args.resume is None:
        return {}
    folder, path = folder_to_resume(args), Path(args.resume)
    whole = read_record(folder)["whole"]
    if args.resume and is_checkpoint(path):
        whole = [one for one in whole if f"step{one['step']}" == path.name]
    if not whole and (args.resume or args.evaluate):
        fail(f"--resume: {folder / RECORD} names no checkpoint {args.resume}".rstrip())
    if not whole:
        return {}  # the first start of a job that is always started by the same line
    saved = whole[0]
    for name in ("model", "tokenizer") if args.evaluate else run:
        before = saved["run"].get(name)
        if before != run[name]:
            fail(f"--resume: {name}: was {before!r}, and is {run[name]!r} now")
    return saved


def save_checkpoint(
    args: Namespace,
    run: dict,
    model: nn.Module,
    optimizer: Optimizer,
    step: int,
    evaluated: bool,
) -> None:
    """On all ranks: each writes its parts, in a folder that the record names as whole
    only when all have. A kill, at any time, leaves the one before."""
    rank, folder = dist.get_rank(), folder_of(args, step)
    record = read_record(args.output_dir) if rank == 0 else {"whole": []}
    told = [bool(record["whole"]) and record["whole"][0]["step"] == step]
    dist.broadcast_object_list(told, src=0)  # [dist]
    if not told[0]:
        if rank == 0:
            clear(args, record, step)
        dist.barrier()  # [dist] before anybody writes into the folder
        try:
            dcp.save(state_of(model, optimizer), checkpoint_id=folder)  # [dist]
            files = checksums(folder, f"__{rank}_*.distcp")
        except (Exception, dcp.CheckpointException) as error:
            fail(f"cannot save {folder}, {room_at(folder)}: {reason(error)}")
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, files)  # [dist] also: all have written
        if rank == 0:
            files = checksums(folder, ".metadata")
            for theirs in found:
                files |= theirs
            one = {"step": step, "run": run, "files": files}
            older = [
                old for old in record["whole"] if folder_of(args, old["step"]).exists()
            ]
            record = {"whole": [one, *older], "begun": 0}
    if rank == 0:
        record["whole"][0]["evaluated"] = evaluated
        write_record(args, record)
        # Only now: whoever is killed before goes on from one of these. What is not
        # removed, as the run is killed here, is named by the record, and removed later.
        for old in record["whole"][args.keep :] if args.keep else []:
            shutil.rmtree(folder_of(args, old["step"]), ignore_errors=True)


def room_at(folder: Path) -> str:
    """What torch leaves out: of a full disk it says no more than "unexpected pos"."""
    try:
        return f"where {shutil.disk_usage(folder.parent).free / 1e6:.1f} MB are free"
    except OSError as error:  # somebody has removed it
        return f"which cannot be looked at ({error})"


def reason(error: BaseException) -> str:
    """What failed. dcp's own kind, which is no Exception, holds one for each rank."""
    for first, _ in getattr(error, "failures", {}).values():
        return f"{first!r:.300}"
    return f"{error!r:.300}"


def clear(args: Namespace, record: dict, step: int) -> None:
    """Make room for a checkpoint, which the record names before it is begun; remove one
    that was not finished. Fails where the folder is not of this run."""
    if record["begun"]:
        shutil.rmtree(folder_of(args, record["begun"]), ignore_errors=True)
    if os.path.lexists(folder_of(args, step)):
        fail(f"{folder_of(args, step)} is not of this run: move it away, and --resume")
    write_record(args, record | {"begun": step})


def checksums(folder: Path, pattern: str) -> dict[str, list[int]]:
    """Size and CRC-32 of files, by name."""
    found = {}
    for path in folder.glob(pattern):
        checksum, size = 0, 0
        try:
            with path.open("rb") as file:
                while data := file.read(1 << 24):
                    checksum, size = zlib.crc32(data, checksum), size + len(data)
        except OSError as error:
            fail(f"cannot read {path}: {error}")
        found[path.name] = [size, checksum]
    return found


def state_of(model: nn.Module, optimizer: Optimizer) -> dict:
    """Tensors alone: reading anything else back could run code. What the optimizer is
    set to comes from the command line."""
    averages = states.get_optimizer_state_dict(model, optimizer)["state"]
    return {"model": states.get_model_state_dict(model), "optimizer": averages}


def restore(
    args: Namespace, saved: dict, model: nn.Module, optimizer: Optimizer
) -> None:
    """Give back weights and averages, on any number of ranks, if there is a checkpoint.
    Fails if a file is not as it was written."""
    if not saved:
        return
    folder, rank = folder_to_resume(args) / f"step{saved['step']}", dist.get_rank()
    names = sorted(saved["files"])
    for name in names[rank :: dist.get_world_size()]:  # [dist] each looks at some
        if checksums(folder, name) != {name: saved["files"][name]}:
            fail(f"{folder / name} is damaged or gone: --resume cannot go on from it")
    dist.barrier()  # [dist] all are whole
    check_metadata(folder / ".metadata")
    state = state_of(model, optimizer)
    try:
        dcp.load(state, checkpoint_id=folder)  # [dist] into the tensors that are there
    except (Exception, dcp.CheckpointException) as error:
        fail(f"cannot load {folder}: {reason(error)}")
    settings = states.get_optimizer_state_dict(model, optimizer)["param_groups"]
    averages = {"state": state["optimizer"], "param_groups": settings}
    states.set_optimizer_state_dict(model, optimizer, averages)


# What torch writes into .metadata, and nothing else: a pickle can name any program.
HARMLESS = {
    f"torch.distributed.checkpoint.metadata.{name}"
    for name in (
        "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata "
        "MetadataIndex StorageMeta _MEM_FORMAT_ENCODING"
    ).split()
} | {
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "torch.Size",
    "torch.float32",
    "torch.float64",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
}


class Unpickler(pickle.Unpickler):
    """Imports nothing but what is harmless."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in HARMLESS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def check_metadata(path: Path) -> None:
    """Fail unless the file, which torch will unpickle, is of tensors and no program."""
    try:
        found = Unpickler(io.BytesIO(path.read_bytes())).load()
        for name, kind in found.state_dict_metadata.items():
            if type(kind) is not TensorStorageMetadata:
                raise pickle.UnpicklingError(f"{name} is no tensor")
    except Exception as error:  # of many kinds
        fail(f"cannot read {path}, {error!r:.150}: --resume cannot go on from it")


@torch.no_grad()
def sample(
    args: Namespace,
    model: nn.Module,
    prompt: list[int],
    coder: Coder,
    work: DeviceMesh,
) -> list[int]:
    """Tokens that go on from the prompt. All ranks compute, as each call gathers
    weights; the one that has the last place draws, and tells the others."""
    places = my_places(args, work)
    device = places.device
    generator = torch.Generator().manual_seed(args.seed)
    tokens = list(prompt)
    draws = work.get_local_rank("batches") == work.get_local_rank("tensor") == 0

    model.eval()
    for _ in range(args.sample):
        seen = tokens[-args.context :]
        row = torch.zeros(1, args.context, dtype=torch.long, device=device)
        row[0, : len(seen)] = torch.tensor(seen, device=device)
        logits = model(row[:, places], places)[0]
        chosen = torch.zeros(1, dtype=torch.long, device=device)
        owner, place = divmod(len(seen) - 1, len(places))
        if draws and work.get_local_rank("sequence") == owner:
            odds = (logits[place, : coder.size] / 0.8).softmax(-1).cpu()
            chosen[0] = torch.multinomial(odds, 1, generator=generator).to(device)
        dist.all_reduce(chosen)  # [dist]
        tokens.append(int(chosen))
    return tokens[len(prompt) :]


def scores_of(loss_sum: float, tokens: float, text: float) -> dict:
    """Of the sum of all losses, of so many tokens and bytes of text."""
    check_finite(loss_sum, "in validation")  # before anybody saves such weights
    return {
        "loss": loss_sum / tokens,
        "perplexity": math.exp(min(loss_sum / tokens, 700)),  # or it would overflow
        "bits_per_byte": loss_sum / math.log(2) / max(1, text),
        "tokens": int(tokens),
    }


def print_sample(
    args: Namespace, model: nn.Module, val_set: Windows, coder: Coder, work: DeviceMesh
) -> None:
    """What the model writes after the beginning of the text to evaluate."""
    prompt = val_set[0][: max(1, args.context // 4)].tolist()
    written = sample(args, model, prompt, coder, work)
    if dist.get_rank() == 0 and written:
        told = f"{coder.decode(prompt)}[...]{coder.decode(written)}"
        try:
            print(told, flush=True)
        except UnicodeEncodeError:  # what prints may not know all characters
            print(told.encode("ascii", "replace").decode())
        except OSError as error:
            fail(f"cannot write to stdout: {error}")


def export(args: Namespace, run: dict, model: nn.Module) -> None:
    """All weights as one file, which a plain `Model` reads. All ranks gather."""
    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    # On rank 0; elsewhere it is empty.
    state = states.get_model_state_dict(model, options=options)
    if dist.get_rank() > 0:
        return
    try:
        from safetensors.torch import save_file

        path = args.output_dir / "model.safetensors"
        save = partial(save_file, metadata=run | {"format": "pt"})
    except ImportError:
        path, save = args.output_dir / "model.pt", torch.save
    temporary = path.with_suffix(".tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link would be written through
        temporary.touch()
        mode = temporary.stat().st_mode  # as the umask has it; safetensors has its own
        save(state, temporary)
        temporary.chmod(mode)
        temporary.replace(path)
    except Exception as error:  # a full disk is one kind for each library
        temporary.unlink(missing_ok=True)
        fail(f"cannot save {path}: {error!r:.200}")


def wait_for_gloo() -> None:
    """Before torch 2.13 a process group's end may hang while gloo frees tensors."""
    time.sleep(0.1)


if __name__ == "__main__":
    main()
