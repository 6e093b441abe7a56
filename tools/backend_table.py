"""Try every collective of torch.distributed on the backends of this machine, and tabulate it.

    python tools/backend_table.py                   # try all, write the tables of the site
    python tools/backend_table.py --only AVG        # try what has AVG in its name, write nothing
    python tools/backend_table.py --check           # is what the site shows still so on this CPU?
    python tools/backend_table.py --render          # the tables again, from backends.json alone
    python tools/backend_table.py --out FOLDER      # elsewhere than docs/assets/results/backends

Each trial runs in fresh processes, one for a rank, and is given --timeout seconds. It counts as
supported if it raises nothing and all ranks get the right values. Without GPUs the CUDA columns
say so. nccl takes one GPU for each rank: with one GPU its trials run with one rank.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/assets/results/backends"
JSON_NAME = "backends.json"
DOCS = "https://docs.pytorch.org/docs/stable/distributed.html#backends"
COLUMNS = {"gloo CPU": ("gloo", "cpu"), "gloo CUDA": ("gloo", "cuda"),
           "nccl CUDA": ("nccl", "cuda")}  # fmt: skip
# The table of DOCS: gloo CPU, gloo GPU, mpi CPU, mpi GPU, nccl GPU. "?": if the MPI can.
DOCUMENTED = {
    "send": "yny?y", "recv": "yny?y", "broadcast": "yyy?y", "all_reduce": "yyy?y",
    "reduce": "yyy?y", "all_gather": "yyy?y", "gather": "yyy?y", "scatter": "yyy?y",
    "reduce_scatter": "yynny", "all_to_all": "yyy?y", "barrier": "yny?y",
}  # fmt: skip

# ---------------------------------------------------------------------------------------- trials


@dataclass(frozen=True)
class Rank:
    """Where a trial runs, and tensors of two elements there."""

    rank: int
    n: int
    device: torch.device

    def full(self, value: float, size: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((size,), value, device=self.device).to(dtype)

    def mine(self, size: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.full(self.rank + 2, size, dtype)

    def all(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """What `mine` is on each of the ranks."""
        return [self.full(rank + 2, 2, dtype) for rank in range(self.n)]

    def empty(self) -> list[Tensor]:
        return [self.full(0) for _ in range(self.n)]


# got and expected of this rank; a trial without any has only to come to its end
Pairs = list[tuple[object, object]]
Trial = Callable[[Rank], Pairs]


def send_recv(r: Rank) -> Pairs:
    if r.rank == 0:
        dist.send(r.full(7), 1)
        return []
    dist.recv(got := r.full(0), 0)
    return [(got, r.full(7))]


def recv_any(r: Rank) -> Pairs:
    if r.rank == 0:
        dist.send(r.full(7), 1)
        return []
    source = dist.recv(got := r.full(0))
    return [(got, r.full(7)), (source, 0)]


def send_tags(r: Rank) -> Pairs:
    """Received in the other order than sent: only the tags tell which is which."""
    values = {5: r.full(5), 6: r.full(6)}
    if r.rank == 0:
        works = [dist.isend(values[tag], 1, tag=tag) for tag in (5, 6)]
        return [(work.wait(), True) for work in works]
    got = {tag: r.full(0) for tag in (6, 5)}
    for tag, tensor in got.items():
        dist.recv(tensor, 0, tag=tag)
    return [(got[tag], values[tag]) for tag in got]


def isend_irecv(r: Rank) -> Pairs:
    got = r.full(0)
    works = [dist.irecv(got, 1 - r.rank), dist.isend(r.mine(), 1 - r.rank)]
    for work in works if r.rank else works[::-1]:
        work.wait()
    return [(got, r.full(3 - r.rank)), *((work.is_completed(), True) for work in works)]


def batch_isend_irecv(r: Rank) -> Pairs:
    got, mine = r.full(0), r.mine()
    to, source = (r.rank + 1) % r.n, (r.rank - 1) % r.n
    ops = [dist.P2POp(dist.isend, mine, to), dist.P2POp(dist.irecv, got, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [(got, r.full(source + 2))]


def broadcast(r: Rank, dtype: torch.dtype = torch.float32) -> Pairs:
    dist.broadcast(got := r.mine(dtype=dtype), src=0)
    return [(got, r.full(2, dtype=dtype))]


def gather(r: Rank) -> Pairs:
    got = r.empty() if r.rank == 0 else None
    dist.gather(r.mine(), got, dst=0)
    return [(got, r.all())] if r.rank == 0 else []


def gather_into_tensor(r: Rank) -> Pairs:
    got = r.full(0, 2 * r.n) if r.rank == 0 else None
    dist.gather_into_tensor(r.mine(), got, dst=0)
    return [(got, torch.cat(r.all()))] if r.rank == 0 else []


def all_gather(r: Rank) -> Pairs:
    dist.all_gather(got := r.empty(), r.mine())
    return [(got, r.all())]


def all_gather_uneven(r: Rank) -> Pairs:
    expected = [r.full(rank, rank + 1) for rank in range(r.n)]
    got = [torch.zeros_like(tensor) for tensor in expected]
    dist.all_gather(got, expected[r.rank].clone())
    return [(got, expected)]


def all_gather_into_tensor(r: Rank, dtype: torch.dtype = torch.float32) -> Pairs:
    dist.all_gather_into_tensor(got := r.full(0, 2 * r.n, dtype), r.mine(dtype=dtype))
    return [(got, torch.cat(r.all(dtype)))]


def all_gather_stacked(r: Rank) -> Pairs:
    dist.all_gather_into_tensor(got := r.full(0, 2 * r.n).view(r.n, 2), r.mine())
    return [(got, torch.stack(r.all()))]


def scatter(r: Rank) -> Pairs:
    dist.scatter(got := r.full(0), r.all() if r.rank == 0 else None, src=0)
    return [(got, r.mine())]


def reduce_scatter(r: Rank) -> Pairs:
    dist.reduce_scatter(got := r.full(0), [r.mine() for _ in range(r.n)])
    return [(got, sum(r.all()))]


def reduce_scatter_stacked(r: Rank) -> Pairs:
    dist.reduce_scatter_tensor(got := r.full(0), r.mine(2 * r.n).view(r.n, 2))
    return [(got, sum(r.all()))]


def all_to_all(r: Rank) -> Pairs:
    dist.all_to_all(got := r.empty(), [r.full(10 * r.rank + to) for to in range(r.n)])
    return [(got, [r.full(10 * source + r.rank) for source in range(r.n)])]


def all_to_all_single(r: Rank) -> Pairs:
    parts = [r.full(10 * r.rank + to) for to in range(r.n)]
    dist.all_to_all_single(got := r.full(0, 2 * r.n), torch.cat(parts))
    return [(got, torch.cat([r.full(10 * source + r.rank) for source in range(r.n)]))]


def all_to_all_uneven(r: Rank) -> Pairs:
    """Rank t gets t + 1 elements of each rank."""
    sizes, mine = [to + 1 for to in range(r.n)], r.rank + 1
    parts = [r.full(10 * r.rank + to, size) for to, size in enumerate(sizes)]
    got = r.full(0, mine * r.n)
    dist.all_to_all_single(got, torch.cat(parts), [mine] * r.n, sizes)
    return [(got, torch.cat([r.full(10 * source + r.rank, mine) for source in range(r.n)]))]


def barrier(r: Rank) -> Pairs:
    dist.barrier()
    return []


def monitored_barrier(r: Rank) -> Pairs:
    dist.monitored_barrier(timeout=timedelta(seconds=10))
    return []


def asynchronous(r: Rank) -> Pairs:
    work = dist.all_reduce(got := r.mine(), async_op=True)
    work.wait()
    return [(got, sum(r.all())), (work.is_completed(), True)]


def with_future(r: Rank) -> Pairs:
    future = dist.all_reduce(r.mine(), async_op=True).get_future()
    return [(future.then(lambda f: f.value()[0] / r.n).wait(), sum(r.all()) / r.n)]


def objects_of(r: Rank) -> list[object]:
    return [{"rank": rank, "text": "x" * rank} for rank in range(r.n)]


def broadcast_object_list(r: Rank) -> Pairs:
    got = ["a", {"b": 2}] if r.rank == 0 else [None, None]
    dist.broadcast_object_list(got, src=0)
    return [(got, ["a", {"b": 2}])]


def all_gather_object(r: Rank) -> Pairs:
    dist.all_gather_object(got := [None] * r.n, objects_of(r)[r.rank])
    return [(got, objects_of(r))]


def gather_object(r: Rank) -> Pairs:
    got = [None] * r.n if r.rank == 0 else None
    dist.gather_object(objects_of(r)[r.rank], got, dst=0)
    return [(got, objects_of(r) if r.rank == 0 else None)]


def scatter_object_list(r: Rank) -> Pairs:
    dist.scatter_object_list(got := [None], objects_of(r) if r.rank == 0 else None, src=0)
    return [(got, [objects_of(r)[r.rank]])]


def send_object_list(r: Rank) -> Pairs:
    got = ["a", 1] if r.rank == 0 else [None, None]
    (dist.send_object_list if r.rank == 0 else dist.recv_object_list)(got, 1 - r.rank)
    return [(got, ["a", 1])]


BITS = ("BAND", "BOR", "BXOR")
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *BITS, "PREMUL_SUM")
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter_tensor")


def expected_of(op: str, values: list[Tensor]) -> Tensor:
    """On the CPU; what is bitwise there of float32 is that of its bits."""
    stack, dtype = torch.stack(values).cpu(), values[0].dtype
    if op in BITS:
        by_bits = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
        bits = stack.view(torch.int32)
        return functools.reduce(by_bits[op], bits).view(dtype)
    by_name = {"SUM": torch.sum, "PRODUCT": torch.prod, "MIN": torch.amin, "MAX": torch.amax,
               "AVG": lambda x, dim: x.sum(dim) / len(x),
               "PREMUL_SUM": lambda x, dim: x.sum(dim) / 2}  # fmt: skip
    return by_name[op](stack, dim=0).to(dtype)


def reduction(function: str, op: str, dtype: torch.dtype | None = None) -> Trial:
    """A function with an operation; bitwise ones are for whole numbers."""
    dtype = dtype or (torch.int32 if op in BITS else torch.float32)

    def trial(r: Rank) -> Pairs:
        reduce_op = getattr(dist.ReduceOp, op)
        if op == "PREMUL_SUM":
            reduce_op = dist.ReduceOp.PREMUL_SUM(0.5)
        got, expected = r.mine(dtype=dtype), expected_of(op, r.all(dtype)).to(r.device)
        if function == "all_reduce":
            dist.all_reduce(got, reduce_op)
        elif function == "reduce":
            dist.reduce(got, dst=0, op=reduce_op)
            if r.rank > 0:  # what is left there is not defined
                return []
        else:
            dist.reduce_scatter_tensor(got, r.mine(2 * r.n, dtype), reduce_op)
        return [(got, expected)]

    return trial


DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "int64", "int32",
    "int16", "int8", "uint8", "bool",
)  # fmt: skip


def of_dtype(function: str, name: str) -> Trial:
    dtype = getattr(torch, name)

    def trial(r: Rank) -> Pairs:
        if function == "broadcast":
            return broadcast(r, dtype)
        if function == "all_gather_into_tensor":
            return all_gather_into_tensor(r, dtype)
        dist.all_reduce(got := r.full(1, dtype=dtype))
        return [(got, r.full(True if dtype == torch.bool else r.n, dtype=dtype))]

    return trial


PLAIN: dict[str, Trial] = {
    "send, recv": send_recv, "recv from any rank": recv_any, "send with tag": send_tags,
    "isend, irecv": isend_irecv, "batch_isend_irecv": batch_isend_irecv, "broadcast": broadcast,
    "reduce": reduction("reduce", "SUM"), "all_reduce": reduction("all_reduce", "SUM"),
    "all_reduce, async_op": asynchronous, "get_future().then": with_future, "gather": gather,
    "gather_into_tensor": gather_into_tensor, "all_gather": all_gather,
    "all_gather, unequal sizes": all_gather_uneven,
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_gather_into_tensor, stacked": all_gather_stacked,
    "scatter": scatter, "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduction("reduce_scatter_tensor", "SUM"),
    "reduce_scatter_tensor, stacked": reduce_scatter_stacked, "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single, "all_to_all_single, unequal": all_to_all_uneven,
    "barrier": barrier, "monitored_barrier": monitored_barrier,
    "broadcast_object_list": broadcast_object_list, "all_gather_object": all_gather_object,
    "gather_object": gather_object, "scatter_object_list": scatter_object_list,
    "send_object_list": send_object_list,
}  # fmt: skip
PEERS = ("send, recv", "recv from any rank", "send with tag", "isend, irecv", "send_object_list")
OP_ROWS = (*OPS, *(f"{op} of float32" for op in BITS), "AVG of int32")
MOVES = ("all_reduce", "broadcast", "all_gather_into_tensor")


def op_trial(function: str, row: str) -> Trial:
    op, _, dtype = row.partition(" of ")
    return reduction(function, op, getattr(torch, dtype) if dtype else None)


# "part/row/function" -> trial
TRIALS: dict[str, Trial] = {f"functions/{name}": trial for name, trial in PLAIN.items()}
TRIALS |= {f"ops/{row}/{f}": op_trial(f, row) for row in OP_ROWS for f in REDUCTIONS}
TRIALS |= {f"dtypes/{name}/{f}": of_dtype(f, name) for name in DTYPES for f in MOVES}


# ---------------------------------------------------------------------------------------- running


def same(got: object, expected: object) -> bool:
    if isinstance(expected, Tensor):
        return (
            isinstance(got, Tensor) and got.dtype == expected.dtype and torch.equal(got, expected)
        )
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(same, got, expected))
    return got == expected


def one_line(error: BaseException) -> str:
    """Type and message, without where gloo was built and without addresses."""
    text = re.sub(
        r"\[rank\d+\]:|\[[^\]]*\.(cc|h|cpp):\d+\] ", "", str(error).strip().split("\n")[0]
    )
    text = re.sub(r"\[?[\da-f:.]+\]?:\d{2,5}\b", "ADDRESS", text)
    return f"{type(error).__name__}: {text[:150]}".replace("|", "/")


def one_rank(trial: Trial, column: str, r: Rank, folder: str, limit: float, pipe: object) -> None:
    """One process of a trial; says when it had which outcome."""
    torch.set_num_threads(1)
    try:
        options = {"rank": r.rank, "world_size": r.n, "timeout": timedelta(seconds=limit)}
        if r.device.type == "cuda":
            torch.cuda.set_device(r.device)
        dist.init_process_group(
            COLUMNS[column][0], store=dist.FileStore(f"{folder}/store", r.n), **options
        )
        pairs = trial(r)
        if r.device.type == "cuda":
            torch.cuda.synchronize()
        wrong = [got for got, expected in pairs if not same(got, expected)]
        said = {"state": "wrong", "says": f"{wrong[0]}"} if wrong else {"state": "yes"}
    except Exception as error:
        said = {"state": "no", "says": one_line(error)}
    pipe.send((time.monotonic(), said))
    pipe.recv()  # until all have said something: a peer may still need us
    os._exit(0)


def ranks_for(column: str) -> int:
    """How many ranks its trials have; 0: they cannot run here."""
    backend, device = COLUMNS[column]
    gpus = torch.cuda.device_count()
    if device == "cuda" and (not gpus or not dist.is_backend_available(backend)):
        return 0
    return min(2, gpus) if backend == "nccl" else 2


def attempt(name: str, column: str, limit: float) -> dict[str, str]:
    """One trial: {"state": yes, no, wrong, crash, timeout or skipped, "says": why}."""
    n, device = ranks_for(column), COLUMNS[column][1]
    if n == 1 and name.removeprefix("functions/") in PEERS:
        return {"state": "skipped", "says": "needs two GPUs"}
    context = multiprocessing.get_context("fork")  # torch is imported once, used in no parent
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(n):
            number = rank % max(1, torch.cuda.device_count())
            r = Rank(
                rank, n, torch.device(device, number) if device == "cuda" else torch.device(device)
            )
            ours, theirs = context.Pipe()
            words = (TRIALS[name], column, r, folder, limit / 2, theirs)
            processes.append(context.Process(target=one_rank, args=words))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        outcomes, deadline = [], time.monotonic() + limit
        for pipe, process in zip(pipes, processes, strict=True):
            try:
                if not pipe.poll(max(0, deadline - time.monotonic())):
                    outcomes.append((deadline, {"state": "timeout", "says": f"{limit:g} s"}))
                    continue
                outcomes.append(pipe.recv())
            except EOFError:
                process.join()
                said = {"state": "crash", "says": f"exit status {process.exitcode}"}
                outcomes.append((time.monotonic(), said))
        for process in processes:
            process.kill()
            process.join()
    # What came first is the cause: a rank that waits for one that failed gives up later.
    failed = [outcome for outcome in outcomes if outcome[1]["state"] != "yes"]
    first = min((at for at, _ in failed), default=0.0)
    return next((said for at, said in failed if at < first + 1), {"state": "yes"})


def machine() -> dict:
    """Of which kind this machine is; nothing that tells it from others of its kind."""
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return {"cpus": os.cpu_count(), "kind": platform.machine(), "gpus": gpus}


def run_all(names: list[str], columns: list[str], limit: float) -> dict:
    """The results of these trials, as they are written to backends.json."""
    result = {"format": 1, "torch": torch.__version__, "machine": {}, "nccl": None}
    if dist.is_nccl_available():
        result["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    result["ranks"] = {column: ranks_for(column) for column in COLUMNS}
    result["documented"] = DOCUMENTED
    result["trials"] = {name: {} for name in names}
    for name in names:
        for column in columns:
            if ranks_for(column):
                said = result["trials"][name][column] = attempt(name, column, limit)
                print(
                    f"{name}, {column}: {said['state']} {said.get('says', '')}".rstrip(), flush=True
                )
    result["machine"] = machine()  # last: it wakes CUDA up, which no forked process survives
    return result


# ---------------------------------------------------------------------------------------- tables

WORDS = {
    "en": {
        "head": "Tried with torch {torch} on {cpus} {kind} CPUs{gpus}. {ranks}. "
        "✓: no error, and the right values on all ranks. ✘: an error, its message below.",
        "ran": "{column}: {n} ranks", "and": " and {gpus}", "stop": "; ",
        "not run": "not run", "function": "function",
        "op": "`ReduceOp`", "dtype": "dtype", "wrong": "wrong values", "crash": "crash",
        "timeout": "no end", "skipped": "needs two GPUs", "comma": ", ", "colon": ": ",
        "documented": "As documented, not tried here ([source]({link})); `?` is for \"if the MPI "
        "that PyTorch was built with can\".",
        "ucc": "ucc has no column there. [`init_process_group`]({init}) calls it experimental; "
        "like mpi it is not in the packages of PyTorch, only in what you build yourself.",
    },
    "zh": {
        "head": "用 torch {torch} 在 {cpus} 个 {kind} CPU{gpus} 上试的。{ranks}。"
        "✓：没有报错，各 rank 的数值都对。✘：报错，信息在表下。",
        "ran": "{column}：{n} 个 rank", "and": "和 {gpus}", "stop": "；",
        "not run": "未运行", "function": "函数",
        "op": "`ReduceOp`", "dtype": "类型", "wrong": "数值不对", "crash": "崩溃",
        "timeout": "没有结束", "skipped": "需要两张显卡", "comma": "，", "colon": "：",
        "documented": "按官方文档，这里没有试（[出处]({link})）；"
        "`?` 表示取决于编译 PyTorch 时用的 MPI。",
        "ucc": "那张表里没有 ucc。[`init_process_group`]({init}) 的文档说它是实验性的；"
        "和 mpi 一样，安装包里没有它，要自己编译。",
    },
}  # fmt: skip


def ranks_line(result: dict, words: dict[str, str]) -> str:
    columns = []
    for column, n in result["ranks"].items():
        said = words["ran"].format(column=column, n=n)
        columns.append(said if n else f"{column}{words['colon']}{words['not run']}")
    return words["stop"].join(columns)


def table(part: str, result: dict, words: dict[str, str]) -> list[str]:
    """The rows of a part. Where its functions agree on a row a cell has one mark for all."""
    rows: dict[str, dict[str, dict]] = {}
    for name, columns in result["trials"].items():
        if name.startswith(f"{part}/"):
            row, _, function = name.removeprefix(f"{part}/").partition("/")
            rows.setdefault(row, {})[function] = columns
    messages: list[str] = []

    def mark(said: dict[str, str] | None) -> str:
        if said is None:
            return words["not run"]
        if said["state"] == "yes":
            return "✓"
        if said["state"] != "no":
            return words[said["state"]]
        if said["says"] not in messages:
            messages.append(said["says"])
        return f"✘ {messages.index(said['says']) + 1}"

    first = words["function" if part == "functions" else part.removesuffix("s")]
    lines = [f"| {first} | {' | '.join(result['ranks'])} |", "| --- " * 4 + "|"]
    for row, by_function in rows.items():
        cells = []
        for column in result["ranks"]:
            marks = {f: mark(columns.get(column)) for f, columns in by_function.items()}
            each = [f"`{f}` {text}" for f, text in marks.items()]
            same_mark = len(set(marks.values())) == 1
            cells.append(next(iter(marks.values())) if same_mark else words["comma"].join(each))
        lines.append(f"| `{row}` | {' | '.join(cells)} |")
    notes = [f"{n}. `{message}`" for n, message in enumerate(messages, 1)]
    return [*lines, "", *notes, ""] if notes else [*lines, ""]


def documented(result: dict, words: dict[str, str]) -> list[str]:
    signs = {"y": "✓", "n": "✘", "?": "?"}
    lines = ["| | gloo CPU | gloo GPU | mpi CPU | mpi GPU | nccl GPU |", "| --- " * 6 + "|"]
    for name, marks in result["documented"].items():
        lines.append(f"| `{name}` | {' | '.join(signs[mark] for mark in marks)} |")
    init = DOCS.replace("#backends", "#torch.distributed.init_process_group")
    before = words["documented"].format(link=DOCS)
    return [before, "", *lines, "", words["ucc"].format(init=init), ""]


def fragment(result: dict, language: str) -> str:
    """The tables as Markdown, each after a comment with its name."""
    words = WORDS[language]
    gpus = result["machine"]["gpus"]
    kinds = words["comma"].join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    facts = result["machine"] | {"gpus": words["and"].format(gpus=kinds) if gpus else ""}
    facts |= {"torch": result["torch"], "ranks": ranks_line(result, words)}
    lines = ["<!-- functions -->", words["head"].format(**facts), ""]
    lines += table("functions", result, words)
    for part in ("ops", "dtypes"):
        lines += [f"<!-- {part} -->", *table(part, result, words)]
    lines += ["<!-- documented -->", *documented(result, words)]
    return "\n".join(lines).rstrip() + "\n"


# ---------------------------------------------------------------------------------------- command


def refuse_if(mistake: object, line: str) -> None:
    """If there is a mistake, end with one line, status 1 and no traceback."""
    if mistake:
        raise SystemExit(f"backend_table: error: {line}")


def load(folder: Path) -> dict:
    """The backends.json of a folder."""
    path = folder / JSON_NAME
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        refuse_if(result["format"] != 1, f"{path} has another format")
        fragment(result, "en")
    except OSError as error:
        refuse_if(True, f"cannot read {path}: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        refuse_if(True, f"{path} is no {JSON_NAME} of this tool: {error!r:.100}")
    return result


def write(result: dict, folder: Path, texts: tuple[str, ...]) -> None:
    """Each file is the old one or the new one, whole."""
    made = {f"table.{language}.md": fragment(result, language) for language in WORDS}
    made[JSON_NAME] = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in texts:
            temporary = folder / f"{name}.tmp"
            temporary.write_text(made[name], encoding="utf-8")
            os.replace(temporary, folder / name)
    except OSError as error:
        refuse_if(True, f"cannot write to {folder}: {error.strerror}")
    print(f"{', '.join(texts)} are in {folder}/")


def differences(fresh: dict, shown: dict) -> list[str]:
    """The trials that ran and do not end as the shown ones."""
    found = []
    for name, columns in fresh["trials"].items():
        for column, said in columns.items():
            before = shown["trials"].get(name, {}).get(column, {"state": "not run"})
            if said["state"] != before["state"]:
                found.append(f"{name} ({column}): {before['state']} became {said['state']}")
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="trials whose name has a TEXT")
    parser.add_argument(
        "--check", action="store_true", help="compare the CPU's column, write nothing"
    )
    parser.add_argument("--render", action="store_true", help="tables from the JSON, try nothing")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--timeout", type=float, default=20, metavar="SECONDS", help="for a trial")
    args = parser.parse_args(argv)
    refuse_if(args.timeout <= 0, "--timeout must be above zero")
    refuse_if(
        args.render and (args.check or args.only), "--render tries nothing: leave the others out"
    )
    shown = load(args.out) if args.render or args.check else {}
    if args.render:
        return write(shown, args.out, tuple(f"table.{language}.md" for language in WORDS))
    names = [n for n in TRIALS if not args.only or any(text in n for text in args.only)]
    refuse_if(not names, f"no trial has {' or '.join(args.only or [])} in its name")
    columns = ["gloo CPU"] if args.check else list(COLUMNS)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    result = run_all(names, columns, args.timeout)
    if args.check:
        found = differences(result, shown)
        refuse_if(found, f"torch {result['torch']}, shown {shown['torch']}: {'; '.join(found)}")
        print(f"{len(names)} trials end as shown")
    elif not args.only:
        write(result, args.out, (JSON_NAME, *(f"table.{language}.md" for language in WORDS)))


if __name__ == "__main__":
    main()
