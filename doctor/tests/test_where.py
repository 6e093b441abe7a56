"""doctor --against: the place where two runs part."""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import against
import faults
import places
import pytest
import torch
from check_twins import but_rounding
from crew import Crew
from harness import ROOT
from test_against import CONVERT, compared, hyphens, record_compared
from test_doctor import alone
from test_tasks import FOLDER, MISTAKES
from tiers import table

from ddp_doctor import command
from ddp_doctor.against.comparison import Comparison, Seen
from ddp_doctor.against.where import parting, tell_place
from ddp_doctor.without import PARTS


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2) as members:
        yield members


def record_where(step: int, *args: str) -> None:
    """In a crew member: record_compared() of a run whose modules are looked at in this step; 0: a
    run of the first pair."""
    from ddp_doctor.recorder import modules
    from ddp_doctor.recorder.notes import WHERE, notes

    os.environ[WHERE] = str(step)
    os.environ["TORCHDYNAMO_DISABLE"] = str(min(step, 1))
    notes.told = dict(os.environ)
    modules.modules.__init__()
    try:
        record_compared(*args)
    finally:
        del os.environ[WHERE], os.environ["TORCHDYNAMO_DISABLE"]


def located(
    crew: Crew, text: str | tuple, folder: Path, step: int = 1, **more: object
) -> dict[str, tuple[Comparison, list[Seen]]]:
    """What is said of the place, by language: of one pair of runs, which stands for both pairs."""
    found = {}
    for language, comparison in compared(
        crew, text, folder, member=partial(record_where, step), **more
    ).items():
        if parting(comparison):
            tell_place(comparison, comparison)
        found[language] = comparison, [s for s in comparison.seen if s.kind == "where"]
    return found


CORE = {
    "an attention mask that is lost", "dropout of one run", "a head that is cut off",
    "a loss by own counts", "a branch that is detached", "gradients that are added up",
}  # fmt: skip


@pytest.mark.parametrize("kind", table(places.PLACES, CORE), ids=hyphens)
def test_place(kind: str, crew: Crew, tmp_path: Path) -> None:
    words, step, name, part = places.PLACES[kind]
    text = faults.changed(places.BASE, words)
    for comparison, said in located(crew, text, tmp_path, step).values():
        print(comparison.text())
        first = next(seen for seen in comparison.seen if seen.kind != "same")
        assert first.step in (step, None), comparison.text()
        assert [seen.name for seen in said][:1] == ([f"where:{name}"] if name else [])
        if comparison.report.language == "en":
            assert part in (said[0].text if name else first.name), comparison.text()


@pytest.mark.proof
@pytest.mark.parametrize("kind", places.OTHERS, ids=hyphens)
def test_programs_of_other_kinds(kind: str, crew: Crew, tmp_path: Path) -> None:
    words, sizes, name, part = places.OTHERS[kind]
    comparison, said = located(crew, faults.changed(places.BASE, words), tmp_path, sizes=sizes)[
        "en"
    ]
    print(comparison.text())
    assert said[0].name == f"where:{name}" and part in said[0].text, comparison.text()


@pytest.mark.proof
def test_ranks_that_share_samples(crew: Crew, tmp_path: Path) -> None:
    """Of a layer whose parts they have, what is no whole sample is not looked at, and named."""
    text = faults.changed(against.TENSORS, against.NORMS)
    comparison, said = located(crew, text, tmp_path)["en"]
    assert [seen.name for seen in said] == ["where:after", "where:more:unseen"], comparison.text()
    assert "0.norm.weight, 0.norm.bias" in said[0].text and said[1].text.endswith(": 0.up (Linear)")


def pairs(crew: Crew, folder: Path, *texts: str) -> Iterator[Comparison]:
    """Of the first pair of runs, and of the second one."""
    for step, text in enumerate(texts):
        own = folder / f"pair{step}"
        own.mkdir()
        yield compared(crew, text, own, member=partial(record_where, step))["en"]


@pytest.mark.proof
def test_compiled(crew: Crew, tmp_path: Path) -> None:
    """The second pair runs without torch.compile, and does not part."""
    text = faults.changed(places.BASE, places.COMPILED)
    first, again = pairs(crew, tmp_path, text, text)
    assert parting(first) and not parting(again), first.text() + again.text()
    tell_place(first, again)
    [seen] = [seen for seen in first.seen if seen.kind == "where"]
    assert seen.name == "where:compiled" and first.status() == 1, first.text()


def test_a_second_pair(crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not part as the first did, or one of its runs fails, nothing is said of the place;
    with --no-where there is none."""
    wrong = faults.changed(places.BASE, places.PLACES["a factor"][0])
    first, again = pairs(crew, tmp_path, wrong, places.BASE)
    tell_place(first, again)
    ran = []

    def failing(*args: object) -> None:
        ran.append(args)
        sys.exit(2)

    monkeypatch.setattr(command, "run_in_folder", failing)
    for where in (False, True):
        args = Namespace(where=where, against=["a"], command=["b"], without="", steps=30)
        command.look_again(args, None, first, first.report)
    assert len(ran) == 1 and (ran[0][0].steps, ran[0][-1]) == (2, 1)
    names = [seen.name for seen in first.seen if seen.kind == "where"]
    assert names == ["where:failed", "where:other"], first.text()


def test_same_bits(crew: Crew, tmp_path: Path) -> None:
    """Whoever looks at modules changes nothing of the training."""
    words = (
        *places.CHECKPOINT[:3],
        places.CHECKPOINT[3].replace("several", "True"),
        "nn.Dropout(0.0)",
        "nn.Dropout(0.1)",
        "nn.ReLU()",
        "nn.ReLU(inplace=True)",
        "dist.destroy",
        "torch.save(model.state_dict(), f'weights{rank}.pt')\ndist.destroy",
    )
    (tmp_path / "traces").mkdir()
    script = tmp_path / "script.py"
    script.write_text(faults.changed(places.BASE, words))
    weights = []
    for run in ((partial(record_where, 2), "", "", str(script), str(tmp_path), ""),
                (alone, str(script), str(tmp_path))):  # fmt: skip
        crew.run(*run, world_size=2)
        weights.append(torch.load(tmp_path / "weights1.pt"))
    looked = [file for file in tmp_path.glob("traces/*") if '"e": "module"' in file.read_text()]
    assert len(looked) == 2
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_pages_show_it(crew: Crew, tmp_path: Path) -> None:
    """What is said of the scripts of convert.md with a loss that is multiplied."""
    single, multi = ((CONVERT / name).read_text() for name in ("single.py", "multi.py"))
    loss = "cross_entropy(ddp_model(inputs), targets)"
    texts = single, faults.changed(multi, (loss, f"{loss} * world_size"))
    for language, (found, _) in located(crew, texts, tmp_path, without=",".join(PARTS)).items():
        text = re.sub(r"/[^ ]*/script\.py", "multi.py", but_rounding(found.text()))
        page = but_rounding((ROOT / f"docs/{language}/doctor.md").read_text())
        assert f"```text\n{text}\n```" in page, text


# Trainings of the page, whose run on two ranks has a mistake: the step, and the place.
PROGRAMS = {
    "tokens of a rank's own": (
        "language_model", MISTAKES["the mean of each micro-batch's own tokens"][1], "loss:counts",
        "what GPT returns"),
    "a mask of attention": (
        "language_model", ("is_causal=True", "is_causal=False"), "between",
        "blocks.0.qkv (Linear). Then blocks.0.out (Linear)"),
    "a sum that DDP averages": ("vae", MISTAKES["a sum over the batch that DDP averages"][1],
                                "loss:once", "what VAE returns"),
    "a width of noise": ("vae", ("torch.exp(0.5 * logvar)", "torch.exp(logvar)"), "between",
                         "logvar (Linear). Then decoder (Sequential)"),
    "a generator that DDP does not wrap": (
        "gan", MISTAKES["a generator that DDP does not wrap"][1], "after", "in 6 of 6 tensors"),
    "the Dice of a rank's own batch": (
        "segmentation", MISTAKES["the Dice of each rank's own batch"][1], "loss:other", ""),
    "a gather without its gradient": (
        "contrastive", MISTAKES["a gather that leaves out a part of the gradient"][1],
        "loss:once", "what Encoder returns"),
    "nodes of all ranks": ("graph", MISTAKES["every rank trains on the same nodes"][1],
                           "loss:other", ""),
    "patches in another order": (
        "mae", ("self.head(self.decoder(x + ", "self.head(self.decoder(x.flip(1) + "), "between",
        "Then decoder (TransformerEncoder)"),
}  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("kind", PROGRAMS, ids=hyphens)
def test_programs(kind: str, crew: Crew, tmp_path: Path) -> None:
    task, words, name, part = PROGRAMS[kind]
    single, multi = ((FOLDER / task / file).read_text() for file in ("single.py", "multi.py"))
    texts = single, faults.changed(multi, words)
    comparison, said = located(crew, texts, tmp_path, without=",".join(PARTS))["en"]
    print(comparison.text())
    assert said[0].name == f"where:{name}" and part in said[0].text, comparison.text()
