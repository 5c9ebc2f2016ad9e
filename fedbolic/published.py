"""Numbers that others published, with the table they were read from."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PUBLISHED = "published.csv"
"""The file in a sweep's folder that holds the numbers to be shown beside ours."""


class PublishedNumber(NamedTuple):
    """One number: of which row, in which setting, under which column, and where it stands."""

    row: str
    setting: str
    column: str
    value: str
    source: str


def read_published(file: Path, setting: str | None = None) -> list[PublishedNumber]:
    """The numbers of a CSV file, those of one setting if it is named.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If columns are missing, or the file has no such setting.
    """
    with file.open(newline="") as stream:
        try:
            reader = csv.DictReader(stream)
            missing = set(PublishedNumber._fields) - set(reader.fieldnames or ())
            lines = list(reader)
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{file} is no table of published numbers ({error})") from error
    if missing:
        raise ValueError(f"{file} lacks the columns {sorted(missing)}")
    numbers = [
        PublishedNumber(**{name: row[name] or "" for name in PublishedNumber._fields})
        for row in lines
    ]
    settings = {number.setting for number in numbers}
    if setting is not None and setting not in settings:
        raise ValueError(f"{file} has no setting {setting!r}, but {sorted(settings)}")
    return [number for number in numbers if setting in (None, number.setting)]


def write_published(numbers: Sequence[PublishedNumber], folder: Path) -> None:
    """Keep the numbers in a sweep's folder, if there are any."""
    if numbers:
        with (folder / PUBLISHED).open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows([PublishedNumber._fields, *numbers])
