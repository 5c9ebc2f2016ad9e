"""The table of layouts by slots: the page has what the file of figures gives."""

import pytest

from benchmarks.hierarchies.slots import (
    ROWS,
    SETTINGS,
    SLOT_FIGURES,
    TOO_DEEP,
    measure_layout,
    slots_table,
)
from benchmarks.results import Results
from fedbolic.data import BalancedTree, CommonLevels, PartitionedHierarchy
from tests.benchmarks.kept_tables import assert_kept


def test_the_figures_of_the_page_are_those_of_the_file():
    known = Results(SLOT_FIGURES, quiet=True).known
    assert set(known) == {(s, r) for s in SETTINGS for r in ROWS} - TOO_DEEP
    assert_kept(slots_table(known), "hierarchies/slots.csv")


@pytest.mark.parametrize("row", ["equal slots", "parents first"])
def test_a_balanced_tree_is_measured(row):
    found = measure_layout(ROWS[row], PartitionedHierarchy(BalancedTree(3, 3), CommonLevels(3)))
    assert found["map"] == 100
    assert (found["direct"] == 100) == (row == "parents first")
    assert found.keys() == {"map", "direct", "radius"}
