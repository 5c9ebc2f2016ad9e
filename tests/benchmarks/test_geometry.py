"""The benchmark of the geometry: its table has its figures, and every timed operation runs."""

from pathlib import Path

import pytest

from benchmarks.geometry import operations as geometry
from benchmarks.geometry.__main__ import text
from benchmarks.results import Results
from tests.benchmarks.kept_tables import assert_kept

ROOT = Path(__file__).parents[2]
TIMED = geometry.timed(6, 2)


def test_the_table_shows_the_figures_kept():
    results = Results(ROOT / "benchmarks/measured/geometry.csv")
    assert results.known.keys() >= {(size, name) for size in geometry.SIZES for name in TIMED}
    table, _, met = text(results).partition("\n\n")
    assert_kept(table, "geometry/operation.csv")
    assert met.removesuffix(".") in (ROOT / "benchmarks/README.md").read_text()


@pytest.mark.parametrize("operation", TIMED)
def test_a_timed_operation_has_one_result_in_every_library(operation):
    by = TIMED[operation]
    assert geometry.OURS in by
    for made in by.values():
        for _, call in geometry.passes(made):
            call()
    if operation not in ("hyperboloid Linear", "hyperboloid Adam", "ball Adam"):
        ours, *others = (function(*given) for function, given in by.values())
        for other in others:
            assert (ours - other).abs().max() < 1e-4
