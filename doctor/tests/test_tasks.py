"""docs/examples/tasks: trainings of twelve kinds, each the same on one process and on several, and
each with a mistake of its own kind."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import faults
import pytest
from crew import Crew
from examined import assert_all_ran, examined
from harness import ROOT
from test_against import compared
from tiers import table

from ddp_doctor.against.comparison import Comparison
from ddp_doctor.without import PARTS
from tools.site.pages import wrapped

FOLDER = ROOT / "docs/examples/tasks"
RESULTS = ROOT / "docs/assets/results/doctor"
TASKS = sorted(path.name for path in FOLDER.iterdir())
# What torchvision's detectors differ by on several ranks, taken out of both scripts: images are
# padded to the largest of a rank's batch, and the anchors that train are drawn.
EXACT = (
    "    model = build_model().to(device)\n",
    "    model = build_model().to(device)\n"
    "    model.transform.size_divisible = 96  # pads all images to one size\n"
    "    torch.randperm = lambda count, **_: torch.arange(count)  # the first anchors, not any\n",
)
# Of each kind a mistake: texts of multi.py, what stands there and what stands there instead; and
# the name of what the comparison must say first.
MISTAKES = {
    "the mean of each micro-batch's own tokens": (
        "language_model",
        ("        dist.all_reduce(tokens)\n", "",
         "(loss * world_size).backward()  # DDP divides by world_size", "loss.backward()"),
        "gradients:loss"),
    "images that each rank numbers by itself": (
        "detection", ("in zip(loader.sampler, loader, strict=True)", "in enumerate(loader)"),
        "printed"),
    "an average of the weights on rank 0 alone": (
        "diffusion",
        ("        ema.", "        if rank == 0:\n            ema."), "printed:first"),
    "a rate for a batch that is multiplied by the ranks": (
        "mae", ("BASE_RATE * BATCH", "BASE_RATE * BATCH * world_size"), "rates"),
    "a sum over the batch that DDP averages": (
        "vae", ("(loss * world_size).backward()", "loss.backward()"), "gradients:inverse"),
    "a generator that DDP does not wrap": ("gan", ("ddpG(noise)", "netG(noise)"), "gradients"),
    "the Dice of each rank's own batch": (
        "segmentation",
        ("sum_over_ranks(torch.stack([intersection, cardinality]))", "intersection, cardinality"),
        "gradients:loss"),
    "a gather that leaves out a part of the gradient": (
        "contrastive", ("rows.detach() + (rows - rows.detach()) * world_size", "rows"),
        "gradients:inverse"),
    "the mean of the ranks' error rates": (
        "speech", ("        dist.all_reduce(totals)\n",
                   "        totals = totals / totals[1]\n        dist.all_reduce(totals)\n"),
        "printed"),
    "every rank trains on the same nodes": (
        "graph", ("idx_train[rank::world_size]", "idx_train[: len(idx_train) // world_size]"),
        "gradients:loss"),
    "advantages that each rank normalises by itself": (
        "reinforcement", ("    dist.all_reduce(sums)\n", ""), "gradients"),
    "every rank draws the same samples": (
        "weighted", ("    sampler = Share(sampler, rank, world_size)\n", ""), "longer"),
}  # fmt: skip


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Of runs that are compared, from which much is taken out."""
    with Crew(3) as members:
        yield members


@pytest.fixture(scope="module")
def plain_crew() -> Iterator[Crew]:
    with Crew(2) as members:
        yield members


@pytest.mark.proof
@pytest.mark.right
@pytest.mark.parametrize("script", [f"{task}/multi.py" for task in TASKS])
def test_nothing_to_say(script: str, plain_crew: Crew, tmp_path: Path) -> None:
    report = examined(plain_crew, FOLDER / script, tmp_path)["en"]
    assert_all_ran(tmp_path, report)
    assert not report.findings, report.findings


SAYS = {
    "en": "All {tasks} pairs, on 2 and on 3 processes: `Nothing differs.`, {least} to {most} steps "
    "compared, apart by {apart:g} at most, in float64.",
    "zh": "全部 {tasks} 对脚本，2 个和 3 个进程：`没有差别。`，各比较 {least} 到 {most} 步，"
    "相差不超过 {apart:g}（float64）。",
}


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest) -> Iterator[Callable]:
    """show(task, size, comparisons) compares them with what tasks.md shows; pytest
    --write-verdicts writes it anew."""
    writes = request.config.getoption("--write-verdicts")
    file = RESULTS / "tasks.json"
    known = json.loads(file.read_text()) if file.exists() else {}

    def show(task: str, key: str, said: object) -> None:
        if writes:
            known.setdefault(task, {})[key] = said
        there = known[task][key]
        rounding = r"[\d.]+e-\d+"
        assert re.sub(rounding, "", str(there)) == re.sub(rounding, "", str(said)), (
            "if it should: pytest --write-verdicts"
        )

    yield show
    if not writes:
        return
    file.write_text(json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    each = [row[size].split(", ") for row in known.values() for size in ("2", "3")]
    counts, worst = [int(steps) for steps, _ in each], max(float(apart) for _, apart in each)
    numbers = {"tasks": len(known), "least": min(counts), "most": max(counts), "apart": worst}
    for language, says in SAYS.items():
        parts = ["<!-- results -->", says.format(**numbers)]
        for task, row in sorted(known.items()):
            if language in row:
                parts += [f"<!-- {task} -->", "```text", *wrapped(row[language]), "```"]
        (RESULTS / f"tasks.{language}.md").write_text("\n".join(parts) + "\n")


def compare(
    crew: Crew,
    task: str,
    folder: Path,
    size: int,
    mistake: tuple = (),
    both: tuple = (),
    names: tuple = ("single.py", "multi.py"),
) -> dict[str, Comparison]:
    """By language: the task's single.py on one process with its multi.py on so many, or other two.

    mistake: texts that are changed in multi.py. both: texts that are changed in both.
    """
    single, multi = ((FOLDER / task / name).read_text() for name in names)
    texts = faults.changed(single, both), faults.changed(faults.changed(multi, both), mistake)
    comparisons = compared(crew, texts, folder, (1, size), ",".join(PARTS))
    print(comparisons["en"].text())
    return comparisons


RIGHT = [(task, size) for task in TASKS for size in (2, 3)]


@pytest.mark.parametrize(("task", "size"), table(RIGHT, [("diffusion", 2)]))
def test_is_the_same_training(
    task: str, size: int, crew: Crew, tmp_path: Path, shown: Callable
) -> None:
    both = EXACT if task == "detection" else ()
    comparison = compare(crew, task, tmp_path, size, both=both)["en"]
    others = {seen.name for seen in comparison.seen if seen.kind != "same"}
    assert others <= {"rounded"}, comparison.text()
    assert "Nothing differs." in comparison.text() and comparison.status() == 0
    numbers = next(seen for seen in comparison.seen if seen.name.startswith("numbers:"))
    steps = re.search(r"(\d+) of \1 steps", numbers.text)[1]
    shown(task, str(size), f"{steps}, {numbers.values.get('largest') or 0:.0e}")


LM = "09_language_model"
TINY = "--synthetic 3000 --width 32 --layers 2 --heads 4 --context 16 --sample 0 --print-freq 1"
TINY += " --batch-size 12 --steps 20 --eval-steps 10 --lr 0.01"
MESHES = {
    "shard": (2, ""),
    "shard of 3": (3, "--recompute --accumulate 2"),
    "replicas": (2, "--replicas 2"),
    "sequence": (2, "--sequence 2"),
}


@pytest.mark.proof
@pytest.mark.parametrize("mesh", MESHES)
def test_chapter_09_is_the_same_training(mesh: str, crew: Crew, tmp_path: Path) -> None:
    """Against one process. Where sequences are divided a rank's rows are no whole ones, so that the
    doctor compares nothing but what is printed, and says so."""
    size, flags = MESHES[mesh]
    text = (ROOT / LM / "main.py").read_text()
    texts = [
        faults.changed(text, ("    main()\n", f"    main({[*TINY.split(), *more.split()]})\n"))
        for more in ("", flags)
    ]
    found = compared(crew, tuple(texts), tmp_path, (1, size), ",".join(PARTS))["en"]
    print(found.text())
    assert "lines of rank 0 with the same numbers, to rounding: 23" in found.text()
    if mesh == "sequence":
        assert found.status() == 3 and "rows of other types or shapes" in found.text()
    else:
        assert found.status() == 0 and "Nothing differs." in found.text()


@pytest.mark.proof
@pytest.mark.parametrize("size", [2, 3])
def test_a_detector_as_people_write_it(size: int, crew: Crew, tmp_path: Path) -> None:
    comparison = compare(crew, "detection", tmp_path, size)["en"]
    first = next(seen for seen in comparison.seen if seen.kind != "same")
    assert (first.kind, first.name) == ("cause", "drawn:still"), comparison.text()
    assert "torchvision/models/detection/" in first.text
    assert comparison.status() == 0


WRONG = [(kind, size) for kind in MISTAKES for size in (2, 3)]


IN_SHORT = [("a gather that leaves out a part of the gradient", 2)]


@pytest.mark.parametrize(("kind", "size"), table(WRONG, IN_SHORT))
def test_a_mistake_of_its_kind(
    kind: str, size: int, crew: Crew, tmp_path: Path, shown: Callable
) -> None:
    task, mistake, name = MISTAKES[kind]
    both = EXACT if task == "detection" else ()
    for language, comparison in compare(crew, task, tmp_path, size, mistake, both).items():
        first = next(seen for seen in comparison.seen if seen.kind not in ("same", "note"))
        assert (first.kind, first.name) == ("differs", name), comparison.text()
        assert comparison.status() == 1
        if size == 2:
            lines = comparison.text().splitlines()
            begin = lines.index(next(one for one in lines if first.text.splitlines()[0] in one))
            end = begin + 1
            while end < len(lines) and lines[end].startswith("  "):
                end += 1
            shown(task, language, lines[begin:end])


@pytest.mark.proof
def test_batches_that_are_fetched_in_groups_are_all_compared(crew: Crew, tmp_path: Path) -> None:
    """A run that is stopped in its first epoch, with batches that nothing was learned from."""
    line = "        while group := list(islice(batches, ACCUMULATE)):\n"
    stop = "            if len(group) < ACCUMULATE:\n                raise SystemExit(1)\n"
    comparison = compare(crew, "language_model", tmp_path, 2, both=(line, line + stop))["en"]
    assert "samples: 10 steps of 24" in comparison.text()


def test_each_kind_has_a_mistake() -> None:
    assert sorted(task for task, _, _ in MISTAKES.values()) == TASKS
