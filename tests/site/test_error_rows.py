"""The messages that the chapters' pages explain are messages that somebody prints: the chapter, or
a library that is here to be looked at."""

import ast
import importlib.util
import mmap
import re
import shutil
from pathlib import Path

import pytest
from harness import CHAPTERS, ROOT

# What another program prints: its words, by the file that has them. The last row is not looked up:
# Python's change with its version, and of Apex 25.05, CUDA, C and PyPI's apex there is no copy.
OTHERS = {
    "torch/amp/grad_scaler.py": (
        "Attempting to unscale FP16 gradients.",
        "unscale_() has already been called on this optimizer since the last update().",
        "No inf checks were recorded for this optimizer.",
        "is enabled, but CUDA is not available.  Disabling.",
    ),
    "torch/cuda/amp/grad_scaler.py": ("torch.cuda.amp.GradScaler(args...)` is deprecated.",),
    "torch/nn/modules/module.py": ("Unexpected key(s) in state_dict: ", "object has no attribute"),
    "torch/nn/parallel/_functions.py": ("along dimension 0, but all ",),
    "torch/nn/parallel/data_parallel.py": (
        "module must have its parameters and buffers ",
        "There is an imbalance between your GPUs.",
    ),
    "torch/optim/lr_scheduler.py": ("Detected call of `lr_scheduler.step()` before",),
    "torchvision/datasets/folder.py": ("Couldn't find any class folder in",),
    "torch/lib/libtorch_cpu.so": (
        "Expected to have finished reduction in the prior iteration before starting a new one.",
        "The server socket has failed to listen on any local network address.",
        " cannot be retrieved (gai error: ",
        "rank < size",
        "Unable to find address for: ",
        "recv operation to complete",
        "send operation to complete",
        "selected index k out of range",
        "view size is not compatible with input tensor's size and stride",
    ),
    "horovod/torch/mpi_ops.py": ("required to be contiguous.", "is not supported."),
    "horovod/torch/optimizer.py": (
        "Gradients were computed more than ",
        "optimizer.zero_grad() was called after loss.backward() ",
    ),
    "horovod/torch/sync_batch_norm.py": ("SyncBatchNorm expected input tensor to be on GPU",),
    "srun": ("interrupt (one more within ",),
    "slurmstepd": (" DUE TO TIME LIMIT ***",),
    "": (
        "unrecognized arguments: ",
        "An attempt has been made to start a new process before",
        "Can't pickle local object",
        "UnencryptedCookieSessionFactoryConfig",
        "cannot import name 'amp' from 'apex'",
        "Found param conv1.weight with type",
        "#error C++17 or later compatible compiler is required to use ATen.",
        "Horovod has been shut down. This was caused by an exception on one of the ranks",
        "CUDA error: invalid device ordinal",
        "Address already in use",
    ),
}


def listed(page: str) -> list[str]:
    """The messages of a page: its headings in backticks and first columns, below "errors"."""
    below = re.split(r'(?m)^## .*<a id="errors"></a>$', page)[1]
    section = re.sub(r"(?ms)^```.*?^```", "", re.split("(?m)^## ", below)[0])
    found = re.findall(r"(?m)^(?:### |\| )(`+)(.+?)\1(?: \|| <a)", section)
    return [re.sub(r"^(\w*Error|error|\w+Warning): ", "", said.strip()) for _, said in found]


def printed(code: str) -> list[str]:
    """What a program may say, as patterns: of its strings, those with two words. `{…}` is any."""
    whole = []
    for node in ast.walk(ast.parse(code)):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        fixed = [p.value if isinstance(p, ast.Constant) else None for p in parts]
        if any(isinstance(text, str) for text in fixed):
            known = " ".join(text for text in fixed if isinstance(text, str))
            if len(re.findall("[a-z]{2,}", known)) > 1:
                whole.append("".join(".+" if t is None else re.escape(str(t)) for t in fixed))
    return whole


def says(patterns: list[str], message: str) -> bool:
    """Whether a program with these strings prints it; `…` in it stands for anything."""
    shown = ".*".join(map(re.escape, message.split("…")))
    return any(
        re.fullmatch(pattern, message, re.S)
        or re.fullmatch(shown, re.sub(r"\\(.)", r"\1", pattern))
        for pattern in patterns
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_messages_are_printed(chapter: str) -> None:
    """By the chapter, or by another program: what is in no list is a message of yesterday."""
    page = (ROOT / f"docs/en/chapters/{chapter}.md").read_text("utf-8")
    patterns = printed((ROOT / chapter / "main.py").read_text("utf-8"))
    other = [words for those in OTHERS.values() for words in those]
    assert len(listed(page)) > 3
    unknown = [
        message
        for message in listed(page)
        if not says(patterns, message) and not any(words in message for words in other)
    ]
    assert unknown == []
    assert listed((ROOT / f"docs/zh/chapters/{chapter}.md").read_text("utf-8")) == listed(page)


def home(name: str) -> Path | None:
    """A file of a library, or a program; None if it is not on this machine."""
    library, _, rest = name.partition("/")
    if not rest:
        found = shutil.which(name, path="/usr/bin:/usr/sbin")
        return Path(found) if found else None
    spec = importlib.util.find_spec(library)
    return Path(spec.origin).parent / rest if spec and spec.origin else None


@pytest.mark.parametrize("name", [name for name in OTHERS if name])
def test_others_have_these_words(name: str) -> None:
    if (path := home(name)) is None:
        pytest.skip(f"needs {name}: make test sets it up")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        assert [words for words in OTHERS[name] if held.find(words.encode()) < 0] == []
