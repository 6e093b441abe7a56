"""A checker may be silent, and must not be wrong, on a torch that lacks what it attaches to.

That no finding appears without a probe's events, examined.py asks of every run of these tests.
"""

import shutil
import sys
from pathlib import Path

import faults
import pytest
import torch
from crew import Crew
from examined import examined_text
from harness import ROOT, run
from probes_lost import COMPARED, EVERY, GOES, NAMES

import ddp_doctor.against.comparison  # noqa: F401  what it compares is in FACTS then
from ddp_doctor.findings import CHECKS, FACTS, needs_of
from ddp_doctor.recorder.hooks import attach
from ddp_doctor.recorder.notes import FOLDER, notes
from ddp_doctor.recorder.probes import PROBES
from ddp_doctor.recorder.training import is_norm

LIVE = sorted(NAMES - {"horovod"})
PROOF = [name for name in LIVE if name not in ("indices", "collectives", "step")]


def test_every_check_names_its_probes() -> None:
    """Those that there are, and each probe is needed; by a comparison of two runs, too."""
    # A finding names another line without them, or none.
    places = {"loader_made", "optimizer_made", "seed"}
    needed = set().union(*(needs_of(check, name) for check in CHECKS for name in check.names))
    assert needed - {"all"} == NAMES - places
    assert GOES.keys() == NAMES
    needed = set().union(*FACTS.values()) - {"all"}
    assert COMPARED <= needed <= EVERY


@pytest.mark.parametrize(
    "probe",
    [pytest.param(name, marks=pytest.mark.proof if name in PROOF else ()) for name in LIVE],
)
def test_without(probe: str, crew: Crew, tmp_path: Path) -> None:
    """It is never asked: nothing is found in a right script, and what needs it is not checked."""
    report = examined_text(crew, faults.RIGHT.read_text(), tmp_path, without=probe)["en"]
    assert report.findings == []
    lacking = {n for check in CHECKS for n in check.names if probe in needs_of(check, n)}
    why = f"torch {torch.__version__} has no {probe}"
    assert lacking == {name for name, said in report.not_checked.items() if said == why}


def test_a_loader_that_cannot_be_told(crew: Crew, tmp_path: Path) -> None:
    """Its passes are not told either: the checks say so, and the others stand."""
    given = "train_set, batch_size=8, sampler"
    workers = "num_workers=__import__('numpy').int64(0)"  # no number of JSON
    words = (given, given.replace("sampler", f"{workers}, sampler"))
    report = examined_text(crew, faults.changed(faults.RIGHT.read_text(), words), tmp_path)["en"]
    assert report.findings == [] and "shared_file" in report.checked
    assert "the recorder had a problem: TypeError" in report.not_checked["same_samples"]


def attach_to_nothing(folder: str) -> list[str]:
    """In a crew member: a torch without any of the names; which probes tell so?"""
    notes.begin({FOLDER: folder})
    attach(tuple(probe._replace(target=f"{probe.target}_gone") for probe in PROBES))
    notes.active = False
    return sorted(notes.failed)


def test_each_is_attached_by_itself(tmp_path: Path) -> None:
    with Crew(1) as crew:
        [failed] = crew.run(attach_to_nothing, str(tmp_path))
    assert failed == sorted({probe.name for probe in PROBES})


def test_status_of_a_run_that_lacks_a_probe(tmp_path: Path) -> None:
    """3, so that nobody's CI stays green unchecked."""
    copy = shutil.copytree(ROOT / "doctor/ddp_doctor", tmp_path / "doctor")
    table = copy / "recorder/probes.py"
    gone = "torch.serialization.gone"
    table.write_text(table.read_text().replace("torch.serialization.save", gone))
    (tmp_path / "script.py").write_text(
        "import torch\nlist(torch.utils.data.DataLoader(torch.ones(5, 2)))\n"
    )
    result = run([sys.executable, copy, "--lang", "en", sys.executable, "script.py"], tmp_path)
    assert result.returncode == 3, result.output
    said = f"shared_file, wrapped_keys (torch {torch.__version__} has no {gone})"
    assert said in result.stdout, result.output


def test_whose_statistics_are_batchnorms() -> None:
    """A normaliser of the script's own may have the names of torch's; it is none."""

    class Normalizer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(2))
            self.register_buffer("running_var", torch.ones(2))

    class BatchNormOfALibrary(Normalizer):
        pass

    norms = [torch.nn.BatchNorm1d(2), torch.nn.SyncBatchNorm(2), BatchNormOfALibrary()]
    assert all(map(is_norm, norms)) and not is_norm(Normalizer()) and not is_norm(torch.nn.ReLU())
