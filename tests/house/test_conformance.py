"""Every method against the algorithm of its paper, written out in plain PyTorch."""

import csv
import re
from pathlib import Path

import pytest

from tests.conformance.loop import BOUND
from tests.conformance.table import LOOPS


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("name", LOOPS)
def test_four_rounds_are_those_of_the_paper(name, rate):
    gaps = LOOPS[name].gaps(rate)
    assert max(gaps.values()) <= BOUND, gaps


@pytest.mark.parametrize("name", LOOPS)
def test_every_other_setting_is_another_algorithm(name):
    assert sorted(LOOPS[name].without_effect()) == sorted(LOOPS[name].inert)


def test_every_loop_has_a_row_in_the_table_of_differences():
    with (Path(__file__).parents[2] / "docs/methods/differences.csv").open(newline="") as file:
        named = {name for row in csv.reader(file) for name in row[0].split(", ")}
    names = {re.split(", | on ", name)[0] for name in LOOPS}
    assert names - named == {"FedAvgM", "Local"}, "both are FedAvg"
