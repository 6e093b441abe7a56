"""Processes that have imported torch already: forks of one server, in place of fresh Pythons.

A fresh Python spends three to five CPU seconds on importing torch and torchvision. The server
(multiprocessing's forkserver) imports them once a test session. What a fork cannot show, launchers,
exits and signals, is left to real launches.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

from harness import PATIENCE, SESSION, clean_environment, free_port

PRELOAD = [
    "torch", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
    "torch.distributed.elastic.multiprocessing.errors", "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel", "torchvision.transforms.v2", "tqdm",
    "pytest",  # which the modules of tests import, with their functions that run there
]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOAD)


def warm_environment() -> dict[str, str]:
    """That of a fresh shell, on CPUs: the ranks of a test are often more than a machine's GPUs."""
    mark = f"{SESSION}-warm"  # what a warm process starts is known by it, see harness.start
    env = clean_environment() | {"CUDA_VISIBLE_DEVICES": "", "LAUNCHED_BY_TEST": mark}
    # Unbuffered, two processes that share a file would write lines and their ends apart.
    return env | {"PYTHONUNBUFFERED": ""}


@contextlib.contextmanager
def environment_of_server() -> Iterator[None]:
    """The first process of CONTEXT starts the server, which keeps the environment of then."""
    fresh = clean_environment() | {"CUDA_VISIBLE_DEVICES": ""}
    with mock.patch.dict(os.environ, fresh, clear=True):
        yield


def start_warm(process: BaseProcess) -> None:
    """Start a process of CONTEXT."""
    with environment_of_server():
        process.start()


def torchrun_environments(world_size: int) -> list[dict[str, str]]:
    """What torchrun sets, for each rank of a job on this machine."""
    shared = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def _be_a_program(words: list[str], env: dict[str, str], cwd: str, out: str, err: str) -> None:
    """The life of a process of run_warm: the script, as if Python had been started with it."""
    os.setsid()
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def run_warm(
    words: Sequence,
    folder: Path,
    world_size: int = 0,
    timeout: float = PATIENCE,
    cwd: Path | None = None,
) -> tuple[list[int], list[str], list[str]]:
    """Run a script and its arguments in a warm process, as `python` would, or in world_size of
    them, as `torchrun --standalone` would. Returns the exit status, stdout and stderr of each;
    the files with both lie in the folder. A process that is late fails the test."""
    environments = torchrun_environments(world_size) if world_size else [{}]
    words, processes = [str(word) for word in words], []
    outs = [str(folder / f"stdout{rank}") for rank in range(len(environments))]
    errs = [str(folder / f"stderr{rank}") for rank in range(len(environments))]
    for env, out, err in zip(environments, outs, errs, strict=True):
        args = (words, warm_environment() | env, str(cwd or Path.cwd()), out, err)
        processes.append(CONTEXT.Process(target=_be_a_program, args=args))
        start_warm(processes[-1])
    deadline = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever it has started, too
        process.kill()
        process.join()
    texts = [[Path(path).read_text() for path in paths] for paths in (outs, errs)]
    assert not late, f"ranks {late} of {words} did not end in {timeout} s\n{texts}"
    return [process.exitcode for process in processes], *texts
