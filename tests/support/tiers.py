"""Which rows of a table `make test` runs, see tests/README.md."""

from collections.abc import Collection, Iterable

import pytest


def table(cases: Iterable, core: Collection) -> list:
    """The rows for pytest.mark.parametrize: those in core for `make test`, the others for `make
    proof`. A row is a tuple, or the value of a table with one column."""
    rows, known = [], list(cases)
    for case in known:
        marks = () if case in core else (pytest.mark.proof,)
        values = case if isinstance(case, tuple) else (case,)
        rows.append(pytest.param(*values, marks=marks))
    missing = [case for case in core if case not in known]
    assert not missing, f"no such rows: {missing}"
    return rows


def but(cases: Iterable, proof: Collection) -> list:
    """The same where fewer rows are in proof, for `make proof`, than are not."""
    known = list(cases)
    missing = [case for case in proof if case not in known]
    assert not missing, f"no such rows: {missing}"
    return table(known, [case for case in known if case not in proof])
