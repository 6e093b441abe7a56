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
