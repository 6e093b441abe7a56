"""Warm processes (see warm.py) that run a chapter's main(argv) again and again.

A table of cases runs in one crew. Each case still gets a process group of its own, on a free port,
and its own fresh arguments; what a crew cannot show (launchers, exits, signals) is left to real
launches.
"""

import contextlib
import faulthandler
import gc
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any
from unittest import mock

from harness import HOROVOD, LAUNCHER_VARIABLES, PATIENCE, ROOT, SLURM, free_port, load_chapter
from warm import CONTEXT, environment_of_server, torchrun_environments


def slurm_environments(world_size: int) -> list[dict[str, str]]:
    """What srun sets, for each task of a step on one node (test_slurm.py runs a real Slurm)."""
    shared = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
    shared |= {"SLURM_STEP_NUM_TASKS": str(world_size), "SLURM_STEP_NUM_NODES": "1"}
    shared |= {"MASTER_PORT": str(free_port())}
    ranks = range(world_size)
    return [shared | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in ranks]


def horovod_environments(world_size: int) -> tuple[Any, list[dict[str, str]]]:
    """What horovodrun sets, for each rank; and the server in which they meet, to be stopped."""
    from horovod.runner import gloo_run
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    plan = get_host_assignments(parse_hosts(f"localhost:{world_size}"), world_size)
    server = RendezvousServer(verbose=0)
    shared = gloo_run.create_run_env_vars("127.0.0.1", ["lo"], str(server.start()))
    server.init(plan)
    return server, [shared | gloo_run.create_slot_env_vars(slot) for slot in plan]


def prepare_member() -> None:
    """A new process."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # or each collection below would walk the whole of torch


def forget_meshes() -> None:
    """Torch keeps how it has divided each operation on a DTensor, by meshes, and two meshes are the
    same to it if their ranks are. One of a case before names groups by numbers, which are by now
    those of other ranks: these would wait for each other for ever."""
    import torch
    from torch.distributed.tensor import DTensor

    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    if clear := getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None):
        clear()  # a second one, in C++, of newer versions


def run_as_rank(
    function: Callable, args: tuple, env: dict[str, str], timeout: float, stacks: str
) -> Any:
    """In a crew member: function(*args) in the environment of a rank, and no trace of it after."""
    import torch

    os.chdir(ROOT)  # it may have begun in the folder of a test, which is gone by now
    for name in [name for name in os.environ if name.startswith(LAUNCHER_VARIABLES)]:
        del os.environ[name]
    os.environ.update(env)
    for number in (signal.SIGUSR1, signal.SIGTERM):  # 06 has set them, in a case before this
        signal.signal(number, signal.SIG_DFL)
    with open(stacks, "a") as file:
        faulthandler.dump_traceback_later(timeout - 1, file=file)  # where it hangs, should it
        try:
            return function(*args)
        finally:
            faulthandler.cancel_dump_traceback_later()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            forget_meshes()
            if "horovod.torch" in sys.modules:
                sys.modules["horovod.torch"].shutdown()
            # Here, not in a loader worker forked later: there, gloo's threads do not exist, and
            # freeing what is left of a failed case would wait for them for ever.
            gc.collect()


def lives(member: ProcessPoolExecutor) -> bool:
    return not member._broken and all(one.is_alive() for one in member._processes.values())


class Crew:
    """Up to `size` processes; use as a context manager."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: list[ProcessPoolExecutor] = []  # each of one process
        self.stacks = tempfile.NamedTemporaryFile(prefix="stacks-of-crew-")

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """End all processes; the next call starts new ones."""
        for member in self.members:
            for process in list(member._processes.values()):
                process.kill()  # shutdown would wait for one that hangs
            member.shutdown()
        self.members = []

    def run(
        self, function: Callable, *args: Any, world_size: int = 1, timeout: float = PATIENCE
    ) -> list[Any]:
        """function(*args) on world_size ranks at once, each with the environment that the launcher
        of the chapter among the arguments would give it, and with CREW_RANK and CREW_SIZE; returns
        their answers in the order of ranks. A rank that raises, or one that does not answer in
        time, fails the test and ends the crew."""
        assert world_size <= self.size
        if not all(map(lives, self.members)):
            self.dismiss()  # gloo has aborted one after its last answer, see GLOO_ABORT
        while len(self.members) < world_size:
            self.members.append(ProcessPoolExecutor(1, CONTEXT, prepare_member))
        server, environments = None, torchrun_environments(world_size)
        if HOROVOD in args:
            server, environments = horovod_environments(world_size)
        elif SLURM in args:
            environments = slurm_environments(world_size)
        answers = []
        try:
            with environment_of_server():
                for rank, env in enumerate(environments):
                    env |= {"CREW_RANK": str(rank), "CREW_SIZE": str(world_size)}
                    task = (function, args, env, timeout, self.stacks.name)
                    answers.append(self.members[rank].submit(run_as_rank, *task))
            done, late = wait(answers, timeout)
        finally:
            if server:
                server.stop()
        errors = [answer.exception() for answer in done if answer.exception()]
        if late or errors:
            self.dismiss()
            told = [f"{error!r}\n{error.__cause__}" for error in errors]
            if late:
                told += [f"{len(late)} of {world_size} ranks did not answer in {timeout} s"]
                told += [Path(self.stacks.name).read_text()]
            raise AssertionError("\n".join(told))
        return [answer.result() for answer in answers]


def call_main(chapter: str, argv: list[str], patches: dict[str, Any] | None = None) -> dict:
    """In a crew member: run a chapter's whole work on argv as the rank in the environment.

    patches: functions of the chapter to replace while it runs, by name. Returns {"exit": the text
    or status of a SystemExit, the traceback of any other exception, or None, "stdout", "stderr"}.
    03_multiprocessing is entered where its spawned worker enters: what starts processes is
    left to real launches.
    """
    module = load_chapter(chapter)
    stdout, stderr, code = io.StringIO(), io.StringIO(), None
    getattr(module, "ASKED_TO_STOP", []).clear()  # of 06, in a case before this
    with contextlib.ExitStack() as changes:
        changes.enter_context(contextlib.redirect_stdout(stdout))
        changes.enter_context(contextlib.redirect_stderr(stderr))
        for name, value in (patches or {}).items():
            changes.enter_context(mock.patch.object(module, name, value))
        try:
            if chapter == "03_multiprocessing":
                nodes = ["--nprocs", os.environ["WORLD_SIZE"]]
                module.worker(int(os.environ["RANK"]), [*argv, *nodes], "env://")
            else:
                module.main(argv)
        except SystemExit as error:
            code = error.code
        except Exception:
            code = traceback.format_exc()
    return {"exit": code, "stdout": stdout.getvalue(), "stderr": stderr.getvalue()}
