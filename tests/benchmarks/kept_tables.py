"""Tables of the pages, which `python -m benchmarks keep` has written."""

import csv

from benchmarks.__main__ import tables
from benchmarks.script import FOLDER


def assert_kept(table, name):
    """Assert that a file of `benchmarks/measured` has the rows of a table in Markdown."""
    ((_, rows),) = tables(table)
    with (FOLDER / "measured" / name).open(newline="") as file:
        assert list(csv.reader(file)) == rows
