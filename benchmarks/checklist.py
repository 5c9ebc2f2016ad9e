"""The figures and tables of the published papers, each with its command and what is missing."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.script import FOLDER

FILE = FOLDER / "checklist.csv"
"""The list. Drawings of ideas, and lists of settings, are left out."""

PAGES = {
    name: f"../../{name.lower()}/README.md" for name in ("HyperFed", "FlatLand", "FedHull", "FlyNN")
}
"""Page of each system, seen from the page of the checklist."""


class Entry(NamedTuple):
    """A figure or table of a paper, or one number of it.

    Args:
        paper: Name of the system.
        part: Figure or table.
        what: Quantity, data and size; other data than the paper's and fewer rounds are named.
        command: Command that prints or draws it; empty if there is none.
        published: The published value; ``drawing`` if the paper has no number.
        ours: Our value; empty if it was not measured.
        where: File with our value, from the root of the repository.
        needs: What the paper's own size lacks here: ``GPU`` if it takes days of two cores, and
            ``data``; empty if nothing is missing.
    """

    paper: str
    part: str
    what: str
    command: str
    published: str
    ours: str
    where: str
    needs: str

    @property
    def gap(self) -> str:
        """Our value less the published one; empty unless both begin with a single number."""
        found = [re.fullmatch(r"(-?[\d.]+)( ±.*|,.*)?", x) for x in (self.published, self.ours)]
        if not all(found):
            return ""
        published, ours = (match[1] for match in found if match)
        digits = max(len(text.partition(".")[2]) for text in (published, ours))
        return f"{float(ours) - float(published):+.{digits}f}"


def entries(file: Path = FILE) -> Iterator[Entry]:
    """All entries, in the order of the file."""
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            yield Entry(**row)


def checklist() -> str:
    """The entries as CSV, with links for the site."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["paper", "part", "what", "command", "published", "ours", "gap", "needs"])
    for entry in entries():
        ours = f"[{entry.ours}](../../{entry.where})" if entry.ours else ""
        command = f"`{entry.command}`" if entry.command else ""
        paper = f"[{entry.paper}]({PAGES[entry.paper]})"
        what = (paper, entry.part, entry.what, command)
        rows.writerow([*what, entry.published, ours, entry.gap, entry.needs])
    return text.getvalue()
