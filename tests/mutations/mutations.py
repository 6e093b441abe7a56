"""Break every protection on purpose, and see a test go red.

    python tests/mutations/mutations.py            # all of them
    python tests/mutations/mutations.py set_epoch  # those whose name holds the word
    python tests/mutations/mutations.py --list

Each patch below replaces a piece of a chapter's text, in every chapter that holds it, in a copy of
the repository; the tests named beside it must then fail. A piece that no longer stands in the
chapters, a test that stays green, or tests that are red before anything is broken end this with
status 1. It takes a while (a test session per patch, two at a time), so it is part of `make proof`.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2


@dataclass(frozen=True)
class Mutation:
    """name: what is lost. old becomes new in every chapter that has it (at least `chapters` of
    them). tests: pytest arguments, of which at least one test must fail."""

    name: str
    old: str
    new: str
    tests: str
    chapters: int = 4


AMP, RANKS = "tests/chapters/test_amp.py", "tests/chapters/test_slurm_ranks.py"
EQUAL, EVAL = "tests/chapters/test_equivalence.py", "tests/chapters/test_exact_eval.py"
SAMPLING, RESUME, ERRORS = (
    "tests/chapters/test_sampling.py",
    "tests/chapters/test_resume.py",
    "tests/chapters/test_errors.py",
)
BROADCAST = """\
KEPT.append(dist.broadcast(buffer, src=0, async_op=True))  # [dist] as in all_reduce_sum
        KEPT[-1].wait()"""
DATA = "tests/faults/test_faults_data.py"
FORKS = "tests/chapters/test_proofs.py::test_hundreds_of_loader_workers[02_distributed]"
MUTATIONS = [
    Mutation(
        "set_epoch",
        "train_loader.sampler.set_epoch(epoch)",
        "pass",
        f"{SAMPLING}::test_a_run_shuffles_anew_each_epoch[01_dataparallel-1]",
    ),
    Mutation(
        "the gradient all-reduce of DDP",
        "model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)",
        "pass",
        f"{EQUAL}::test_trains_as_one_process_would[02_distributed-2-float64]",
        3,
    ),
    Mutation(
        "the all-reduce of sums",
        """dist.all_reduce(tensor, async_op=True)]
    KEPT[-1].wait()""",
        "]\n    del KEPT[:]",
        f"{EVAL}::test_every_count_is_exact[02_distributed-2]",
        3,
    ),
    Mutation(
        "the unpadded share",
        "DataLoader(val_set, sampler=share, **options)",
        "DataLoader(val_set, sampler=DistributedSampler(val_set, world_size, rank,"
        " shuffle=False), **options)",
        f"{EVAL}::test_every_count_is_exact[02_distributed-2]",
    ),
    Mutation(
        "the share of a rank",
        "range(rank, len(val_set), world_size)",
        "range(len(val_set))",
        f"{EVAL}::test_every_count_is_exact[02_distributed-2]",
    ),
    Mutation(
        "the buffer broadcast",
        BROADCAST,
        "pass",
        f"{EVAL}::test_the_model_of_rank_0_is_evaluated[02_distributed-2]",
        3,
    ),
    Mutation(
        "what gloo's thread must not free", BROADCAST, "dist.broadcast(buffer, src=0)", FORKS, 3
    ),
    Mutation(
        "evaluation mode",
        "model.eval()",
        "model",
        f"{EVAL}::test_the_model_of_rank_0_is_evaluated[01_dataparallel-1]",
    ),
    Mutation(
        "sums in place of means",
        'targets, reduction="sum")',
        "targets)",
        f"{EVAL}::test_every_count_is_exact[01_dataparallel-1]",
    ),
    Mutation(
        "the seed of an epoch",
        "torch.manual_seed((args.seed * 1_000_003 + epoch * world_size + rank) % 2**32)",
        "pass",
        f"{SAMPLING}::test_every_view_is_another[02_distributed-0]",
    ),
    Mutation(
        "the rank in the seed",
        "epoch * world_size + rank",
        "epoch",
        f"{SAMPLING}::test_every_view_is_another[02_distributed-0]",
    ),
    Mutation(
        "the epoch in the seed",
        "epoch * world_size + rank",
        "rank",
        f"{SAMPLING}::test_every_view_is_another[02_distributed-0]",
    ),
    Mutation(
        "the seed of the order",
        "seed=args.seed, drop_last",
        "drop_last",
        f"{EQUAL}::test_trains_as_one_process_would[01_dataparallel-1-float64]",
    ),
    Mutation(
        "workers that live one epoch",
        '"num_workers": args.workers,',
        '"num_workers": args.workers, "persistent_workers": args.workers > 0,',
        f"{RESUME}::test_bit_for_bit[01_dataparallel-2]",
    ),
    Mutation(
        "whole batches",
        "sampler=sampler, drop_last=True",
        "sampler=sampler",
        f"{SAMPLING}::test_each_image_at_most_once[02_distributed-13]",
    ),
    Mutation(
        "the linear scaling rule",
        "args.lr * args.batch_size / 256",
        "args.lr",
        f"{EQUAL}::test_trains_as_one_process_would[01_dataparallel-1-float64]",
    ),
    Mutation(
        "the warm-up",
        "return min(1.0, (step + 1) / warmup)",
        "return 1.0",
        f"{EQUAL}::test_trains_as_one_process_would[01_dataparallel-1-float64]",
    ),
    Mutation(
        "zero_grad",
        "        optimizer.zero_grad()\n",
        "",
        f"{EQUAL}::test_trains_as_one_process_would[01_dataparallel-1-float64]",
    ),
    Mutation(
        "atomic saving",
        'temporary = folder / "saving.tmp"',
        "temporary = folder / name",
        f"{RESUME}::test_saving_is_all_or_nothing",
    ),
    Mutation(
        "best.pt first",
        '("best.pt", "checkpoint.pt") if',
        '("checkpoint.pt", "best.pt") if',
        f"{RESUME}::test_best_is_never_lost",
    ),
    Mutation(
        "one writer",
        "if rank == 0:  # [dist] one writer for one file",
        "if True:",
        f"{RESUME}::test_bit_for_bit[02_distributed-0]",
    ),
    Mutation(
        "one log",
        "if rank == 0:  # [dist] not local_rank",
        "if True:  # not local_rank",
        f"{RESUME}::test_bit_for_bit[02_distributed-0]",
    ),
    Mutation(
        "the weights of a checkpoint",
        'raw_model.load_state_dict(checkpoint.get("model", raw_model.state_dict()))',
        "pass",
        f"{RESUME}::test_bit_for_bit[01_dataparallel-2]",
    ),
    Mutation(
        "the momentum of a checkpoint",
        'optimizer.load_state_dict(checkpoint["optimizer"] | settings)',
        "pass",
        f"{RESUME}::test_bit_for_bit[01_dataparallel-2]",
    ),
    Mutation(
        "the place in the schedule",
        'position = checkpoint["epoch"] * steps_per_epoch + checkpoint["step_in_epoch"]',
        "position = 0",
        f"{RESUME}::test_bit_for_bit[01_dataparallel-2]",
    ),
    Mutation(
        "the best accuracy so far",
        'checkpoint.get("best_acc1", -1.0)',
        "-1.0",
        f"{RESUME}::test_the_best_survives_a_resume",
    ),
    Mutation(
        "settings kept on resume",
        "parser.set_defaults(**{name: saved[name]",
        "print({name: saved[name]",
        f"{RESUME}::test_bit_for_bit[01_dataparallel-2]",
    ),
    Mutation(
        "safe loading",
        "weights_only=True",
        "weights_only=False",
        f"{ERRORS}::test_refused[01_dataparallel-resume_bomb]",
    ),
    Mutation(
        "the stop on a loss gone wrong",
        'refuse_if(not math.isfinite(fields.get("loss", 0))',
        "refuse_if(False",
        f"{ERRORS}::test_loss_is_not_finite[01_dataparallel-1-none]",
    ),
    Mutation(
        "the other run's folder",
        "refuse_if(other_run,",
        "refuse_if(False,",
        f"{ERRORS}::test_refused[01_dataparallel-holds_a_run]",
    ),
    Mutation(
        "ranks that must agree",
        "refuse_if(not same,",
        "refuse_if(False,",
        f"{ERRORS}::test_ranks_that_disagree[02_distributed-images]",
    ),
    Mutation(
        "pictures that are not 8-bit RGB",
        "if image.dtype != torch.uint8 or",
        "if False and",
        f"{ERRORS}::test_unreadable_image[02_distributed-sixteen_bits-train-0]",
    ),
    Mutation(
        "an even share of the batch",
        "refuse_if(args.batch_size != below,",
        "refuse_if(False,",
        f"{ERRORS}::test_refused[02_distributed-uneven_2]",
        3,
    ),
    # Faults of disks, data and trust.
    Mutation(
        "what a failed save leaves",
        "            temporary.unlink(missing_ok=True)\n",
        "            pass\n",
        f"{DATA}::test_full_disk",
    ),
    Mutation(
        "torch's own error of a full disk",
        "except (OSError, RuntimeError) as error:",
        "except OSError as error:",
        f"{DATA}::test_full_disk",
    ),
    Mutation(
        "a folder that cannot be written",
        "refuse_if(not os.access(",
        "refuse_if(False and not os.access(",
        f"{DATA}::test_read_only_disk",
    ),
    Mutation(
        "RGB, whatever the file holds",
        "ImageReadMode.RGB)",
        "ImageReadMode.UNCHANGED)",
        f"{DATA}::test_odd_image_is_used",
    ),
    Mutation(
        "pictures of several frames",
        "image.ndim != 3 or ",
        "",
        f"{DATA}::test_unusable_image_is_named",
    ),
    Mutation(
        "one rank that fetches weights",
        "args.pretrained and rank == 0)",
        "args.pretrained)",
        f"{DATA}::test_one_rank_fetches_weights[02_distributed]",
    ),
    Mutation(
        "a listener on loopback",
        "socket.create_server((args.master_addr, port))",
        'socket.create_server(("0.0.0.0", port))',
        f"{DATA}::test_spawned_job_listens_on_loopback",
        1,
    ),
    # 04
    Mutation(
        "momentum that a skipped first step leaves alone",
        'optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)',
        "pass",
        f"{AMP}::test_overflow_by_a_huge_scale[1]",
        1,
    ),
    Mutation(
        "momentum in the layout of its weight",
        'state["momentum_buffer"] = torch.empty_like(weight).copy_(',
        "print(",
        f"{RESUME}::test_any_chapter_resumes_any_other[01_dataparallel-05_horovod]",
        7,
    ),
    Mutation(
        "unscaling before clipping",
        "self.scaler.unscale_(optimizer)",
        "pass",
        f"{AMP}::test_clip[fp16]",
        1,
    ),
    Mutation(
        "the scaler's update", "self.scaler.update()", "pass", f"{AMP}::test_types[fp16-1]", 1
    ),
    Mutation(
        "the scaler in the checkpoint",
        '"scaler": scale.state_dict()',
        '"scaler": None',
        f"{AMP}::test_types[fp16-1]",
        1,
    ),
    Mutation(
        "the end of a run whose steps are all skipped",
        "refuse_if(scale.in_a_row >= HOPELESS",
        "refuse_if(False",
        f"{AMP}::test_too_many_in_a_row[0-20-1-20]",
        1,
    ),
    # 05
    Mutation(
        "Horovod's optimizer",
        "return hvd.DistributedOptimizer(\n        optimizer,",
        "return (lambda bare, *_: bare)(\n        optimizer,",
        f"{EQUAL}::test_trains_as_one_process_would[05_horovod-2-float64]",
        1,
    ),
    Mutation(
        "Horovod's sum",
        "hvd.allreduce(tensor, op=hvd.Sum)",
        "hvd.allreduce(tensor)",
        f"{EVAL}::test_every_count_is_exact[05_horovod-2]",
        1,
    ),
    Mutation(
        "the result of Horovod's sum",
        "return total",
        "return tensor",
        f"{EVAL}::test_every_count_is_exact[05_horovod-2]",
        1,
    ),
    Mutation(
        "Horovod's broadcast of weights",
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
        "pass",
        f"{EQUAL}::test_all_ranks_end_alike[05_horovod-2]",
        1,
    ),
    Mutation(
        "Horovod's broadcast of buffers",
        "hvd.broadcast_parameters(dict(model.named_buffers()), root_rank=0)",
        "pass",
        f"{EVAL}::test_the_model_of_rank_0_is_evaluated[05_horovod-2]",
        1,
    ),
    Mutation(
        "the share of a pass",
        "(loss / passes).backward()",
        "loss.backward()",
        "tests/chapters/test_horovod.py::test_passes_add_up_to_the_batch[2-1]",
        1,
    ),
    # 06
    Mutation(
        "the processes in the rank",
        'int(env["SLURM_PROCID"]) * procs',
        'int(env["SLURM_PROCID"])',
        f"{RANKS}::test_ranks",
        1,
    ),
    Mutation(
        "the repeats of a task count",
        "for _ in range(int(times or 1))",
        "for _ in range(1)",
        f"{RANKS}::test_ranks",
        1,
    ),
    Mutation(
        "the first of a bracketed list",
        r"""re.sub(r"\[(\w+)[^]]*\]", r"\1", first_name)""",
        "first_name",
        f"{RANKS}::test_ranks",
        1,
    ),
    Mutation(
        "the GPU of --gpus-per-task",
        "local_rank % gpus",
        "local_rank",
        f"{RANKS}::test_gpu[1-2-1-2-0]",
        1,
    ),
    Mutation(
        "the restart in the meeting file's name",
        ', "SLURM_RESTART_COUNT")',
        ")",
        f"{RANKS}::test_meeting_in_a_file",
        1,
    ),
    Mutation(
        "the meeting file's end",
        "unlink(missing_ok=True)\n    if stopped",
        "is_file()\n    if stopped",
        f"{RANKS}::test_a_meeting_leaves_nothing",
        1,
    ),
    Mutation(
        "the handler of a stop",
        "signal.signal(stop_signal, request_stop)",
        "pass",
        f"{RANKS}::test_stop[sizes0-ask0-stops0]",
        1,
    ),
    Mutation(
        "the stop of all ranks at a log line",
        "totals[3] = len(ASKED_TO_STOP)",
        "pass",
        f"{RANKS}::test_stop[sizes0-ask0-stops0]",
        1,
    ),
    Mutation(
        "the stop of all ranks between epochs",
        "return bool(all_reduce_sum(asked))",
        "return bool(asked)",
        f"{RANKS}::test_stop[sizes0-ask0-stops0]",
        1,
    ),
    Mutation(
        "loader workers that a stop leaves alone",
        "signal.signal(stop_signal, signal.SIG_IGN)\n\n\ndef",
        "pass\n\n\ndef",
        f"{RANKS}::test_loader_workers_survive",
        1,
    ),
    Mutation(
        "the images done before a stop",
        "islice(super().__iter__(), self.done, None)",
        "super().__iter__()",
        f"{RANKS}::test_sampler[1-50]",
        1,
    ),
    Mutation(
        "other randomness after a stop",
        " + done * 15_485_863",
        "",
        f"{RANKS}::test_stop_between_two_looks",
        1,
    ),
    Mutation(
        "the status of a stop",
        "raise SystemExit(STOPPED)\n\n",
        "pass\n\n",
        f"{RANKS}::test_stop[sizes0-ask0-stops0]",
        1,
    ),
    Mutation(
        "the images of an interrupted epoch",
        "refuse_if(moved,",
        "refuse_if(False,",
        f"{RANKS}::test_the_same_images_or_none",
        1,
    ),
]


def chapters_of(root: Path) -> list[Path]:
    return sorted(root.glob("0[1-7]_*/main.py"))


def pytest(root: Path, arguments: str) -> tuple[int, str]:
    """Status and last lines of a session, stopped at the first failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments.split()],
        cwd=root,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    return done.returncode, done.stdout[-2000:] + done.stderr[-1000:]


def stale(chosen: list[Mutation]) -> list[str]:
    """Patches whose text no longer stands in the chapters, or that leave no Python: any test would
    notice those."""
    texts, found = [path.read_text() for path in chapters_of(ROOT)], []
    for mutation in chosen:
        holding = [text for text in texts if mutation.old in text]
        if len(holding) < mutation.chapters:
            found.append(f"{mutation.name}: in {len(holding)} chapters")
        for text in holding:
            ast.parse(text.replace(mutation.old, mutation.new))
    return found


def notices(mutation: Mutation, copy: Path) -> bool:
    """Break one protection in a copy of the repository, and say what its test says."""
    kept, began = {path: path.read_text() for path in chapters_of(copy)}, time.monotonic()
    for path, text in kept.items():
        path.write_text(text.replace(mutation.old, mutation.new))
    status, text = pytest(copy, mutation.tests)
    for path, original in kept.items():
        path.write_text(original)
    # 1 is pytest's word for failed tests; a broken session would prove nothing.
    caught = status == 1 and " failed" in text.splitlines()[-1]
    first = next((line for line in text.splitlines() if line.startswith("FAILED")), "")
    verdict = "red" if caught else f"SURVIVED (pytest ended with {status})"
    print(
        f"{verdict:4} {mutation.name}  {first[:90]}  {time.monotonic() - began:.0f} s", flush=True
    )
    return caught


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="only names that hold it")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--known-green", action="store_true", help="the tests have just passed")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if args.word in m.name]
    if args.list or not chosen:
        print("\n".join(m.name for m in MUTATIONS))
        return 0 if chosen else 1
    if lost := stale(chosen):
        print("no longer in the chapters:", *lost, sep="\n  ")
        return 1

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: Queue[Path] = Queue()
        ignore = shutil.ignore_patterns(".git", ".venv*", "data", "runs", "__pycache__", ".*_cache")
        for number in range(AT_ONCE):
            copies.put(Path(shutil.copytree(ROOT, Path(folder, str(number)), ignore=ignore)))

        def on_some_copy(mutation: Mutation) -> bool:
            copy = copies.get()
            try:
                return notices(mutation, copy)
            finally:
                copies.put(copy)

        if not args.known_green:
            print("first, everything must be green", flush=True)
            needed = sorted({path for m in chosen for path in m.tests.split()})
            status, text = pytest(Path(folder, "0"), " ".join(needed))
            if status != 0:
                print(text, "\nred before anything was broken")
                return 1
        caught = sum(pool.map(on_some_copy, chosen))
    print(f"{caught} of {len(chosen)} broken protections were noticed")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
