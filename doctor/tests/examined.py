"""Scripts under the doctor in warm processes: about a second each, where a launch costs five."""

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import re
import runpy
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from crew import Crew
from harness import ROOT
from probes_lost import assert_nothing_new

from ddp_doctor.attach import attach
from ddp_doctor.checks import judge
from ddp_doctor.findings import NOTE, SILENT
from ddp_doctor.ranks import read_ranks
from ddp_doctor.recorder.hooks import hook
from ddp_doctor.recorder.notes import FOLDER, error_line, notes
from ddp_doctor.report import LANGUAGES, Finding, Report, read_words
from tools.site.verdicts import VERDICTS, all_cases, faults

ATTACHED = set()  # in a crew member: what waits for a module that the script may import
EVENTS = ROOT / "doctor/EVENTS.md"
OLDEST = not hasattr(torch.cpu.Stream, "record_event")  # torch 2.6


def record(script: str, folder: str, without: str, *argv: str) -> None:
    """In a crew member: run a script with the recorder, as a process of its own would.

    without: a probe that is never asked, as if torch had no such name.
    """
    os.chdir(folder)
    sys.argv = [script, *argv]
    os.environ[FOLDER] = f"{folder}/traces"
    multiprocessing.set_start_method("fork", force=True)  # a member's own is another
    if not hasattr(notes, "folder"):
        name_probes()
        importlib.import_module("numpy.random")
        attach("torch", dict(os.environ))
        if OLDEST:  # its gloo may hang there: docs/en/troubleshooting.md#end
            hook("", torch.distributed, "destroy_process_group", lambda *_: time.sleep(0.1))
    fsdp = "torch.distributed.fsdp"
    if fsdp in Path(script).read_text() and "held" not in ATTACHED:
        importlib.import_module(fsdp)
        attach(fsdp, notes.told)
        ATTACHED.add("held")
    from ddp_doctor.recorder import (
        collectives,
        figures,
        given,
        loaders,
        others,
        seeds,
        training,
        written,
    )
    from ddp_doctor.recorder.unset import unset
    from ddp_doctor.recorder.window import window

    notes.begin(dict(os.environ))
    written.OPENED.clear()
    parts = [collectives.trace, loaders.data, figures.figures, given.inputs, others.others, unset]
    for part in [*parts, seeds.seeds, training.training, window]:
        part.__init__()
    gc.collect()  # the modules of the script before
    for module in others.all_modules():  # FSDP keeps some, from C++
        module._parameters.clear()
        module._buffers.clear()
    if without:
        notes.fail(without, without, missing=True)
    if compiler := sys.modules.get("torch._dynamo"):
        compiler.utils.counters.clear()  # what a script before has compiled
    error = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            end_loader_workers(runpy.run_path(script, run_name="__main__"))
    except Exception as raised:
        error = raised
    finally:
        figures.figures.drain(wait=True)
        notes.event("exit", error=repr(error), at=error_line(error))
        notes.active = False


def end_loader_workers(names: dict[str, object]) -> None:
    """Of loaders with persistent_workers. Collected with the script's module, such a loader waits
    five seconds for each: the queue that tells it to end is gone by then."""
    for loader in names.values():
        if iterator := getattr(loader, "_iterator", None):
            iterator._shutdown_workers()


def name_probes() -> None:
    """Each event says by which probe it was written, if one was asked."""
    call, event = notes.call, notes.event
    asked = threading.local()

    def calling(probe: str, *args: object, **kwargs: object) -> None:
        before = getattr(asked, "probe", None)
        asked.probe = probe
        try:
            call(probe, *args, **kwargs)
        finally:
            asked.probe = before

    def telling(what: str, /, **fields: object) -> None:
        event(what, **fields, by=getattr(asked, "probe", None))

    for own in (calling, telling):
        own.__code__ = own.__code__.replace(co_filename="<tests>")  # no line of the script's
    notes.call, notes.event = calling, telling


class Row(NamedTuple):
    fields: set[str]
    writer: str
    probes: list[str]
    readers: list[str]


def contract() -> dict[str, Row]:
    """EVENTS.md: each event's fields, the file that writes it, those that read it, and probes."""
    row = r"^\| (\w+) \| (.*) \| (\w+) \|(?: ([\w, ]+))? \| (.*) \|$"
    found = re.findall(row, EVENTS.read_text(), re.M)
    return {
        event: Row(set(re.findall(r"`(\w+)`", fields)), writer, probes.split(", "), by.split(", "))
        for event, fields, writer, probes, by in found
    }


def assert_contract_kept(folder: Path) -> None:
    """Each event that a run has written has the fields that EVENTS.md names, and no other, and was
    written by a probe that it names."""
    known = contract()
    for line in [line for file in folder.glob("*.jsonl") for line in file.open()]:
        event = json.loads(line)
        row = known[event["e"]]
        fields = set(event) - {"e", "t", "by"}
        missing = row.fields - fields - {"indices", "given", "raw"}
        missing -= {"targets", "items", "shape"}
        assert not missing and fields <= row.fields, event
        assert event.get("by") in (None, *row.probes) or row.probes == [""], event


def examined(
    crew: Crew, script: Path, folder: Path, *argv: str, world_size: int = 2, without: str = ""
) -> dict[str, Report]:
    """The reports, by language."""
    if OLDEST and "fully_shard" in script.read_text():
        pytest.skip("FSDP2 does not train on CPUs in torch 2.6")
    (folder / "traces").mkdir()
    with contextlib.suppress(AssertionError):  # a rank that gloo has aborted
        crew.run(record, str(script), str(folder), without, *argv, world_size=world_size)
    assert_contract_kept(folder / "traces")
    reports = {language: Report(language) for language in LANGUAGES}
    for report in reports.values():
        judge(read_ranks(folder / "traces"), report)
        assert report.say("doctor") not in str(report.not_checked), report.not_checked
    assert_nothing_new(folder / "traces", reports["en"])
    assert_reasons_known(reports["en"])
    return reports


def assert_reasons_known(report: Report) -> None:
    """Why a finding was not looked for is among the reasons that its check names."""
    words = read_words("en")
    for name, why in report.not_checked.items():
        own = SILENT[name] | {"alone", "machines", "steps", "together", "taken_out"}
        says = [words[reason][0].partition("{")[0] for reason in own]
        says += [words[reason][0].partition("{")[0] for reason in ("missing", "failed")]
        assert why.startswith(tuple(says)), f"{name}: {why}"


def examined_text(
    crew: Crew, text: str, folder: Path, world_size: int = 2, without: str = ""
) -> dict[str, Report]:
    script = folder / "script.py"
    script.write_text(text)
    return examined(crew, script, folder, world_size=world_size, without=without)


def shown(request: pytest.FixtureRequest) -> Iterator[Callable]:
    """For a fixture: show(name, findings) compares findings with what pages show of a fault or a
    case; pytest --write-verdicts writes them anew."""
    writes = request.config.getoption("--write-verdicts")
    known = json.loads(VERDICTS.read_text())

    def show(name: str, findings: list[Finding]) -> None:
        rows = []
        for found in findings:
            at = [Path(found.file).name, found.line] if found.file else None
            mild = found.severity == NOTE
            rows.append({"name": found.name, "at": at, "mild": mild, "values": found.values})
        text = json.dumps(rows, ensure_ascii=False)
        rows = json.loads(re.sub(r'/tmp/[^\s"]+/', "", text))  # folders of the test
        if writes:
            known[name] = rows
        assert known.get(name) == rows, "if it should: pytest --write-verdicts"

    yield show
    if writes:
        names = [*faults.FAULTS, *all_cases()]
        lines = [f'  "{name}": {json.dumps(known[name], ensure_ascii=False)}'
                 for name in names if name in known]  # fmt: skip
        VERDICTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def assert_all_ran(folder: Path, report: Report) -> None:
    """All ranks came to the end of the script, and the recorder had no trouble."""
    assert {rank.ended.get("error") for rank in read_ranks(folder / "traces")} == {"None"}
    assert "all" not in report.not_checked, report.not_checked
