"""The judge of the tests is up to date: `make proof` runs it, this only looks at it."""

from __future__ import annotations

import re
import sys

from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tests/mutations"))
from mutations import MUTATIONS, stale

IN_MAKE_TEST = 50


def test_every_patch_still_fits() -> None:
    assert not stale(MUTATIONS)


def test_most_are_noticed_by_make_test() -> None:
    """Each patch names tests that exist, and nearly all of those run on every change."""
    folders = sorted({mutation.tests.partition("::")[0] for mutation in MUTATIONS})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", *folders]
    found = {}
    for tier in ("not proof", "proof or not proof"):
        result = run([*collect, "-m", tier], ROOT, 120)
        assert result.returncode == 0, result.output
        found[tier] = set(re.findall(r"^tests/\S+", result.stdout, re.M))
        found[tier] |= {test.partition("[")[0] for test in found[tier]}
    assert not [m.name for m in MUTATIONS if m.tests not in found["proof or not proof"]]
    noticed = [m.name for m in MUTATIONS if m.tests in found["not proof"]]
    assert len(noticed) >= IN_MAKE_TEST, len(noticed)
