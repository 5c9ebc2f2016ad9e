"""The benchmark of searches: its page shows its figures, and every row that is installed runs."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks import search
from benchmarks.results import Results
from benchmarks.script import FOLDER
from fedbolic.manifolds import Poincare
from tests.benchmarks.kept_tables import assert_kept


def test_the_kept_tables_are_those_of_the_figures():
    results = Results(FOLDER / "measured/search.csv")
    assert len(results.known) > 20
    indices, goals = search.text(results).split("\n\n", 1)
    assert_kept(indices, "search/indices.csv")
    assert_kept(goals, "search/goal.csv")


def test_half_of_the_queries_are_rows_and_half_lie_at_distance_one():
    points = torch.rand(300, 5, generator=torch.Generator().manual_seed(0)).double() / 3
    nearest = Poincare().cdist(search.queries_of(points), points)
    rows = nearest.min(dim=1).values < 1e-12
    assert rows[:100].all()
    assert not rows[100:].any()
    assert ((nearest[100:] - 1).abs().min(dim=1).values < 1e-9).all()


@pytest.mark.parametrize("kind", search.KINDS)
def test_every_row_is_measured(kind):
    package, _, make = search.KINDS[kind]
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    points = torch.rand(400, 5, generator=torch.Generator().manual_seed(0)).double() / 3
    found = search.measure(make, points, search.queries_of(points)[90:110])
    assert found["recall"] > 0.9
    assert found["exact"] == (kind == search.EXACT)
