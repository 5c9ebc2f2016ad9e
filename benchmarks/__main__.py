"""The list of benchmarks, from their docstrings: ``python -m benchmarks``.

``python -m benchmarks keep NAME`` reads what a benchmark printed and writes each of its tables
to a CSV in ``benchmarks/measured/NAME``. ``python -m benchmarks papers`` prints the
checklist of the published papers.
"""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.checklist import checklist
from benchmarks.script import FOLDER, scripts
from benchmarks.table import head, line


def tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Name and rows of each Markdown table of a text.

    A table has the name of the bold line above it, or of its first column, in the letters,
    digits and hyphens of a file's name.

    Args:
        text: What a benchmark printed.
    """
    for found in re.finditer(r"(?:\*\*(.+?)\*\*.*\n\n)?((?:^\|.*\n)+)", text + "\n", re.M):
        first, _, *rest = found[2].splitlines()
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in (first, *rest)]
        title = found[1] or rows[0][0] or "table"
        yield re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-"), rows


def keep(text: str, folder: Path) -> None:
    """Write each table of a text to a CSV; tables of one name are numbered from the second on.

    Args:
        text: What a benchmark printed.
        folder: Folder of the files; it is made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen: list[str] = []
    for name, rows in tables(text):
        seen.append(name)
        number = seen.count(name)
        file = folder / f"{name}{f'-{number}' if number > 1 else ''}.csv"
        with file.open("w", newline="") as lines:
            csv.writer(lines, lineterminator="\n").writerows(rows)


def main(*words: str) -> None:
    """Print a line for every benchmark: its name, what it prints, and how long that takes.

    Args:
        words: ``keep`` and a benchmark's name, to keep the tables on standard input instead;
            ``papers`` to print the checklist.
    """
    match words:
        case ():
            print(head("python -m benchmarks.", "prints", "takes"))
            for script in scripts():
                print(line(*script))
        case ("papers",):
            print(checklist(), end="")
        case ("keep", name):
            keep(sys.stdin.read(), FOLDER / "measured" / name)
        case _:
            sys.exit("python -m benchmarks lists them, python -m benchmarks keep NAME keeps tables")


if __name__ == "__main__":
    main(*sys.argv[1:])
