"""The judge of the tests is up to date: `make proof` runs it, this only looks at it."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, stale

IN_MAKE_TEST = 50


def test_every_patch_still_fits() -> None:
    assert not stale(MUTATIONS)


def test_most_are_noticed_by_make_test(request: pytest.FixtureRequest) -> None:
    """Each patch names a test that exists, and nearly all of those run on every change."""
    items = request.session.items
    files = {item.nodeid.partition("::")[0] for item in items}
    if sum(mutation.tests.partition("::")[0] in files for mutation in MUTATIONS) < IN_MAKE_TEST:
        pytest.skip("needs the other tests in the same session: make test")
    run_by_test = [item for item in items if not item.get_closest_marker("proof")]
    # xdist writes a test's group behind its name.
    names = {name for item in run_by_test for name in (item.nodeid, item.nodeid.partition("@")[0])}
    names |= {name.partition("[")[0] for name in names}
    noticed = [mutation.name for mutation in MUTATIONS if mutation.tests in names]
    print(f"{len(noticed)} of {len(MUTATIONS)} mutations are noticed by make test")
    assert len(noticed) >= IN_MAKE_TEST, sorted({m.name for m in MUTATIONS} - set(noticed))
