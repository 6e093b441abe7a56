"""What the tests of mistakes and faults share: warm calls of a chapter, and what a refusal is."""

import gc
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from unittest import mock

from crew import Crew, call_main
from harness import CHAPTERS, load_chapter
from PIL import Image
from with_tiny_model import tiny_float32

ALONE, HUB, SPAWNS = "01_dataparallel", "02_distributed", "03_multiprocessing"
RANKED = [chapter for chapter in CHAPTERS if chapter != ALONE]


def ranks_of(chapter: str) -> int:
    return 1 if chapter == ALONE else 2


def tiny(chapter: ModuleType) -> AbstractContextManager:
    """The tiny model in place of the chapter's own."""
    return mock.patch.object(chapter, "build_model", tiny_float32)


class Bomb:
    """Unpickled, it makes a file."""

    def __reduce__(self) -> tuple:
        return open, ("exploded", "w")


def call(chapter: str, argv: list[str], cwd: Path, change: Callable = tiny) -> dict:
    """In a crew member: call_main in a folder, as on a machine without GPUs, and with something
    changed: a function of the chapter's module that returns a context."""
    gc.freeze()  # torch itself is never garbage: the collection below takes 0.1 s less
    os.chdir(cwd)  # a crew member goes back before its next case
    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        mock.patch("torch.cuda.device_count", return_value=0),
        # So long does a loader wait for the workers of a failed run: 5 s otherwise.
        mock.patch("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1),
        # torch's record wants the real stderr for it, and warns where there is none.
        mock.patch("faulthandler.enable"),
        # Nothing is fetched that was not asked for, and in a test nothing at all.
        mock.patch("torch.hub.urlopen", side_effect=AssertionError("fetches something")),
        change(load_chapter(chapter)),
    ):
        answer = call_main(chapter, argv)
        gc.collect()  # what a failed run has left, while its loader does not wait long
        return answer


def call_parent(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, but of 03's main, which may not start a process, not of its worker."""
    module = load_chapter(chapter)
    started = AssertionError("started processes")
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(module, "worker", lambda *_: module.main(argv)),
        mock.patch("torch.multiprocessing.spawn", side_effect=started),
    ):
        return call(chapter, argv, cwd)


def runs_well(
    crew: Crew, chapter: str, argv: list, cwd: Path, change: Callable = tiny, ranks: int = 1
) -> None:
    """The run comes to its end on every rank."""
    words = [str(word) for word in argv]
    for answer in crew.run(call, chapter, words, cwd, change, world_size=ranks):
        assert answer["exit"] is None, answer


def one_line(answer: dict) -> str:
    """The line an answer consists of, having checked that it is one and nothing else."""
    line = answer["exit"]
    if line == 2:  # argparse: its usage, then the line
        *usage, line = answer["stderr"].strip().splitlines()
        assert usage[0].startswith("usage: ") and ": error: " in line, answer
    else:  # a text is what Python prints to stderr, with status 1
        assert isinstance(line, str) and line.startswith("error: "), answer
    assert "Traceback" not in answer["stdout"] + answer["stderr"], answer
    assert line.isprintable() and len(line) > 30, answer
    return line


def last_words(answer: dict) -> str:
    """The last line of the traceback that an answer consists of."""
    assert "\nTraceback" in "\n" + answer["exit"], answer
    return answer["exit"].strip().splitlines()[-1]


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files below a folder, but for a log that is still empty: it is not in the way of the
    next start."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    logs = ("metrics.jsonl", "evaluate.jsonl")
    return {name: data for name, data in found.items() if data or not name.endswith(logs)}


def image_tree(folder: Path, train: str, val: str) -> None:
    """An image folder: of each class, a letter, 4 pictures of noise in train/ and 1 in val/."""
    for split, classes, count in (("train", train, 4), ("val", val, 1)):
        for name in classes:
            for number in range(count):
                path = folder / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.effect_noise((16, 16), 99).convert("RGB").save(path)
