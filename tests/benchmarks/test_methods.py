"""The table of methods: the page equals the output of its command."""

from pathlib import Path

import pytest
import torch

from benchmarks.methods import COLUMNS, measure_method, numbers
from benchmarks.quick import NAMES
from tests.subjects import QUICK

PAGE = Path(__file__).parents[2] / "fedbolic" / "methods" / "README.md"
BEGIN = PAGE.read_text().index("| configuration |")
TABLE = PAGE.read_text()[BEGIN:].partition("\n\n")[0].splitlines()


def test_the_page_has_a_row_for_every_quick_configuration():
    assert TABLE[0] == f"| {' | '.join(COLUMNS)} |"
    assert [row.split(" | ")[0] for row in TABLE[2:]] == [f"| `{n}`" for n in NAMES]
    assert sorted(NAMES) == sorted(QUICK)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_the_page_is_what_the_command_prints(name):
    expected = f"| {' | '.join(measure_method(name).cells())} |"
    assert expected in TABLE, f"renew the page by `python -m benchmarks.methods`: {expected}"


def test_numbers_count_the_leaves_of_every_part():
    values = {"a": {"x": torch.zeros(2, 3), "y": {"z": 1}}, "b": 2.0, "c": {}, "d": torch.zeros(0)}
    assert numbers(values) == "a 7, b 1"
