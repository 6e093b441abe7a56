"""Try every collective of torch.distributed on the backends of this machine, and tabulate it.

    python tools/site/backend_table.py  # try all, write the tables of the site
    python tools/site/backend_table.py --render  # the tables again, from backends.json alone

Each trial runs in two fresh processes, the ranks, which live for 25 seconds at most. It counts as
supported if it raises nothing and both ranks get the right values. What takes more GPUs than there
are has no column.
"""

import argparse
import functools
import json
import multiprocessing
import os
import platform
import re
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

FOLDER = Path(__file__).resolve().parents[2] / "docs/assets/results/backends"
LIMIT = 20  # seconds of a trial
# Of each column the backend, where its tensors are, and how many GPUs it takes.
COLUMNS = {
    "gloo CPU": ("gloo", "cpu", 0),
    "gloo CUDA": ("gloo", "cuda", 1),
    "nccl CUDA": ("nccl", "cuda", 2),
    "cpu:gloo,cuda:nccl CUDA": ("cpu:gloo,cuda:nccl", "cuda", 2),
}

# ---------------------------------------------------------------------------------------- trials


@dataclass(frozen=True)
class Rank:
    """One of two on which a trial runs, and tensors where it runs."""

    rank: int
    device: str

    def full(self, value: float, size: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((size,), float(value), device=self.device).to(dtype)

    def mine(self, size: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
        """What a rank gives: 2s on rank 0, 3s on rank 1."""
        return self.full(self.rank + 2, size, dtype)

    def all(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [self.full(2, dtype=dtype), self.full(3, dtype=dtype)]

    def empty(self) -> list[Tensor]:
        return [self.full(0), self.full(0)]

    def first(self, value: object) -> Any:
        """The value on rank 0, nothing on others."""
        return value if self.rank == 0 else None

    def completed(self, work: dist.Work) -> bool:
        """wait() on CUDA has the stream wait, not this process: only then is it completed."""
        work.wait()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return work.is_completed()


OBJECTS = [{"rank": 0}, {"rank": 1}]
# What this rank got and what is right, tensors or numbers; None: it has only to come to its end.
Outcome = tuple[Any, Any] | None
Trial = Callable[[Rank], Outcome]


def fill(function: Callable, got: object, *words: object) -> Any:
    """What a function that fills its first argument made of it."""
    function(got, *words)
    return got


def send_recv(r: Rank, source: int | None = 0) -> Outcome:
    if r.rank == 0:
        return dist.send(r.full(7), 1)
    sender = dist.recv(got := r.full(0), source)
    return [got, sender], [[7, 7], 0]


def send_tags(r: Rank) -> Outcome:
    """Received in the other order than sent: only the tags tell which is which."""
    if r.rank == 0:
        sent = {tag: r.full(tag) for tag in (5, 6)}  # not freed before it is sent
        works = [dist.isend(tensor, 1, tag=tag) for tag, tensor in sent.items()]
        return [r.completed(work) for work in works], [True, True]
    return [fill(dist.recv, r.full(0), 0, None, tag) for tag in (6, 5)], [[6, 6], [5, 5]]


def isend_irecv(r: Rank) -> Outcome:
    """One sends first, one receives first: nccl keeps the order of the calls."""
    peer, got, mine = 1 - r.rank, r.full(0), r.mine()
    calls = [lambda: dist.isend(mine, peer), lambda: dist.irecv(got, peer)]
    works = [call() for call in (calls[::-1] if r.rank else calls)]
    return [*map(r.completed, works), got], [True, True, [peer + 2] * 2]


def batch_isend_irecv(r: Rank) -> Outcome:
    peer, got = 1 - r.rank, r.full(0)
    ops = [dist.P2POp(dist.isend, r.mine(), peer), dist.P2POp(dist.irecv, got, peer)]
    works = dist.batch_isend_irecv(ops)
    return [all(map(r.completed, works)), got], [True, [peer + 2] * 2]


def broadcast(r: Rank, dtype: torch.dtype = torch.float32) -> Outcome:
    return fill(dist.broadcast, r.mine(dtype=dtype), 0), r.full(2, dtype=dtype)


def all_gather_into_tensor(r: Rank, dtype: torch.dtype = torch.float32) -> Outcome:
    got = fill(dist.all_gather_into_tensor, r.full(0, 4, dtype), r.mine(dtype=dtype))
    return got.view(2, 2), r.all(dtype)


def all_to_all_single(r: Rank, sizes: list[int]) -> Outcome:
    """Rank t gets sizes[t] elements of each rank."""
    mine = sizes[r.rank]
    sent = torch.cat([r.full(10 * r.rank + to, size) for to, size in enumerate(sizes)])
    splits = [[mine] * 2, sizes] if sizes != [2, 2] else []
    got = fill(dist.all_to_all_single, r.full(0, 2 * mine), sent, *splits)
    return got.view(2, mine), [[r.rank] * mine, [10 + r.rank] * mine]


def asynchronous(r: Rank) -> Outcome:
    work = dist.all_reduce(got := r.mine(), async_op=True)
    return [r.completed(work), got], [True, sum(r.all())]


def with_future(r: Rank) -> Outcome:
    future = dist.all_reduce(r.mine(), async_op=True).get_future()
    return future.then(lambda f: f.value()[0] / 2).wait(), sum(r.all()) / 2


BITS = {"BAND": 2, "BOR": 3, "BXOR": 1}
# What they make of 2 and 3, the numbers of two ranks; PREMUL_SUM with the factor 0.5.
OPS = {"SUM": 5, "AVG": 2.5, "PRODUCT": 6, "MIN": 2, "MAX": 3, **BITS, "PREMUL_SUM": 2.5}


def reduction(r: Rank, function: str, op: str = "SUM", dtype: torch.dtype | None = None) -> Outcome:
    """A function with an operation; bitwise ones are for whole numbers."""
    dtype = dtype or (torch.int32 if op in BITS else torch.float32)
    reduce_op = getattr(dist.ReduceOp, op)
    if op == "PREMUL_SUM":
        reduce_op = reduce_op(0.5)
    if function == "all_reduce":
        got = fill(dist.all_reduce, r.mine(dtype=dtype), reduce_op)
    elif function == "reduce":  # what is left on other ranks is not defined
        got = r.first(fill(dist.reduce, r.mine(dtype=dtype), 0, reduce_op))
    else:
        sent = r.mine(4, dtype)
        got = fill(dist.reduce_scatter_tensor, r.full(0, dtype=dtype), sent, reduce_op)
    return None if got is None else (got, r.full(OPS[op], dtype=dtype))


part = functools.partial
PLAIN: dict[str, Trial] = {
    "send, recv": send_recv,
    "recv from any rank": part(send_recv, source=None),
    "send with tag": send_tags,
    "isend, irecv": isend_irecv,
    "batch_isend_irecv": batch_isend_irecv,
    "broadcast": broadcast,
    "reduce": part(reduction, function="reduce"),
    "all_reduce": part(reduction, function="all_reduce"),
    "all_reduce, async_op": asynchronous,
    "get_future().then": with_future,
    "gather": lambda r: (
        fill(lambda got: dist.gather(r.mine(), got, 0), r.first(r.empty())), r.first(r.all())),
    "gather_into_tensor": lambda r: (
        fill(lambda got: dist.gather_into_tensor(r.mine(), got, 0), r.first(r.full(0, 4))),
        r.first(torch.cat(r.all()))),
    "all_gather": lambda r: (fill(dist.all_gather, r.empty(), r.mine()), r.all()),
    "all_gather, unequal sizes": lambda r: (
        fill(dist.all_gather, [r.full(0, 1), r.full(0, 2)], r.mine(r.rank + 1)), [[2], [3, 3]]),
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_gather_into_tensor, stacked": lambda r: (
        fill(dist.all_gather_into_tensor, r.full(0, 4).view(2, 2), r.mine()), r.all()),
    "scatter": lambda r: (fill(dist.scatter, r.full(0), r.first(r.all()), 0), r.mine()),
    "reduce_scatter": lambda r: (
        fill(dist.reduce_scatter, r.full(0), [r.mine(), r.mine()]), sum(r.all())),
    "reduce_scatter_tensor": part(reduction, function="reduce_scatter_tensor"),
    "reduce_scatter_tensor, stacked": lambda r: (
        fill(dist.reduce_scatter_tensor, r.full(0), r.mine(4).view(2, 2)), sum(r.all())),
    "all_to_all": lambda r: (
        fill(dist.all_to_all, r.empty(), [r.full(10 * r.rank), r.full(10 * r.rank + 1)]),
        [[r.rank] * 2, [10 + r.rank] * 2]),
    "all_to_all_single": part(all_to_all_single, sizes=[2, 2]),
    "all_to_all_single, unequal": part(all_to_all_single, sizes=[1, 2]),
    "barrier": lambda r: dist.barrier(),
    "monitored_barrier": lambda r: dist.monitored_barrier(timeout=timedelta(seconds=10)),
    "broadcast_object_list": lambda r: (
        fill(dist.broadcast_object_list, r.first(["a", {"b": 2}]) or [0, 0], 0), ["a", {"b": 2}]),
    "all_gather_object": lambda r: (
        fill(dist.all_gather_object, [None, None], OBJECTS[r.rank]), OBJECTS),
    "gather_object": lambda r: (
        fill(lambda got: dist.gather_object(OBJECTS[r.rank], got, 0), r.first([None, None])),
        r.first(OBJECTS)),
    "scatter_object_list": lambda r: (
        fill(dist.scatter_object_list, [None], r.first(OBJECTS), 0), [OBJECTS[r.rank]]),
    "send_object_list": lambda r: (
        fill(dist.recv_object_list if r.rank else dist.send_object_list,
             r.first(["a", 1]) or [0, 0], 1 - r.rank), ["a", 1]),
}  # fmt: skip
OP_ROWS = (*OPS, *(f"{op} of float32" for op in BITS), "AVG of int32")
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "int64",
          "int32", "int16", "int8", "uint8", "bool")  # fmt: skip
MOVES = {name: PLAIN[name] for name in ("all_reduce", "broadcast", "all_gather_into_tensor")}

# "part/row/function" -> trial
TRIALS: dict[str, Trial] = {f"functions/{name}": trial for name, trial in PLAIN.items()}
for row in OP_ROWS:
    op, _, name = row.partition(" of ")
    for f in ("all_reduce", "reduce", "reduce_scatter_tensor"):
        dtype = getattr(torch, name) if name else None
        TRIALS[f"ops/{row}/{f}"] = part(reduction, function=f, op=op, dtype=dtype)
for name in DTYPES:
    for f, trial in MOVES.items():
        TRIALS[f"dtypes/{name}/{f}"] = part(trial, dtype=getattr(torch, name))

# ---------------------------------------------------------------------------------------- running

FORK = multiprocessing.get_context("fork")  # torch is imported once; the parent never wakes up CUDA
YES = "yes"  # what a trial says of itself, or else why not
LATE = "no answer"


def plain(value: object) -> object:
    """Numbers in place of tensors; on CUDA this waits for them."""
    if isinstance(value, Tensor):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def one_line(error: BaseException) -> str:
    """Type and message, without where gloo was built and without addresses."""
    text = str(error).strip().split("\n")[0]
    text = re.sub(r"\[rank\d+\]:|\[[^\]]*\.(cc|h|cpp):\d+\] ", "", text)
    text = re.sub(r"\[?[\da-f:.]+\]?:\d{2,5}\b", "ADDRESS", text)
    return f"{type(error).__name__}: {text[:150]}".replace("|", "/")


def one_rank(name: str, column: str, rank: int, path: str) -> str:
    """A trial in one process: what came out."""
    signal.alarm(LIMIT + 5)  # the end, even if the parent was killed
    torch.set_num_threads(1)
    backend, device, _ = COLUMNS[column]
    try:
        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        store = dist.FileStore(path, 2)
        dist.init_process_group(backend, store=store, rank=rank, world_size=2)
        got, right = map(plain, TRIALS[name](Rank(rank, device)) or (None, None))
        if device == "cuda":
            torch.cuda.synchronize()
        return YES if got == right else f"wrong values: {got}"
    except Exception as error:
        return one_line(error)


def attempt(name: str, column: str, path: str) -> str:
    """A trial of ranks that meet at a path: what the first says that failed. Who waits for it, or
    crashes, gives no answer."""
    with FORK.Pool(2) as ranks:  # who is done stays to the end of it: a peer may still need it
        answers = [ranks.apply_async(one_rank, (name, column, rank, path)) for rank in range(2)]
        for answer in answers:
            answer.wait(LIMIT)
        said = [answer.get() if answer.ready() else LATE for answer in answers]
    failures = [outcome for outcome in said if outcome != YES]
    return min(failures, key=lambda outcome: outcome == LATE, default=YES)


def machine() -> dict:
    """Of which kind this machine is; nothing that tells it from others of its kind."""
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return {"cpus": os.cpu_count(), "kind": platform.machine(), "gpus": gpus}


def run_all() -> dict:
    """The results of all trials, as they are written to backends.json."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with FORK.Pool(1) as child:  # CUDA, once awake, does not survive a fork
        here = child.apply(machine)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None
    gpus = len(here["gpus"])
    ranks = {column: 2 if gpus >= needed else 0 for column, (_, _, needed) in COLUMNS.items()}
    trials: dict[str, dict] = {name: {} for name in TRIALS}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(TRIALS):
            for column in filter(ranks.get, COLUMNS):
                said = attempt(name, column, f"{folder}/{number} {column}")
                trials[name][column] = said
                print(name, column, said, sep=", ", flush=True)
    facts = {"torch": torch.__version__, "machine": here, "nccl": nccl}
    return {**facts, "ranks": ranks, "trials": trials}


# ---------------------------------------------------------------------------------------- tables

WORDS = {
    "en": {
        "head": "Tried with torch {torch} on a machine with {machine}: {ran}. ✓: no error, and "
        "the right values on all ranks. ✘: an error, its message below.",
        "ran": "{column} (ranks: {n})", "rest": " Could not be tried there: {rest}.",
        "cpus": "{cpus} {kind} CPUs", "comma": ", ", "functions": "function",
        "ops": "`ReduceOp`", "dtypes": "dtype",
    },
    "zh": {
        "head": "用 torch {torch} 在一台有 {machine} 的机器上试的：{ran}。"
        "✓：没有报错，各 rank 的数值都对。✘：报错，信息在表下。",
        "ran": "{column}（{n} 个 rank）", "rest": "那台机器上没法试的：{rest}。",
        "cpus": "{cpus} 个 {kind} CPU", "comma": "、", "functions": "函数",
        "ops": "`ReduceOp`", "dtypes": "类型",
    },
}  # fmt: skip


def head_of(result: dict, words: dict[str, str]) -> str:
    here, comma = result["machine"], words["comma"]
    parts = [words["cpus"].format(**here)]
    if gpus := here["gpus"]:
        parts += [f"{len(gpus)} x {gpus[0]}", f"NCCL {result['nccl']}"]
    ranks = result["ranks"].items()
    ran = comma.join(words["ran"].format(column=column, n=n) for column, n in ranks if n)
    rest = comma.join(f"`{column}`" for column, n in ranks if not n)
    head = words["head"].format(torch=result["torch"], machine=comma.join(parts), ran=ran)
    return head + (words["rest"].format(rest=rest) if rest else "")


def table(part: str, result: dict, words: dict[str, str]) -> list[str]:
    """The rows of a part. Where its functions agree on a row a cell has one mark for all."""
    columns = [column for column, n in result["ranks"].items() if n]
    cells: dict[str, dict[str, dict[str, list[str]]]] = {}  # row, column, mark: its functions
    messages: list[str] = []
    for name, tried in result["trials"].items():
        kind, row, function = f"{name}/".split("/", 3)[:3]
        for column in columns if kind == part else ():
            said, mark = tried[column], "✓"
            if said != YES:
                if said not in messages:
                    messages.append(said)
                mark = f"✘ {messages.index(said) + 1}"
            by_mark = cells.setdefault(row, {}).setdefault(column, {})
            by_mark.setdefault(mark, []).append(f"`{function}`")
    comma = words["comma"]
    rows = [[words[part], *columns], ["---"] * (len(columns) + 1)]
    for row, by_column in cells.items():
        rows.append([f"`{row}`"])
        for by_mark in by_column.values():
            each = [f"{comma.join(names)} {mark}" for mark, names in by_mark.items()]
            rows[-1].append(comma.join(each) if len(each) > 1 else next(iter(by_mark)))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"{n}. `{message}`" for n, message in enumerate(messages, 1)]
    return [*lines, "", *notes, *([""] if notes else [])]


def fragment(result: dict, language: str) -> str:
    """The tables as Markdown, each after a comment with its name."""
    words = WORDS[language]
    lines = ["<!-- functions -->", head_of(result, words), "", *table("functions", result, words)]
    for part in ("ops", "dtypes"):
        lines += [f"<!-- {part} -->", *table(part, result, words)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", action="store_true", help="tables from the JSON, try nothing")
    path = FOLDER / "backends.json"
    if not parser.parse_args().render:
        path.write_text(json.dumps(run_all(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    for language in WORDS:
        text = fragment(json.loads(path.read_text("utf-8")), language)
        (FOLDER / f"table.{language}.md").write_text(text, "utf-8")
    print(f"the tables are in {FOLDER}/")


if __name__ == "__main__":
    main()
