"""What a run leaves: files that were changed since it began, whatever wrote them.

Nothing here needs torch or numpy: it is read in the doctor's own process, before another run writes
the same files.
"""

import ast
import json
import math
import mmap
import os
import struct
import sys
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from operator import mul

MOST = 20_000  # files and folders that are looked at, below each folder
OLD = 300  # of one to which nothing was added: it holds data, say
MOST_NUMBERS = 2**20  # of a tensor: of a larger one, some
CODES = {"F64": "d", "F32": "f", "F16": "e", "BF16": "", "f8": "d", "f4": "f", "f2": "e"}


def changed(folders: list[str], below: list[str], begun: float) -> dict[str, int]:
    """Path -> bytes, of files in these folders, and in and below the others; not what a shell has
    redirected our output to. Where all programs write (/tmp) nobody knows whose they are."""
    common = {"/", tempfile.gettempdir(), os.path.expanduser("~")}
    ours = set()
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        with suppress(OSError, ValueError):
            ours.add(os.fstat(stream.fileno()).st_ino)
    found: dict[str, int] = {}
    looked = set()
    for root in [*below, *folders]:
        count = 0
        queue = deque({os.path.realpath(root)} - common)
        while queue and count < MOST:
            folder = queue.popleft()
            if folder in looked:
                continue
            looked.add(folder)
            with suppress(OSError), os.scandir(folder) as entries:
                old = os.stat(folder).st_ctime < begun
                for n, entry in enumerate(entries):
                    count += 1
                    if count > MOST or (old and n > OLD):
                        break
                    if entry.is_dir(follow_symlinks=False):
                        deep = root in below and not entry.name.startswith((".", "__"))
                        queue += [entry.path] * deep
                    elif entry.is_file(follow_symlinks=False):
                        stat = entry.stat()
                        if stat.st_ctime >= begun and stat.st_size and stat.st_ino not in ours:
                            found[entry.path] = stat.st_size
    return found


def is_text(path: str) -> bool:
    """Whether it holds no zero bytes at its beginning: a log, JSON, a table."""
    with suppress(OSError), open(path, "rb") as file:
        return b"\0" not in file.read(4096)
    return True


def digest(path: str) -> int:
    total = 0
    with suppress(OSError), open(path, "rb") as file:
        while part := file.read(2**22):
            total = zlib.crc32(part, total)
    return total


def tensors_in(path: str) -> dict[str, list] | None:
    """Name -> norm and weighted sample, of a file of safetensors or numpy; None: it is neither."""
    with suppress(OSError, ValueError, SyntaxError, KeyError, struct.error, zipfile.BadZipFile):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                names = [name for name in file.namelist() if name.endswith(".npy")]
                parts = {name: array_in(file.read(name)) for name in names}
                return {name: figures(*part) for name, part in parts.items() if part} or None
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if part := array_in(data):
                return {"": figures(*part)}
            return {name: figures(*part) for name, part in safetensors_in(data)} or None
    return None


def safetensors_in(data: object) -> Iterator[tuple[str, tuple]]:
    """The length of its header, the header in JSON, and the bytes of all tensors."""
    [length] = struct.unpack("<Q", data[:8])
    for name, one in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and one["dtype"] in CODES:
            start, end = (8 + length + place for place in one["data_offsets"])
            yield name, (CODES[one["dtype"]], data[start:end])


def array_in(data: object) -> tuple[str, bytes] | None:
    """Of numpy's .npy: the header is a Python literal behind a magic word, version and length."""
    if data[:6] != b"\x93NUMPY":
        return None
    size = 2 if data[6] == 1 else 4
    start = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    kind = ast.literal_eval(bytes(data[8 + size : start]).decode("latin1"))["descr"]
    return (CODES[kind[1:]], data[start:]) if kind[1:] in CODES else None


def figures(code: str, data: bytes) -> list[float]:
    """As recorder/figures.py makes them of tensors."""
    if not code:  # bfloat16 is the upper half of a float32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        code, data = "f", bytes(wide)
    size = struct.calcsize(code)
    step = max(1, len(data) // size // MOST_NUMBERS)
    if code == "e":
        numbers = struct.unpack(f"<{len(data) // size}e", data)[::step]
    else:
        numbers = memoryview(data).cast(code)[::step]
    sample = numbers[:: max(1, len(numbers) // 64)]
    norm = math.sqrt(sum(map(mul, numbers, numbers)))
    return [norm, sum(map(mul, sample, range(1, len(sample) + 1)))]
