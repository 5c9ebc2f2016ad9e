"""Tables of the scores of clients, against numpy."""

import numpy as np
import pytest

from fedbolic.core.rows import Row
from fedbolic.report.client_table import client_cells, worst_tenth

SEEDS = pytest.mark.parametrize("seed", range(4))


@SEEDS
@pytest.mark.parametrize("num", [1, 9, 10, 11, 40])
def test_the_worst_tenth_is_the_mean_below_a_quantile(seed, num):
    values = np.random.default_rng(seed).random(num)
    limit = np.quantile(values, 0.1, method="inverted_cdf")  # the value of rank ceil(num / 10)
    assert worst_tenth(values.tolist()) == pytest.approx(values[values <= limit].mean())


@SEEDS
def test_cells_are_means_and_deviations_over_seeds_of_quantiles_over_clients(seed):
    values = np.random.default_rng(seed).random((3, 20))
    runs = [[Row(2, i, "a", float(v)) for i, v in enumerate(one)] for one in values]
    runs[0].append(Row(1, 0, "a", 9.0))  # of an earlier round
    head, line = client_cells({"x": runs, "none": [[Row(1, 0, "b", 1.0)]]}, "a")
    found = dict(zip(head, line, strict=True))
    for name, level in (("minimum", 0.0), ("25 %", 0.25), ("50 %", 0.5), ("maximum", 1.0)):
        each = 100 * np.quantile(values, level, axis=1)
        assert found[name] == f"{each.mean():.1f} ± {each.std(ddof=1):.1f}"
    each = 100 * np.sort(values, axis=1)[:, :2].mean(axis=1)
    assert found["worst 10 %, mean"] == f"{each.mean():.1f} ± {each.std(ddof=1):.1f}"
    assert (found["%"], found["clients"]) == ("x", "20")


def test_seeds_may_differ_in_their_number_of_clients():
    runs = [[Row(1, i, "a", 0.5) for i in range(num)] for num in (4, 2, 3)]
    assert client_cells({"x": runs}, "a")[1][-1] == "2 to 4"
    assert client_cells({"x": [[]]}, "a") == []
