"""Which lines only a machine with GPUs runs, and a look at which of them a process runs.

A line is for GPUs if a machine without one cannot reach it, and that is read off the source: what
programs ask about GPUs has a known answer there (WITHOUT_GPUS), so have the names that are given
to such answers, and so it is known which way an `if` goes. Statements count, and in expressions the
arms of `a if b else c`, what follows `and` or `or`, and what a comprehension does with each GPU.
"""

import ast
import copy
import os
import re
import sys
import threading
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

FOLDER = "PRETENDED_LINES"  # the variable that names where watched processes write to
ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = (
    "0[1-7]_*/main.py", "0[1-7]_*/minimal.py", "docs/examples/convert/*.py",
    "docs/examples/handbook/*.py", "tools/gpu_*.py", "tools/benchmark/*.py", "doctor/**/*.py",
)  # fmt: skip
# Files, expressions in them as ast.unparse writes them, and their values where there is no GPU.
WITHOUT_GPUS = (
    ("*", r"torch\.(cuda|accelerator)\.(is_available|is_initialized)\(\)", False),
    ("*", r"torch\.(cuda|accelerator)\.device_count\(\)", 0),
    ("*", r"(.*\.)?device\.type|devices\[0\]\.type", "cpu"),
    ("*", r"backend == 'nccl'", False),
    ("01_*", r"pick_gpus\(args\)", ()),
    ("01_*", r"max\(chosen\) >= count", True),
    ("*/ddp_two_devices.py", r"torch\.cuda\.device_count\(\) < 2 \* count", True),
    ("tools/gpu_check.py", r"(box|self)\.gpus", 0),
    ("tools/gpu_check.py", r"(box|self)\.device", "cpu"),
    ("tools/gpu_check.py", r"found\['gpus'\]", ()),
    ("tools/gpu_probes.py", "device", "cpu"),
)
UNKNOWN = object()
PLAIN = (bool, int, str, tuple, range)
# They have no code of their own: their bodies have, or the function around them.
NO_CODE = (ast.FunctionDef, ast.ClassDef, ast.Try, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class Line:
    """A statement, if it is compound without its body, or a part of an expression."""

    path: str
    name: str  # "function: its code"
    start: tuple[int, int]
    end: tuple[int, int]


class WithoutGPUs(ast.NodeTransformer):
    """Puts what is known in place of what is asked."""

    def __init__(self, path: str) -> None:
        self.facts = [row[1:] for row in WITHOUT_GPUS if fnmatch(path, row[0])]

    def knows(self, node: ast.AST) -> list:
        """The answer to what a node asks, if it asks that; as a list of one, or none."""
        text = ast.unparse(node) if isinstance(node, ast.expr) else ""
        return [answer for pattern, answer in self.facts if re.fullmatch(pattern, text)][:1]

    def visit(self, node: ast.AST) -> ast.AST:
        for answer in self.knows(node):
            return ast.copy_location(ast.Constant(answer), node)
        return self.generic_visit(node)


class Reading:
    """A file, read as a machine without GPUs runs it: `lines` are those that it rules out. It is
    read again until no more are: a reading knows which names the one before has seen assigned,
    and which functions it has seen used, where no line was ruled out."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source, self.rows = path, source, source.splitlines()
        self.tree, self.facts = ast.parse(source), WithoutGPUs(path)
        self.assigned, self.used, self.lines, before = {}, {}, [], None
        while (self.lines, self.assigned) != before:
            before = self.lines, self.assigned
            self.known, self.uses = self.assigned, self.used
            self.assigned, self.used, self.lines = {}, {}, []
            self.block(self.tree.body, (), out=False)

    def names(self, scope: tuple) -> dict[str, object]:
        """The names whose values are known inside a function."""
        names = {}
        for depth in range(len(scope) + 1):
            for name, values in self.known.get(scope[:depth], {}).items():
                names[name] = values[0] if all(v == values[0] for v in values) else UNKNOWN
        return {name: value for name, value in names.items() if value is not UNKNOWN}

    def value(self, node: ast.expr, scope: tuple) -> object:
        """What an expression is without GPUs, or UNKNOWN."""
        if isinstance(node, ast.BoolOp):
            # One part may decide, whatever the others are.
            decides = isinstance(node.op, ast.Or)
            answers = [self.answer(part, scope) for part in node.values]
            return decides if decides in answers else UNKNOWN if None in answers else not decides
        node = ast.Expression(self.facts.visit(copy.deepcopy(node)))
        safe = {"bool": bool, "len": len, "range": range}
        try:
            value = eval(
                compile(node, self.path, "eval"), {"__builtins__": safe}, self.names(scope)
            )
        except Exception:  # it asks for what is not known
            return UNKNOWN
        return value if isinstance(value, PLAIN) else UNKNOWN

    def answer(self, node: ast.expr, scope: tuple) -> bool | None:
        """Which way an `if` of this goes; None if that is not known."""
        value = self.value(node, scope)
        return None if value is UNKNOWN else bool(value)

    def asks(self, node: ast.expr | None, scope: tuple) -> bool:
        """Whether an expression asks about GPUs, itself or by a name."""
        nodes = list(ast.walk(node)) if node else []
        names = {part.id for part in nodes if isinstance(part, ast.Name)}
        return any(map(self.facts.knows, nodes)) or bool(names & self.names(scope).keys())

    def add(self, node: ast.stmt | ast.expr, scope: tuple) -> None:
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        text = ast.get_source_segment(self.source, node)
        if body := getattr(node, "body", None) if isinstance(node, ast.stmt) else None:
            end = (body[0].lineno, body[0].col_offset)
            text = "\n".join(self.rows[start[0] - 1 : end[0] - 1])
        text = " ".join(text.split("  #")[0].split())
        name = f"{'.'.join(scope)}: {text}" if scope else text
        self.lines.append(Line(self.path, name, start, end))

    # `out` says of all below: ruled out already, by what is around it or before it.
    def block(self, body: list[ast.stmt], scope: tuple, out: bool) -> bool:
        """Read statements; whether what follows them is ruled out."""
        for statement in body:
            out = self.statement(statement, scope, out) or out
        return out

    def statement(self, node: ast.stmt, scope: tuple, out: bool) -> bool:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if out and not isinstance(node, NO_CODE) and not is_text:
            self.add(node, scope)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = (*scope, node.name)
            self.expression(getattr(node, "args", None), inner, out)
            for part in node.decorator_list:
                self.expression(part, scope, out)
            unused = self.uses.get(node.name) == {True} and not node.name.startswith("__")
            self.block(node.body, inner, out or unused)
            return False
        if isinstance(node, ast.If | ast.While | ast.For):
            asked = node.iter if isinstance(node, ast.For) else node.test
            self.expression(asked, scope, out)
            self.expression(getattr(node, "target", None), scope, out)
            answer = self.answer(asked, scope)
            ends = self.block(node.body, scope, out or answer is False)
            other = out or (isinstance(node, ast.If) and answer is True)
            return self.block(node.orelse, scope, other) and ends
        if isinstance(node, ast.Try):
            for part in (node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody):
                self.block(part, scope, out)
            return False
        if isinstance(node, ast.With):
            for part in node.items:
                self.expression(part, scope, out)
            self.block(node.body, scope, out)
            return False  # it may be a contextlib.suppress
        self.expression(node, scope, out)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return ast.unparse(node.value.func) in ("fail", "sys.exit")
        return isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break)

    def expression(self, node: ast.AST | None, scope: tuple, out: bool) -> None:
        """Read an expression, or a statement that has no body."""
        ruled_out = []
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.used.setdefault(getattr(node, "id", None) or node.attr, set()).add(out)
        elif isinstance(node, ast.Name | ast.arg):
            self.assign(node, None, scope, out)
        elif isinstance(node, ast.Assign | ast.NamedExpr):
            self.assign(getattr(node, "target", None) or node.targets[0], node.value, scope, out)
            return self.expression(node.value, scope, out)
        elif isinstance(node, ast.IfExp):
            arms = {True: [node.orelse], False: [node.body], None: [node.body, node.orelse] * out}
            ruled_out = arms[self.answer(node.test, scope)]
        elif isinstance(node, ast.BoolOp):
            answers = [self.answer(part, scope) for part in node.values]
            decides = isinstance(node.op, ast.Or)
            ruled_out = node.values[[*answers, decides].index(decides) + 1 :]
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            if self.answer(node.generators[0].iter, scope) is False:
                ruled_out = [node.value if isinstance(node, ast.DictComp) else node.elt]
        for part in ruled_out:
            self.add(part, scope)
        for part in ast.iter_child_nodes(node) if node else ():
            self.expression(part, scope, out or part in ruled_out)

    def assign(self, target: ast.AST, value: ast.expr | None, scope: tuple, out: bool) -> None:
        """Keep what names are given, where that is not ruled out."""
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple) else [None] * len(target.elts)
            for part, its in zip(target.elts, values, strict=False):
                self.assign(part, its, scope, out)
        elif isinstance(target, ast.Name | ast.arg) and not out:
            known = self.value(value, scope) if self.asks(value, scope) else UNKNOWN
            name = target.id if isinstance(target, ast.Name) else target.arg
            self.assigned.setdefault(scope, {}).setdefault(name, []).append(known)


@cache
def lines_of(path: str, source: str) -> list[Line]:
    """Those of a file that only a machine with GPUs runs."""
    return Reading(path, source).lines


@cache
def programs() -> dict[str, str]:
    """The files that are looked at, and what is in them."""
    found = sorted({path for pattern in PROGRAMS for path in ROOT.glob(pattern)})
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


# ---- in a program ----
def original(filename: str) -> str | None:
    """The program whose file, or a copy of it to the letter, this is."""
    known = [path for path in programs() if Path(path).name == Path(filename).name]
    try:
        source = Path(filename).read_text() if known else ""
    except (OSError, UnicodeError):
        return None
    return next((path for path in known if programs()[path] == source), None)


def instructions(code: CodeType, lines: list[Line]) -> dict[int, list[int]]:
    """For each instruction of a code object that is part of lines: their numbers."""
    found = {}
    for at, (row, end_row, column, end_column) in enumerate(code.co_positions()):
        if None not in (row, end_row, column, end_column):
            start, end = (row, column), (end_row, end_column)
            inside = [n for n, line in enumerate(lines) if line.start <= start and end <= line.end]
            found |= {2 * at: inside} if inside else {}
    return found


def watch(folder: str) -> None:
    """Have this process, its threads and forks write into a folder which lines they run, each at
    once: a process may be killed."""
    files, codes, ran = {}, {}, set()

    def ran_now(path: str, number: int) -> None:
        if (path, number) not in ran:
            ran.add((path, number))
            program = "/".join(Path(getattr(sys, "argv", ["?"])[0]).parts[-2:])
            file = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(file, f"{path}\t{number}\t{program}\n".encode())
            os.close(file)

    def trace(frame: FrameType, event: str, _: object) -> object:
        code = frame.f_code
        name = code.co_filename
        if name not in files:
            files[name] = original(name)
        if not (path := files[name]):
            return None
        if (path, code) not in codes:
            codes[path, code] = instructions(code, lines_of(path, programs()[path]))
        if event == "call":
            if not codes[path, code]:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            for number in codes[path, code].pop(frame.f_lasti, ()):
                ran_now(path, number)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
