"""The kept table of methods equals the output of its command."""

import csv

import pytest
import torch

from benchmarks.methods.__main__ import COLUMNS, measure_method, numbers
from benchmarks.methods.quick import NAMES
from benchmarks.script import FOLDER
from tests.subjects import QUICK

with (FOLDER / "measured" / "methods" / "configuration.csv").open(newline="") as file:
    HEAD, *TABLE = (tuple(row) for row in csv.reader(file))


def test_the_table_has_a_row_for_every_quick_configuration():
    assert HEAD == COLUMNS
    assert [row[0] for row in TABLE] == [f"`{n}`" for n in NAMES]
    assert sorted(NAMES) == sorted(QUICK)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_the_table_is_what_the_command_prints(name):
    renew = "renew it by `python -m benchmarks.methods | python -m benchmarks keep methods`"
    assert measure_method(name).cells() in TABLE, renew


def test_numbers_count_the_leaves_of_every_part():
    values = {"a": {"x": torch.zeros(2, 3), "y": {"z": 1}}, "b": 2.0, "c": {}, "d": torch.zeros(0)}
    assert numbers(values) == "a 7, b 1"
