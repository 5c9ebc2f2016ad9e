"""Rows of the tables of Markdown pages, and the text of a method's page.

Nothing here imports Sphinx, so that a test can look for the rows of all pages without it.
"""

import csv
import re
from pathlib import Path

METHOD_PAGES = "docs/methods/pages.csv"
"""Table with the classes, configurations and rows that the page of each method shows."""


def markdown(file: Path) -> str:
    """Text of a page; of a CSV its table."""
    if file.suffix != ".csv":
        return file.read_text()
    with file.open(newline="") as opened:
        head, *rows = csv.reader(opened)
    return "\n".join(as_table(head, rows))


def chosen_rows(text: str, names: list[str], after: str = "") -> tuple[list[str], list[list[str]]]:
    """Head of a page's table, and those of its rows whose first cells begin with a name.

    Args:
        text: Markdown of the page.
        names: Beginnings of first cells, in the order in which the rows are wanted; all rows if
            there are none.
        after: Beginning of one line of the page, its marks left out; the first table below it
            counts. The first table of the page if it is empty.

    Raises:
        ValueError: If ``after`` does not begin exactly one line, or a table or row is missing.
    """
    if after:
        _, *below = re.split(rf"^[#* ]*{re.escape(after)}", text, flags=re.M)
        if len(below) != 1:
            raise ValueError(f"{len(below)} lines begin with {after!r}")
        text = below[0]
    head, *rows = first_table(text)
    if not names:
        return head, rows
    chosen: list[list[str]] = []
    for name in names:
        named = [row for row in rows if plain(row[0]).startswith(name)]
        if not named:
            raise ValueError(f"no row of the table begins with {name!r}")
        chosen += [row for row in named if row not in chosen]
    return head, chosen


def split_row(line: str) -> list[str]:
    """Cells of one line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def plain(cell: str) -> str:
    """Text of a cell without its links and code marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").replace("*", "")


def first_table(text: str) -> list[list[str]]:
    """Rows of the first table of a text, the head first."""
    match = re.search(r"(?:^\|.*\n)+", text + "\n", re.M)
    if match is None:
        raise ValueError("no table follows")
    head, _, *rows = match[0].splitlines()
    return [split_row(line) for line in (head, *rows)]


def as_table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table of these rows."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def as_list(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines that name the column of each cell, for long cells."""
    lines = []
    for first, *cells in rows:
        lines += [f"**{head[0]}**: {first}" if head[0] else f"**{first}**", ""]
        lines += [f"- *{name}*: {cell}" for name, cell in zip(head[1:], cells, strict=True) if cell]
        lines.append("")
    return lines


def heading(text: str) -> list[str]:
    """Lines of a heading in the text of a directive, which has no sections."""
    return [f"```{{rubric}} {text}", ":heading-level: 2", "```", ""]


def rows_block(file: str, names: list[str]) -> list[str]:
    """Lines of a directive that lists rows of a table."""
    return [f"```{{rows}} {file}", ":list:", *([""] if names else []), *names, "```", ""]


def method_page(file: Path, page: str) -> str:
    """Markdown of a method's page: command, classes, what leaves a client, differences, results.

    Args:
        file: The table of the methods' pages, :data:`METHOD_PAGES`.
        page: Name of the page, in the table's first column.

    Raises:
        ValueError: If the table has no row of the page.
    """
    with file.open(newline="") as opened:
        row = next((row for row in csv.DictReader(opened) if row["page"] == page), None)
    if row is None:
        raise ValueError(f"no row of the table is of the page {page!r}")
    names = {key: cell.split(";") if cell else [] for key, cell in row.items()}
    lines = []
    if row["quick"]:
        lines += ["```bash", f"fedbolic run --config {row['quick']}/quick", "```", ""]
    for name in row["classes"].split():
        lines += ["```{eval-rst}", f".. autoclass:: {name}", "   :no-index:", "```", ""]
    lines += heading("What leaves a client")
    if row["configurations"]:
        lines += ["In two rounds of the smallest configuration ([all methods](catalogue.md)):", ""]
        lines += rows_block(
            "benchmarks/measured/methods/configuration.csv", names["configurations"]
        )
    if row["in the clear"]:
        privacy = "[in the clear](../../fedbolic/federated/PRIVACY.md#in-the-clear)"
        lines += [f"Who learns what from it, {privacy}:", ""]
        lines += rows_block("docs/privacy/in_the_clear.csv", names["in the clear"])
    if row["differences"]:
        lines += [
            *heading("What differs"),
            "Apart from this it equals the loop of its paper to rounding:",
            "",
        ]
        lines += rows_block("docs/methods/differences.csv", names["differences"])
    if row["results"]:
        lines += [*heading("Results"), f"From [the table of all rows](../../{row['results']}):", ""]
        lines += rows_block(row["results"], names["rows"])
    return "\n".join(lines)
