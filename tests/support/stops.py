"""Runs that are told to stop, in warm processes: who is told, when, and what is left behind."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from crew import Crew, call_main
from harness import events, load_chapter, load_state
from torch import Tensor

USR1, TERM = signal.SIGUSR1, signal.SIGTERM
INSIDE = ", stopped inside an epoch"


def leg(chapter: str, argv: list[str], build: Callable, ask: dict[str, Any]) -> dict:
    """In a crew member: one start of a run that may be told to stop. ask: which rank, after which
    step or in which evaluation of this start, by which signal, and how often; or that the loader's
    workers of that rank get these signals."""
    module, at, workers = load_chapter(chapter), {"step": 0, "evaluation": 0}, []
    batches, evaluate = module.batches, module.evaluate
    for number in (USR1, TERM):  # an evaluation may inherit that they are ignored
        signal.signal(number, signal.SIG_IGN if "--evaluate" in argv else signal.SIG_DFL)
    mine = int(os.environ["CREW_RANK"]) == ask.get("rank")

    def maybe_ask(**now: int) -> None:
        if not mine or not now.items() <= ask.items():
            return
        if "workers" not in ask:
            for _ in range(ask.get("times", 1)):
                os.kill(os.getpid(), ask["signal"])
            return
        workers[:] = multiprocessing.active_children()
        for number in ask["workers"]:
            for worker in workers:
                os.kill(worker.pid, number)
            time.sleep(0.3)
            assert all(worker.is_alive() for worker in workers), f"{number} ended a worker"

    def counting(*given: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches(*given):
            if torch.is_grad_enabled():
                at["step"] += 1
                maybe_ask(step=at["step"])
            yield batch

    def evaluating(*given: Any) -> Any:
        at["evaluation"] += 1
        maybe_ask(evaluation=at["evaluation"])
        return evaluate(*given)

    answer = call_main(
        chapter, argv, {"batches": counting, "evaluate": evaluating, "build_model": build}
    )
    handles = [signal.getsignal(number) is not signal.SIG_DFL for number in (USR1, TERM)]
    return answer | at | {"handles": handles, "workers": len(workers)}


def one_start(
    crew: Crew, chapter: str, argv: list, world_size: int, build: Callable, **ask: Any
) -> list[dict]:
    """Another start of a run, in which the last rank is told to stop; the answers of its ranks,
    which have all ended alike and at the same step."""
    words = [*(str(word) for word in argv), "--print-freq", "1", "--resume"]
    ask = {"rank": world_size - 1, "signal": TERM} | ask
    answers = crew.run(leg, chapter, words, build, ask, world_size=world_size)
    for name in ("exit", "step", "evaluation", "handles"):
        assert all(answer[name] == answers[0][name] for answer in answers), answers
    return answers


def assert_stopped(answers: list[dict], folder: Path, epoch: int, done: int) -> None:
    """By request, with the last word in the log, and a checkpoint of that very step."""
    assert answers[0]["exit"] == 75, answers
    assert events(folder)[-1]["event"] == "stopped"
    state = load_state(folder / "checkpoint.pt")
    assert (state["epoch"], state["step"]) == (epoch, done)
    assert state["model_name"].endswith(INSIDE)
    assert not (folder / "checkpoint.tmp").exists()
