"""Carries a change of chapter 02, not yet committed, into the other chapters and multilabel.py.

    make carry

Each file, without its docstring, is merged with what `git diff 02_distributed/main.py` shows. Where
a file differs from 02 at that place the merge leaves a conflict, to be solved by hand. A merge
without one may still be wrong, so read each file as a diff against 02 afterwards; lines that 01 and
05 cannot have, because of what they name, are listed.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HUB = "02_distributed/main.py"
# 01 is one process. In 05 Horovod stands for torch.distributed, and the model is not wrapped.
CANNOT_HAVE = {
    "01_dataparallel": r"\b(dist\.|ranks?\b|world_size|no_sync|DistributedDataParallel)",
    "05_horovod": r"\b(dist\.|no_sync|DistributedDataParallel|DDP\b)",
}


def git(*words: object) -> subprocess.CompletedProcess:
    command = ["git", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def split(text: str) -> tuple[str, str]:
    """The docstring of a file, and the rest."""
    lines = text.splitlines(keepends=True)
    end = ast.parse(text).body[0].end_lineno
    return "".join(lines[:end]), "".join(lines[end:])


def carry(path: Path, old: Path, new: Path) -> list[str]:
    """Merge the change into a file. Returns what is to be looked at."""
    docstring, code = split(path.read_text())
    merged = new.with_name("merged.py")
    merged.write_text(code)
    names = ["-L", path.parent.name, "-L", "02 before", "-L", "02 now"]
    done = git("merge-file", *names, merged, old, new)
    if not 0 <= done.returncode < 128:
        sys.exit(f"error: git merge-file {path}: {done.stderr.strip()}")
    path.write_text(docstring + merged.read_text())

    found, inside = [], False
    before, cannot_have = (docstring + code).splitlines(), CANNOT_HAVE.get(path.parent.name, "$.")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        place = f"{path.relative_to(ROOT)}:{number}"
        if line.startswith("<<<<<<< "):
            inside = True
            found.append(f"{place}: conflict")
        elif line.startswith(">>>>>>> "):
            inside = False
        elif not inside and line not in before and re.search(cannot_have, line):
            found.append(f"{place}: does it belong here? {line.strip()}")
    return found


def main() -> None:
    chapters = sorted(path for path in ROOT.glob("0[1-8]_*/main.py") if HUB not in str(path))
    files = [*chapters, ROOT / "docs/examples/own/multilabel.py"]
    begun = [path for path in files if "\n<<<<<<< " in path.read_text()]
    if begun:
        sys.exit(f"error: solve the conflicts in {begun[0].relative_to(ROOT)} first")
    if not git("diff", "HEAD", "--", HUB).stdout:
        sys.exit(f"error: {HUB} has no change that is not committed")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old.py"), Path(folder, "new.py")
        old.write_text(split(git("show", f"HEAD:{HUB}").stdout)[1])
        new.write_text(split((ROOT / HUB).read_text())[1])
        for path in files:
            found[path] = carry(path, old, new)
    # Not before all are merged: `make carry | head` ends what goes on printing.
    for path, own in found.items():
        conflicts = sum(text.endswith(": conflict") for text in own)
        print(f"{path.relative_to(ROOT)}: {conflicts} conflicts")
    print("", *chain(*found.values()), sep="\n")
    print("read each as a diff: git diff --no-index 02_distributed FOLDER", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # of head: what it left unread is there in the files, as git shows
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
