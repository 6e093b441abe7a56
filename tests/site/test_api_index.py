"""The handbook's index of functions: its signatures are torch's, and nothing is left out."""

import ast
import inspect
import re
from importlib import import_module

import pytest
import torch
import torch.distributed as dist
from harness import ROOT

PAGES = [(ROOT / f"docs/{language}/handbook/api.md").read_text() for language in ("zh", "en")]
CELLS = [re.findall(r"^\| (`.*?) \| (.*?) \|", page, re.M) for page in PAGES]  # first two columns
NAMES = [re.findall(r"`([^`(]+)(\([^`]*\))?`", "".join(c for c, _ in rows)) for rows in CELLS]
(SHOWN,) = {re.search(r"torch (\d+\.\d+\.\d+)", page)[1] for page in PAGES}
of_this_torch = torch.__version__.startswith(SHOWN)


def thing(name: str) -> object:
    """What a name of the index stands for."""
    home, _, last = name.rpartition(".")
    try:
        return getattr(import_module(re.sub(r"^dist\b", "torch.distributed", home)), last)
    except ModuleNotFoundError:  # home is a class
        return getattr(thing(home), last)


def signature(what: object) -> str:
    """Names and defaults, as the index writes them."""
    try:
        full = inspect.signature(what)
        bare = [p.replace(annotation=p.empty) for p in full.parameters.values()]
        text = str(full.replace(parameters=bare, return_annotation=full.empty))
    except ValueError:  # made in C++: in the first line of its docstring
        given = ast.parse(f"def {what.__init__.__doc__.splitlines()[0]}: ...").body[0].args
        for argument in given.args:
            argument.annotation = None
        text = f"({ast.unparse(given)})"
    text = re.sub(r"<(\w+\.\w+): .*?>", r"\1", text).replace("RedOpType", "ReduceOp")
    return re.sub(r"^\(self(, )?", "(", text)


@pytest.mark.parametrize("name", [name for name, _ in NAMES[1] if "." in name])
def test_signature(name: str) -> None:
    if of_this_torch or not re.search(rf"`{name}\(.*2\.15", PAGES[1]):  # else maybe not there yet
        what, shown = thing(name), dict(NAMES[1])[name]
        assert not shown or (signature(what) == shown if of_this_torch else callable(what))


def test_nothing_is_left_out() -> None:
    """No function that an example calls."""
    assert NAMES[0] == NAMES[1]
    examples = (ROOT / "docs/examples/handbook").glob("*.py")
    code = "".join(path.read_text() for path in examples)
    called = {n for n in re.findall(r"\bdist\.([a-zA-Z]\w*)\(", code) if hasattr(dist, n)}
    assert len(called) > 40 and {f"dist.{n}" for n in called} <= dict(NAMES[1]).keys()


@pytest.mark.skipif(not of_this_torch, reason=f"the page is of torch {SHOWN}")
def test_arguments_of_init_process_group() -> None:
    real = inspect.signature(dist.init_process_group).parameters.values()
    shown = [[row for row in rows if re.fullmatch("`[a-z_]+`", row[0])] for rows in CELLS]
    assert shown == 2 * [[(f"`{p.name}`", f"`{p.default!r}`") for p in real]]
