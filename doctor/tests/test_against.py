"""doctor --against: the same training on one process and on two, or where they part."""

import contextlib
import json
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import against
import faults
import pytest
import torch
from check_twins import but_rounding
from crew import Crew
from examined import OLDEST, assert_contract_kept, name_probes, record
from harness import ROOT, run_short
from test_right import BY_TENSORS
from tiers import but, table
from warm import torchrun_environments

from ddp_doctor import command
from ddp_doctor.against.comparison import Comparison
from ddp_doctor.against.first import for_second_run
from ddp_doctor.against.runs import run_of
from ddp_doctor.checks import judge
from ddp_doctor.checks.equal import apart, differ
from ddp_doctor.findings import WRONG
from ddp_doctor.job import Job
from ddp_doctor.ranks import Rank, failed, read_ranks
from ddp_doctor.report import LANGUAGES, Report
from ddp_doctor.without import PARTS
from tools.site.verdicts import all_cases

CONVERT = ROOT / "docs/examples/convert"
ATTACHED = []
# Rows of the tables that come to their verdict as others do.
ALIKE = {
    "loss times ranks, in a closure", "loss times ranks in bfloat16", "a frozen layer on one rank",
    "loss times the number of ranks, then clipped by value", "gradients that are added up",
    "padded, and the loss times the number of ranks", "BatchNorm, and the loss times ranks",
    "a schedule that is stepped for each rank", "a drawn view",
    "another limit of the norm, by a norm of one's own", "another loss, beside times",
    "half of the weights, in a pickle",  # as from memory; test_tensors.py reads one
    "what rank 0 has of them, from memory",
    "an average on rank 0 that rank 1 forgets", "the accuracy of rank 0's share, in a bar",
    "a batch that is not divided", "fewer epochs", "the sum of losses", "clipping before averaging",
    "no share for each rank", "noise", "an average, written within a second",
    "an average, moved by a shell", "the loss of rank 0, and that of all for a log",
    "an epoch without its last batch", "half of a point, by a worker",
    "a restart from the average", "a last batch in unequal parts",
    "a layer that is whole beside parts", "no set_epoch on two ranks",
    "the mean of the ranks' accuracies",
    "another rate of one group",
}  # fmt: skip
ALIKE_ORDERS = {
    "a list cut into shares", "buckets by length", "batches that are arrays",
    "an endless sampler", "no share of batches of its own", "the share of rank 0",
    "a batch that is not divided", "an epoch without its last batch", "no loader that evaluates",
    "numbers that are tensors", "no share of a list", "balanced batches of its own",
    "a list that the script shuffles", "RandomSampler on one process",
    "an evaluation of the same set", "a resume that skips batches", "no share for each rank",
}  # fmt: skip
ALIKE_SAME = {
    "batches that a thread fetches", "accumulated in larger parts, of what is fetched ahead",
    "padded, the longest first", "in a pickle", "an average in the model", "by a worker", "float64",
    "written within a second", "frozen weights", "saved by safetensors",
    "accumulated in larger parts on one process", "from memory", "in a folder",
    "epochs that a thread fetches one after the other",
    "an epoch that is fetched before its first step", "a schedule that changes nothing",
}  # fmt: skip


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(3) as members:
        yield members


def record_compared(without: str, told_of_first: str, *args: str) -> None:
    """In a crew member: record() of a run that is compared.

    told_of_first: a file, for the second of two runs.
    """
    os.environ["DOCTOR_AGAINST"] = without
    randperm = torch.randperm
    if told_of_first:
        os.environ["DOCTOR_FIRST"] = told_of_first
    from ddp_doctor.recorder.notes import FOLDER, notes

    notes.told = dict(os.environ)
    try:
        if not ATTACHED:
            from ddp_doctor.attach import attach
            from ddp_doctor.recorder import hooks
            from ddp_doctor.recorder.probes import OF_TWO
            from ddp_doctor.without.changes import CHANGES

            os.environ[FOLDER] = f"{args[1]}/traces"
            if not hasattr(notes, "folder"):
                name_probes()
                attach("torch", dict(os.environ))
            else:
                notes.told = dict(os.environ)
                hooks.attach(OF_TWO + CHANGES)
            ATTACHED.append(True)
        from ddp_doctor.recorder import results
        from ddp_doctor.without import draws, first, order

        results.TOLD.clear()
        results.Output.count = 0
        first.cache_clear()
        draws.draws.__init__()
        order.LATEST.clear()
        if "rounding" in without:
            torch.set_default_dtype(torch.float64)  # the run before has put it back
        record(*args)
    finally:
        # A script may have set others.
        torch.set_default_dtype(torch.float32)
        torch.randperm = randperm
        del os.environ["DOCTOR_AGAINST"]
        os.environ.pop("DOCTOR_FIRST", None)


def compared(
    crew: Crew,
    text: str | tuple,
    folder: Path,
    sizes: tuple = (1, 2),
    without: str = "",
    lacks: str = "",
    member: Callable = record_compared,
) -> dict[str, Comparison]:
    """The comparisons of the script, or of two, on so many ranks, by language.

    lacks: a probe that is never asked. member: what a member of the crew runs.
    """
    texts = (text, text) if isinstance(text, str) else text
    if OLDEST and "fully_shard" in texts[1]:
        pytest.skip("FSDP2 does not train on CPUs in torch 2.6")

    def ran(text: str, size: int, of_first: dict | None = None) -> list[Rank]:
        own = folder / f"run{len(list(folder.iterdir()))}"
        (own / "traces").mkdir(parents=True)
        (own / "script.py").write_text(text)
        file = own / "told.json" if of_first else ""
        if of_first:
            file.write_text(json.dumps(of_first))
        words = (without, str(file), str(own / "script.py"), str(own), lacks)
        with contextlib.suppress(AssertionError):  # a rank that gloo has aborted at its end
            crew.run(member, *words, world_size=size)
        assert_contract_kept(own / "traces")
        ranks = read_ranks(own / "traces")
        assert ranks, [file.read_text() for file in (own / "traces").glob("*.jsonl")]
        return ranks

    first = ran(texts[0], sizes[0])
    ranks = [first, ran(texts[1], sizes[1], for_second_run(first))]
    found = {}
    for language in LANGUAGES:
        runs = [run_of(label, these) for label, these in zip("AB", ranks, strict=True)]
        report = Report(language)
        judge(ranks[1], report)
        report.broken = any(map(failed, ranks[1]))
        found[language] = Comparison(*runs, report, without)
        found[language].compare()
    return found


def hyphens(value: object) -> str:
    return str(value).replace(" ", "-")


@pytest.mark.parametrize("kind", but(against.KINDS, ALIKE), ids=hyphens)
def test_names_where_runs_part(kind: str, crew: Crew, tmp_path: Path) -> None:
    words, name = against.KINDS[kind]
    for comparison in compared(crew, faults.changed(against.BASE, words), tmp_path).values():
        print(comparison.text())
        first = next(seen for seen in comparison.seen if seen.kind not in ("same", "note"))
        assert first.name == name, comparison.text()
        assert sum(seen.kind == "differs" for seen in comparison.seen) <= 1, comparison.text()
        assert "steps of 0" not in comparison.text()
        wanted = {"differs": 1, "cause": 0}.get(first.kind, 3)
        assert comparison.status() == wanted
        assert not (comparison.parted() and kind.startswith("a file of each rank"))


SIZES = [(size, what) for size in (2, 3) for what in against.SAME]
ON_TWO = [(3, "as it is"), *((2, what) for what in against.SAME if what not in ALIKE_SAME)]


@pytest.mark.parametrize(("size", "what"), table(SIZES, ON_TWO), ids=hyphens)
def test_nothing_differs(size: int, what: str, crew: Crew, tmp_path: Path) -> None:
    text = faults.changed(against.BASE, against.SAME[what])
    text = text.replace("16 // world_size", "12 // world_size").replace("64, 1", "60, 1")
    comparison = compared(crew, text, tmp_path, sizes=(1, size))["en"]
    print(comparison.text())
    kinds = {seen.kind for seen in comparison.seen}
    if what == "padded to the longest of a batch":
        why = "from step 1 on contents were not compared: samples have unlike shapes"
        assert why in comparison.text()
    # Never a difference; but so few digits, and steps of nothing, are soon undecided.
    soon = what in ("bfloat16", "a weight without a gradient")
    assert kinds <= {"same", *(["undecided"] if soon else [])}, comparison.text()
    assert comparison.status() == (3 if "undecided" in kinds else 0)


@pytest.mark.parametrize(
    "what",
    table(against.FAINT, ["a bias of keys", "a bias of keys that counts twice"]),
    ids=hyphens,
)
def test_gradients_of_rounding(what: str, crew: Crew, tmp_path: Path) -> None:
    """In float64 they are taken as 0 in both runs, and only where that is asked for; a first
    gradient that is 0 by itself is none of them."""
    words, without, name = against.FAINT[what]
    text = faults.changed(against.BASE, words)
    for comparison in compared(crew, text, tmp_path, without=without).values():
        print(comparison.text())
        first = next((seen for seen in comparison.seen if seen.kind != "same"), None)
        assert (first.name if first else "") == name
        if first:
            assert first.values["names"] == "0.keys.bias"
        if name in ("rounded", ""):
            [seen] = [seen for seen in comparison.seen if seen.name.startswith("numbers")]
            assert (seen.values["count"], seen.values["steps"]) == (16, 16)
            assert comparison.report.say("against_nothing") in comparison.text()
        assert comparison.status() == {"small": 3, "gradients": 1}.get(name, 0)


@pytest.mark.parametrize("kind", table(against.STILL, ["as it is"]), ids=hyphens)
def test_weights_that_are_put_back(kind: str, crew: Crew, tmp_path: Path) -> None:
    """In bfloat16, where the same script is UNDECIDED after some steps, and so is a mistake."""
    words, wanted = against.STILL[kind]
    text = faults.changed(against.BASE, (*against.NO_CLIP, *against.BFLOAT16, *words))
    for comparison in compared(crew, text, tmp_path, without="growth").values():
        print(comparison.text())
        kinds = {seen.kind for seen in comparison.seen} - {"note"}
        assert kinds == {"same", *([wanted] if wanted else [])}
        if not wanted:
            [seen] = [seen for seen in comparison.seen if seen.name == "numbers:still"]
            assert (seen.values["count"], seen.values["steps"]) == (16, 16)
            assert 0 < seen.values["largest"] < seen.values["bound"] == 0.01
            assert len({str(row) for row in weights_of(comparison)}) == 1


def weights_of(comparison: Comparison) -> list[list]:
    """Before each step of both runs."""
    return [row for run in comparison.runs for row in run.first.figures["weights"].values()]


def test_files_without_weights(crew: Crew, tmp_path: Path) -> None:
    """Settings, and each rank's random numbers, as transformers' Trainer writes them."""
    saved = (
        "\n        torch.save(__import__('argparse').Namespace(size=world_size), 'settings.bin')"
        "\n        __import__('os').system(f'echo {world_size} > note.txt')  # or another job"
        "\n    own = rank if world_size > 1 else ''"
        "\n    torch.save({'numpy': __import__('numpy').random.get_state()}, f'random{own}.pth')"
    )
    words = (against.TORCH_SAVE, against.TORCH_SAVE + saved)
    comparison = compared(crew, faults.changed(against.BASE, words), tmp_path)["en"]
    names = "note.txt, random.pth, random0.pth, random1.pth, settings.bin"
    assert f"SEEN: files that are not compared: {names}" in comparison.text()
    assert "was seen to open: note.txt\n" in comparison.text()
    assert comparison.text().splitlines()[-1].startswith("Nothing differs")
    assert comparison.status() == 0


def test_which_steps_were_compared(crew: Crew, tmp_path: Path) -> None:
    """All of them, and the weights after the last one, of which something is printed."""
    comparison = compared(crew, against.BASE, tmp_path)["en"]
    [seen] = [seen for seen in comparison.seen if seen.name == "numbers:same"]
    assert (seen.values["count"], seen.values["steps"]) == (16, 16)
    assert comparison.equal == set(range(17))


def test_a_run_that_failed(crew: Crew, tmp_path: Path) -> None:
    words = ("    model.eval()\n", "    assert epoch < 2 or world_size == 1\n    model.eval()\n")
    comparison = compared(crew, faults.changed(against.BASE, words), tmp_path)["en"]
    assert "B ended by an error: it was compared up to step 12.\n" in comparison.text() + "\n"
    assert "Nothing differs" not in comparison.text() and not comparison.parted()


ALIKE_RESUMED = {"a count of steps lost", "an epoch that is trained again", "dropout, taken out"}


@pytest.mark.parametrize("kind", but(against.RESUMED, ALIKE_RESUMED), ids=hyphens)
def test_a_run_that_was_resumed(kind: str, crew: Crew, tmp_path: Path) -> None:
    """The whole run, and one that goes on from what that has saved in the middle."""
    both, words, size, without, name = against.RESUMED[kind]
    texts = [
        faults.changed(against.BASE, (*first, *both)) for first in (against.FIRST, against.SECOND)
    ]
    texts[1] = faults.changed(texts[1], words)
    comparisons = compared(crew, tuple(texts), tmp_path, (2, size), without)
    for comparison in comparisons.values():
        print(comparison.text())
        kinds = {seen.name: seen.kind for seen in comparison.seen}
        assert name in kinds, comparison.text()
        if name == "resumed":
            assert set(kinds.values()) == {"same"} and kinds.keys() >= {"samples:same"}
            [seen] = [seen for seen in comparison.seen if seen.name.startswith("numbers")]
            assert (seen.values["count"], seen.values["steps"]) == (8, 8)
        else:
            first = next(seen.name for seen in comparison.seen if seen.kind != "same")
            assert first == name, comparison.text()


WRONG_SCORE = against.KINDS["the accuracy of rank 0's share"][0]
LACKED = ["printed", "checkpoint", "gradients", "step", "rank"]
ALSO_LACKED = ["autocast", "indices", "batch", "backward", "collectives", "dropout"]


@pytest.mark.parametrize("probe", table([*LACKED, *ALSO_LACKED], LACKED))
def test_a_probe_that_is_missing(probe: str, crew: Crew, tmp_path: Path) -> None:
    """What needs it is not compared, and that is said; a right script is called no other one."""
    comparison = compared(crew, against.BASE, tmp_path, lacks=probe)["en"]
    print(comparison.text())
    assert comparison.status() == 3 and not comparison.parted()
    assert f"has no {probe}" in comparison.text() or probe in ("gradients", "step")


def test_a_probe_that_no_comparison_needs(crew: Crew, tmp_path: Path) -> None:
    """It is missed by nobody here: nothing is said of it."""
    comparison = compared(crew, against.BASE, tmp_path, lacks="emptied")["en"]
    assert {seen.kind for seen in comparison.seen} == {"same"}, comparison.text()


def test_a_folder_of_distributed_checkpoint(crew: Crew, tmp_path: Path) -> None:
    """Written through streams, a tensor at a time. Those are no files that the other run lacks, nor
    is memory. What that one saves in a file is compared with the folder of the same step."""
    one = 'torch.save({"model": model.state_dict(), "average": average.state_dict()}, "model.pt")'
    folder = (
        "    import io\n"
        "    import torch.distributed.checkpoint as dcp\n"
        "    torch.save(model.state_dict(), io.BytesIO())\n"
        '    dcp.save({"model": model.state_dict()}, checkpoint_id=f"step{epoch}")'
    )
    texts = against.BASE, faults.changed(against.BASE, (f"        {one}", folder))
    for language, comparison in compared(crew, texts, tmp_path).items():
        print(comparison.text())
        [note] = [seen for seen in comparison.seen if seen.kind != "same"]
        assert (note.kind, note.name) == ("note", "saved:folder") and "| step3: 4" in note.text
        assert comparison.status() == 0
        last = {"en": "Nothing differs.", "zh": "没有差别。"}[language]
        assert comparison.text().endswith(last)


def test_lines_of_one_process(crew: Crew, tmp_path: Path) -> None:
    """No rank has a share: what is printed otherwise is no number of a part."""
    texts = [faults.changed(against.BASE, (*against.TIMES, "{mean:.3f} (", f"{{mean + {n}:.3f}} ("))
             for n in (0, 1)]  # fmt: skip
    comparison = compared(crew, tuple(texts), tmp_path, (1, 1))["en"]
    assert comparison.seen[-1].name == "printed", comparison.text()


MEANS = (
    "    totals = torch.zeros(2)\n", "    totals, means = torch.zeros(2), 0.0\n",
    "len(targets)])\n",
    "len(targets)])\n            means += (average(points).argmax(1) == targets).double().mean()\n",
    against.REDUCE, against.REDUCE + "    if world_size == 1:\n"
    "        totals = torch.tensor([means / len(val_loader), 1.0])\n",
)  # fmt: skip


def test_a_mistake_of_the_first_run(crew: Crew, tmp_path: Path) -> None:
    """The old script averages means of batches, of which the last has one sample."""
    text = faults.changed(against.BASE, MEANS)
    for comparison in compared(crew, text, tmp_path).values():
        [seen] = [seen for seen in comparison.seen if seen.kind != "same"]
        assert (seen.kind, seen.name) == ("differs", "printed:first"), comparison.text()
        assert "8, 1" in seen.advice and "A" in seen.advice


@pytest.mark.proof
def test_shorter_epochs(crew: Crew, tmp_path: Path) -> None:
    """A sampler of one's own makes epochs longer, and DistributedSampler takes its place."""
    longer = f"{against.SAMPLER} if world_size > 1 else torch.utils.data.RandomSampler(train_set, "
    words = (against.SAMPLER, f"{longer}replacement=True, num_samples=128)",
             against.SET_EPOCH, "    world_size > 1 and sampler.set_epoch(epoch)\n",
             "4 * len(loader)", "16")  # fmt: skip
    for comparison in compared(crew, faults.changed(against.BASE, words), tmp_path).values():
        differs = [seen.name for seen in comparison.seen if seen.kind == "differs"]
        assert differs == ["steps:shorter"], comparison.text()


def test_figures_that_are_no_numbers() -> None:
    """Of ranks and of runs alike: equal to themselves, and far from all else."""
    nan, inf = float("nan"), float("inf")
    for one in [(nan, nan), (inf, 2.0), (1.0, 1.0)]:
        for other in [(nan, nan), (inf, 2.0), (1.0, 1.0)]:
            assert differ([one], [other]) == (apart(one, other) > 0) == (str(one) != str(other))


@pytest.mark.parametrize("mended", [False, True])
def test_a_case_that_one_run_does_not_show(mended: bool, crew: Crew, tmp_path: Path) -> None:
    """The page of cases shows what it says of nnU-Net's, with numbers in float64."""
    text = "\n".join(all_cases()["nnunet_dice"].branch(mended))
    for language, comparison in compared(crew, text, tmp_path).items():
        page = (ROOT / f"docs/{language}/cases.md").read_text(encoding="utf-8")
        said = [seen.text for seen in comparison.seen if seen.kind == "differs"]
        assert len(said) == comparison.status() == (not mended), comparison.text()
        assert all(re.sub(r"[\d.]+", "", one) in re.sub(r"[\d.]+", "", page) for one in said)


def test_numbers_beside_tensors(crew: Crew, tmp_path: Path) -> None:
    """Of a saved file, they are shown: a best score that differs, and no list of random states."""
    more = '"epoch": epoch, "best": [0.4 / world_size], "random": [0, list(range(world_size, 625))]'
    words = ('"average": average.state_dict()}', f'"average": average.state_dict(), {more}}}')
    comparison = compared(crew, faults.changed(against.BASE, words), tmp_path)["en"]
    [seen] = [seen for seen in comparison.seen if seen.kind != "same"]
    assert seen.name == "saved:numbers" and comparison.status() == 0, comparison.text()
    assert "model.pt, step 4: best.0: 0.4 | 0.2\n" in seen.text
    assert (seen.values["count"], seen.values["all"]) == (4, 12)
    comparison.say("same", "samples:same", count=1, size=1)
    assert comparison.seen[-1].text == "samples: 1 step of 1, of all ranks together"
    comparison.say("note", "printed:known", count=1, all=1, rows="\n    A  after 1 steps")
    assert comparison.seen[-1].text.endswith("after 1 steps")  # as the script has it


MIXED = (
    "nn.ReLU(), ", "nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), ", "model[2]", "model[-1]",
    "DistributedSampler(train_set)",
    "DistributedSampler(train_set) if world_size > 1 else "
    "torch.utils.data.RandomSampler(train_set)",
    "    sampler.set_epoch(epoch)\n", "    world_size > 1 and sampler.set_epoch(epoch)\n",
)  # fmt: skip


@pytest.mark.parametrize("wrong", [False, True])
def test_without(wrong: bool, crew: Crew, tmp_path: Path) -> None:
    """What right runs differ in is taken out of both, and what is wrong is left."""
    text = faults.changed(against.BASE, MIXED)
    if wrong:
        text = faults.changed(text, against.KINDS["loss times the number of ranks"][0])
    comparison = compared(crew, text, tmp_path, without="shuffling,batchnorm,dropout")["en"]
    first = next((seen.name for seen in comparison.seen if seen.kind != "same"), "")
    assert first == ("gradients:processes" if wrong else ""), comparison.text()


@pytest.mark.parametrize("kind", but(against.ORDERS, ALIKE_ORDERS), ids=hyphens)
def test_order_of_the_first_run(kind: str, crew: Crew, tmp_path: Path) -> None:
    words, name = against.ORDERS[kind]
    text = faults.changed(against.BASE, words)
    for comparison in compared(crew, text, tmp_path, without="shuffling").values():
        first = next((seen.name for seen in comparison.seen if seen.kind != "same"), "")
        assert first == name, comparison.text()


@pytest.mark.parametrize(
    "sizes",
    [(2, 3), *(pytest.param(size, marks=pytest.mark.proof) for size in ((2, 2), (3, 1)))],
    ids=str,
)
def test_order_of_several_ranks(sizes: tuple, crew: Crew, tmp_path: Path) -> None:
    """Each run draws another order."""
    seed = 'seed=int(__import__("os").getcwd()[-1])'  # the run's number
    words = ("Points(64, 1)", "Points(60, 1)", "16 // world_size", "12 // world_size",
             "DistributedSampler(train_set)", f"DistributedSampler(train_set, {seed})")  # fmt: skip
    text = faults.changed(against.BASE, words)
    comparison = compared(crew, text, tmp_path, sizes, without="shuffling")["en"]
    assert {seen.kind for seen in comparison.seen} == {"same"}, comparison.text()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((against.SET_EPOCH, ""), {"same_order"}),
        ((against.SAMPLER, f"{against.SAMPLER[:-1]}, rank=0)"),
         {"same_samples", "overlapping_samples"}),
        ((against.SAMPLER, f"{against.SAMPLER[:-1]}, rank=0) if world_size > 1 else "
          "torch.utils.data.SubsetRandomSampler(range(64))", against.SET_EPOCH, ""),
         {"same_samples", "overlapping_samples", "same_order"}),
    ],
    ids=["set_epoch", "rank", "rank-of-one-run"],
)  # fmt: skip
def test_own_order_is_judged(words: tuple, names: set, crew: Crew, tmp_path: Path) -> None:
    """The verdict on the second run is on what its samplers drew, not on what it was given."""
    compared(crew, faults.changed(against.BASE, words), tmp_path, without="shuffling")
    report = Report("en")
    judge(read_ranks(tmp_path / "run1/traces"), report)
    assert {found.id for found in report.findings if found.severity == WRONG} == names


def test_samples_that_ranks_work_on_together(crew: Crew, tmp_path: Path) -> None:
    text = (Path(__file__).parent / "right/expert_parallel.py").read_text()
    comparison = compared(crew, text, tmp_path, (2, 2))["en"]
    assert {seen.name for seen in comparison.seen} >= {"samples:together"}, comparison.text()
    assert "were seen" not in comparison.text()


@pytest.mark.parametrize(
    "kind",
    table(
        against.UNDER_FSDP, ["another limit of the norm", "the loss of rank 0, of divided layers"]
    ),
    ids=hyphens,
)
def test_words_under_fsdp(kind: str, crew: Crew, tmp_path: Path) -> None:
    words, name = against.UNDER_FSDP[kind]
    for comparison in compared(crew, faults.changed(against.BASE, words), tmp_path).values():
        first = next(seen for seen in comparison.seen if seen.kind not in ("same", "note"))
        assert first.name == name, comparison.text()
        assert first.advice == comparison.report.words[f"against:{name}:fsdp"][1]


FOLDER = Path(__file__).parent / "right"
SHARED = (FOLDER / "tensor_parallel_by_hand.py").read_text()
# ZeRO of one's own: the optimizer of each rank has some tensors.
BY_TENSORS = (*BY_TENSORS, "batch_size=9", "batch_size=18 // dist.get_world_size()")
ZERO = faults.changed((FOLDER / "zero_by_hand.py").read_text(), BY_TENSORS)
# The model of each rank is given a part of what all have.
RAYS = (FOLDER / "rays.py").read_text()
TEXTS = (FOLDER / "sequence_halves.py").read_text().replace("Attention(), ", "")
NOT_AVERAGED = "shares of the optimizer, and nothing is averaged"
TEAMS = {
    "a part of each layer": (against.TENSORS, (), [], "8 of 8 steps"),
    "added up twice": (
        against.TENSORS, against.NORMS, ["gradients:team"],
        "2 times as large in B, in 2 of 8 tensors (0.norm.weight, 0.norm.bias)"),
    "a part of the sequence": (
        against.TENSORS, against.SEQUENCE, ["numbers:pending"], "0.norm.bias, 0.norm.weight"),
    "by hand": (SHARED, (), ["numbers:parts"], "(2): 1.down, 1.up"),
    "by hand, added up twice": (
        SHARED, against.BY_HAND, ["numbers:parts", "gradients:team"], "2 times as large in B"),
    "by hand, averaged": (
        SHARED, against.AVERAGED, ["numbers:parts", "gradients:team"], "0.5 times as large in B"),
    "rays of each picture": (RAYS, (), [], "gradients and weights: 24 of 24 steps"),
    "parts of each text": (
        TEXTS, (), ["printed:share"], "gradients and weights: 18 of 18 steps"),
    "parts of each text, cut twice": (
        TEXTS, ("inputs = tok", "tokens = tokens[:, : 4 * (3 - world_size)]\n"
                "            inputs = tok"),
        ["counts", "printed:known"], "losses count 56 targets in A, 24 in B"),
    "shares of the optimizer": (ZERO, (), ["printed:share"], "first weights: 4 tensors"),
    NOT_AVERAGED: (
        ZERO, ("(model(inputs)", "(getattr(model, 'module', model)(inputs)"),
        ["gradients:loss", "printed:known"], "in 4 of 4 tensors"),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    but(
        TEAMS,
        ["rays of each picture", "by hand, added up twice", "by hand, averaged", NOT_AVERAGED],
    ),
    ids=hyphens,
)
def test_ranks_that_share_samples(kind: str, crew: Crew, tmp_path: Path) -> None:
    """What each rank has as a whole is compared, and the norm of what DTensor has divided."""
    text, words, names, said = TEAMS[kind]
    comparison = compared(crew, faults.changed(text, words), tmp_path)["en"]
    assert [seen.name for seen in comparison.seen if seen.kind != "same"] == names
    assert said in comparison.text()
    assert comparison.parted() or comparison.steps == comparison.one.steps()


RIGHT = [path for path in (Path(__file__).parent / "right").glob("[!w]*.py")]
# What right programs say of themselves: each rank takes a whole batch, and the rate grows with it.
OWN_CHOICES = {"batch", "batch:same", "epochs", "rates"}
# Ranks that work on one model together: one alone waits for the others, or raises.
SEVERAL = r"actor|context|stages|pipeline|tensor"
PAIRS = [(path, sizes) for path in RIGHT for sizes in ((1, 2), (2, 2))
         if sizes[0] == 2 or not re.search(SEVERAL, path.stem)]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "sizes"),
    table(
        PAIRS, [pair for pair in PAIRS if pair[0].stem == "unequal_joined" and pair[1] == (2, 2)]
    ),
    ids=lambda value: getattr(value, "stem", None) or "-".join(map(str, value)),
)
def test_accuses_no_right_program(path: Path, sizes: tuple, crew: Crew, tmp_path: Path) -> None:
    without = "shuffling,batchnorm,dropout" if sizes[0] == 1 else ""
    comparison = compared(crew, path.read_text(), tmp_path, sizes, without)["en"]
    differ = {seen.name for seen in comparison.seen if seen.kind == "differs"}
    if path.stem == "own_batch_sampler":
        differ -= {"steps:shorter"}  # of a batch whose size it hides, there are half as many
    assert differ <= (OWN_CHOICES if sizes[0] == 1 else set()), comparison.text()


# A script that asks for types by itself.
TYPES = (
    "average = copy", "model[0].to(torch.float32)\naverage = copy",
    "        losses = nn", "        points = points.to(dtype=torch.bfloat16)\n"
    "        mask = torch.full_like(model[0].weight[:1], torch.finfo(model[0].weight.dtype).min)\n"
    "        points = points + nn.functional.softmax(mask, 1, dtype=torch.float32)\n"
    "        points = points + torch.softmax(mask, 1, dtype=torch.float32)\n"
    "        losses = nn",
    "        loss.backward()\n", "        scaler.scale(loss).backward()\n",
    "        optimizer.step()\n", "        scaler.step(optimizer)\n        scaler.update()\n",
    "for epoch in range(4):\n", "scaler = torch.amp.GradScaler('cpu')\nfor epoch in range(4):\n",
)  # fmt: skip


def one_process(script: str) -> str:
    """The line that starts it as torchrun would, without a torchrun, which imports torch, too."""
    variables = [f"{name}={value}" for name, value in torchrun_environments(1)[0].items()]
    return shlex.join(["env", *variables, sys.executable, script])


def test_command(tmp_path: Path) -> None:
    """The first difference stands in --json, and the place, for which both run once more; in
    float64 nothing but the mistake is in it. (A page has a command that finds no difference, which
    test_site_commands.py runs.)"""
    words = against.KINDS["loss times the number of ranks"][0]
    text = faults.changed(faults.changed(against.BASE, (*MIXED, *TYPES)), words)
    (tmp_path / "script.py").write_text(text)
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    two.append("script.py")
    options = ["--without", "all", "--json", "found.json", "--against", one_process("script.py")]
    result = run_short([sys.executable, ROOT / "doctor", *options, *two], tmp_path)
    assert result.returncode == 1, result.output
    found = json.loads((tmp_path / "found.json").read_text())["against"]
    first = found["first_difference"]
    [place] = [seen for seen in found["seen"] if seen["name"].startswith("where:loss")]
    assert place["name"] == "where:loss:processes" and "script.py:" in place["text"], result.output
    assert (first["name"], first["step"]) == ("gradients:processes", 1), result.output
    assert first["values"]["low"] == pytest.approx(2, rel=1e-12)
    assert first["values"]["high"] == pytest.approx(2, rel=1e-12)


@pytest.mark.proof
def test_command_without_growth(tmp_path: Path) -> None:
    """Weights that are put back are no optimizer that changes nothing."""
    words = (*against.NO_CLIP, *against.BFLOAT16)
    (tmp_path / "script.py").write_text(faults.changed(against.BASE, words))
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--lang", "en", "--without", "growth", "--against", one_process("script.py")]
    result = run_short([sys.executable, ROOT / "doctor", *options, *two, "script.py"], tmp_path)
    assert result.returncode == 0 and "Nothing differs." in result.output, result.output
    assert "Not checked: drifting_weights, untrained (--without" in result.output, result.output


def test_pages_show_it(crew: Crew, tmp_path: Path) -> None:
    """What is said when the two scripts of convert.md are compared; test_where.py has those with a
    mistake."""
    texts = tuple((CONVERT / name).read_text() for name in ("single.py", "multi.py"))
    for language, found in compared(crew, texts, tmp_path, without=",".join(PARTS)).items():
        readme = "README.md" if language == "en" else "README.zh-CN.md"
        for page in (f"docs/{language}/doctor.md", readme):
            shown = but_rounding((ROOT / page).read_text())
            assert f"```text\n{but_rounding(found.text())}\n```" in shown, page


def test_rounding_that_cannot_be_taken_out(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """One line says which part to leave out."""
    words = ("ddp(points)", "ddp(points) @ torch.eye(4, dtype=torch.float32)")
    compared(crew, faults.changed(against.BASE, words), tmp_path, (1, 1), ",".join(PARTS))
    ranks = read_ranks(tmp_path / "run0/traces")

    def ended(_: object, __: object, command: list, job: Job, say: Callable) -> list[Rank]:
        job.ended = "seconds"
        return ranks

    monkeypatch.setattr(command, "run", ended)
    args = Namespace(against="a command", without=",".join(PARTS))
    command.run_in_folder(args, None, ["another"], Report("en").say)
    said = capsys.readouterr().out
    assert "type --without shuffling,batchnorm,dropout,draws,growth\n" in said, said


def test_weights_that_cannot_be_float64(tmp_path: Path) -> None:
    """A script that ends as it loads them, before anything of it was seen."""
    (tmp_path / "script.py").write_text("import torch\n\nraise RuntimeError('no such type')\n")
    options = ["--lang", "en", "--without", "all", "--against", f"{sys.executable} script.py"]
    doctor = [sys.executable, ROOT / "doctor", *options, sys.executable, "script.py"]
    result = run_short(doctor, tmp_path)
    assert (
        "if it loads such, type --without shuffling,batchnorm,dropout,draws,growth\n"
        in result.stdout
    )
    assert result.returncode == 2, result.output
