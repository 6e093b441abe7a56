"""How far tools/fits.py is from bytes that were counted, and what fits where by it.

    python tools/benchmark/fits_table.py    # minutes; into docs/assets/results/fits.*

Counted are real tensors, and what the allocator gave out, on two CPU processes over gloo.
"""

import sys
import tempfile
from datetime import date
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torchvision import models

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import fits

LM = str(fits.ROOT / "09_language_model/main.py")
SMALL = "--width 128 --layers 4 --heads 4 --context 128 --batch-size 8".split()
# Of the table: how it is divided, whether in bfloat16, whether recomputed. Not in it is FSDP2's
# policy for a net with BatchNorm, whose statistics in float32 do not go with bfloat16 on CPUs.
CASES = [
    (name, divided, bf16, again)
    for name in ("09", "resnet18")
    for divided in (False, True)
    for bf16 in (False, True)
    for again in (False, True)
    if not (name == "resnet18" and divided and bf16)
]
KINDS = ("weights", "gradients", "state of the optimizer", "buffers")
# Width, layers, heads; all with 8 heads of keys and a vocabulary of 50,304.
SIZES = [(2048, 17, 16), (3072, 28, 24), (4096, 37, 32), (5120, 46, 40)]
# Context, ranks of --sequence, whether recomputed.
FLAGS = [(4096, 1, False), (4096, 1, True), (32768, 1, True), (32768, 8, True)]
MEMORIES = (24, 40, 80, 141)
RANKS = (1, 2, 4, 8, 16, 32, 64)
TEXTS = {
    "en": (
        "trained | by | weights, gradients, state, buffers | kept for backward | most at once",
        "recomputed",
        "Two CPU processes over gloo: counted, in MB of rank 0, and how far the prediction is from "
        "it. 09: 4 layers of width 128, 4 sequences of 128 tokens a rank. `resnet18`: 8 images of "
        "64 x 64 a rank. Most at once: in forward and backward, beside weights, state and DDP's "
        "buckets; FSDP2's varies from step to step by up to two units, which gloo's threads still "
        "hold. torch {torch}; {day}.",
        "parameters | flags",
        "Least number of GPUs, of 1 to 64 (–: none of these). FSDP2 with `--bf16`, one sequence "
        "at a time, `--key-heads 8`, 50,304 tokens. Computed by `tools/fits.py` with torch "
        "{torch}: no GPU has measured it; {day}.",
    ),
    "zh": (
        "训练 | 方式 | 参数、梯度、优化器状态、buffer | 为反向保留 | 同时最多",
        "重计算",
        "两个 CPU 进程，gloo：rank 0 上数出来的 MB 数，以及预测与它的差距。09：4 层，宽 128，"
        "每个 rank 4 条 128 个 token 的序列。`resnet18`：每个 rank 8 张 64 x 64 的图片。"
        "同时最多：前向和反向之中，不含参数、优化器状态和 DDP 的梯度桶；FSDP2 的数值每一步会差"
        "最多两个单元，即 gloo 线程还没释放的部分。torch {torch}；{day}。",
        "参数量 | 参数选项",
        "最少要几张卡，在 1 到 64 之中（–：都不够）。FSDP2 加 `--bf16`，每次一条序列，"
        "`--key-heads 8`，词表 50,304。由 `tools/fits.py` 用 torch {torch} 算出，"
        "没有在 GPU 上测量过；{day}。",
    ),
}


def resnet() -> tuple:
    batch = torch.zeros(8, 3, 64, 64), torch.zeros(8, dtype=torch.long)
    return models.resnet18(num_classes=100), batch, classify


def classify(model: nn.Module, batch: tuple) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def work_of(name: str) -> fits.Work:
    return fits.Work(resnet) if name == "resnet18" else fits.Chapter(LM, SMALL, None)


@cache
def counter_of(name: str, bf16: bool) -> fits.Counter:
    return fits.Counter(work_of(name), bf16=bf16)


def predict(name: str, ranks: int, divided: bool, bf16: bool, again: bool) -> dict[str, int]:
    """What `count` counts, by tools/fits.py."""
    rank = counter_of(name, bf16).rank(ranks, divided)
    activations, loss, more = (rank["recomputed: " * again + kind] for kind in fits.KINDS)
    # FSDP2's gradients are made in the step; those of DDP lie in buckets, made before.
    gathered = rank["gathered weights"] + rank["their gradients"] + rank["gradients"] * divided
    most = activations + loss + more + gathered
    return {kind: rank[kind] for kind in KINDS} | {"kept": activations + loss, "most": most}


def count(name: str, divided: bool, bf16: bool, again: bool) -> dict[str, int]:
    """In a process of a group: the bytes of a real step on this rank, by kind."""
    work = work_of(name)
    model, loss = work.build(work.share(dist.get_world_size(), divided)[1])
    units = fits.load(str(fits.ROOT / "08_fsdp2/main.py")).blocks(model)
    for unit in units if again else ():
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)
    if divided:
        kinds = (torch.bfloat16, torch.float32) if bf16 else (None, None)
        for unit in units:
            fully_shard(unit, mp_policy=MixedPrecisionPolicy(*kinds))
        fully_shard(model, mp_policy=MixedPrecisionPolicy(*kinds, kinds[1]))
    called = model if divided else DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters())
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=bf16 and not divided)
    for _ in range(3):  # after the first there is a state, after the second DDP's last buckets
        optimizer.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as events:
            with autocast:
                found = loss(called)
            found.backward()
        optimizer.step()
    of = [model.parameters(), [weight.grad for weight in model.parameters()]]
    of += [[t for state in optimizer.state.values() for t in state.values() if t.dim()]]
    sizes = [sum(map(local, tensors)) for tensors in [*of, model.buffers()]]
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[fits.address(tensor)] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        found = loss(called)
    own = {fits.address(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    saved = sum(t.untyped_storage().nbytes() for number, t in kept.items() if number not in own)
    return dict(zip(KINDS, sizes, strict=True)) | {"kept": saved, "most": most(events)}


def local(tensor: Tensor) -> int:
    """Bytes that are here."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes


def most(events: profile) -> int:
    """Bytes that the allocator gave out at most, beyond what there was."""
    now = found = 0
    for event in sorted(
        events.profiler.kineto_results.events(), key=lambda event: event.start_ns()
    ):
        if event.name() == "[memory]":
            now += event.nbytes()
            found = max(found, now)
    return found


def count_all(rank: int, store: str, answers: mp.SimpleQueue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = [count(*case) for case in CASES]
    if rank == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def compared() -> list[tuple]:
    """Of each case: what was counted, and what was predicted."""
    answers = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(count_all, (f"{folder}/store", answers), nprocs=2)
        counted = answers.get()
    predicted = [predict(name, 2, *how) for name, *how in CASES]
    return list(zip(CASES, counted, predicted, strict=True))


def least(width: int, layers: int, heads: int) -> tuple[int, list]:
    """How many parameters; and with each of FLAGS, for each memory, the least number of ranks."""
    shape = f"--width {width} --layers {layers} --heads {heads} --key-heads 8".split()
    work = fits.Chapter(LM, shape, 50304)
    counter = fits.Counter(work, bf16=True)
    found = []
    for context, sequence, again in FLAGS:
        work.args.context, work.args.sequence = context, sequence
        needs = {}
        for ranks in RANKS[RANKS.index(sequence) :]:
            work.args.batch_size = ranks // sequence  # one sequence for each group of ranks
            needs[ranks] = counter.rank(ranks, True)["recomputed: " * again + "TOGETHER"]
        fit = [[ranks for ranks in needs if needs[ranks] <= fits.room(gb)] for gb in MEMORIES]
        found.append([str(min(ranks, default="–")) for ranks in fit])
    return sum(weight.numel() for weight in counter.model.parameters()), found


def main() -> None:
    sizes = [least(*size) for size in SIZES]
    cases = compared()
    words = {"torch": version("torch"), "day": date.today()}
    for language, (head, recomputed, about, size_head, about_sizes) in TEXTS.items():
        lines = ["<!-- sizes -->", f"| {size_head} | {' | '.join(f'{gb} GB' for gb in MEMORIES)} |"]
        lines.append("| ---: | --- " + "| ---: " * len(MEMORIES) + "|")
        for size, found in sizes:
            for (context, sequence, again), cells in zip(FLAGS, found, strict=True):
                flags = f"--context {context}" + " --recompute" * again
                flags += f" --sequence {sequence}" if sequence > 1 else ""
                lines.append(f"| {size / 1e9:.1f} B | `{flags}` | {' | '.join(cells)} |")
        lines += ["", about_sizes.format(**words), "", "<!-- error -->", f"| {head} |"]
        lines.append("| --- | --- | ---: | ---: | ---: |")
        for (name, divided, bf16, again), counted, predicted in cases:
            pairs = [[sum(found[kind] for kind in KINDS) for found in (counted, predicted)]]
            pairs += [[counted[kind], predicted[kind]] for kind in ("kept", "most")]
            cells = [f"{real / 1e6:.1f}, {(ours / real - 1) * 100:+.1f}%" for real, ours in pairs]
            how = ["FSDP2" if divided else "DDP", *["`bf16`"] * bf16, *[recomputed] * again]
            name = name if name == "09" else f"`{name}`"
            comma = ", " if language == "en" else "，"
            lines.append(f"| {name} | {comma.join(how)} | {' | '.join(cells)} |")
        path = fits.ROOT / f"docs/assets/results/fits.{language}.md"
        path.write_text("\n".join([*lines, "", about.format(**words)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
