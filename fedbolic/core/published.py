"""Published results of other work, with their sources."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedbolic.core.reading import lines, open_file, table_rows

PUBLISHED = "published.csv"
"""File of a sweep's folder with the published numbers to show next to its own results."""


class PublishedNumber(NamedTuple):
    """One published number, with its row, setting, column and source."""

    row: str
    setting: str
    column: str
    value: str
    source: str


def read_published(file: Path, setting: str | None = None) -> list[PublishedNumber]:
    """Read the published numbers of a CSV file, optionally of a single setting.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not a CSV table, lacks columns, or lacks the setting.
    """
    with open_file(file) as stream:
        rows = table_rows(lines(stream, str(file)), str(file), delimiter=",")
        _, head = next(rows, (0, []))
        if missing := set(PublishedNumber._fields) - set(head):
            raise ValueError(f"{file} lacks the columns {sorted(missing)}")
        places = [head.index(name) for name in PublishedNumber._fields]
        numbers = []
        for line, row in rows:
            if len(row) > len(head):
                raise ValueError(f"{file}, line {line}: {len(row)} cells for {len(head)} columns")
            row += [""] * (len(head) - len(row))
            numbers.append(PublishedNumber(*(row[place] for place in places)))
    settings = {number.setting for number in numbers}
    if setting is not None and setting not in settings:
        raise ValueError(f"{file} has no setting {setting!r}, only {sorted(settings)!s:.400}")
    return [number for number in numbers if setting in (None, number.setting)]


def write_published(numbers: Sequence[PublishedNumber], folder: Path) -> None:
    """Save published numbers in a sweep's folder; nothing is written if there are none."""
    if numbers:
        with (folder / PUBLISHED).open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows([PublishedNumber._fields, *numbers])
