"""The directive ``rows``: some rows of a table that stands on a page of the repository."""

import re
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from repository_links import Repository
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


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
        lines += [f"**{head[0]}**: {first}", ""]
        lines += [f"- *{name}*: {cell}" for name, cell in zip(head[1:], cells, strict=True) if cell]
        lines.append("")
    return lines


class RowsDirective(SphinxDirective):
    """Rows of a page's table whose first cells begin with one of the names.

    The argument is the path of the page from the root of the repository. ``after`` is a text of
    the page: the first table after it counts. ``list`` gives the cells as a list.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"after": directives.unchanged, "list": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Parse the chosen rows as Markdown of the site."""
        repository = Repository(Path(self.env.srcdir).parent, self.config.repository_url)
        file = repository.root / self.arguments[0]
        self.env.note_dependency(str(file))
        after = self.options.get("after", "")
        _, found, text = file.read_text().partition(after) if after else ("", "x", file.read_text())
        if not found:
            raise self.error(f"{file} does not contain {after!r}")
        head, *rows = first_table(text)
        chosen = []
        for name in self.content:
            named = [row for row in rows if plain(row[0]).startswith(name)]
            if not named:
                raise self.error(f"no row of the table in {file} begins with {name!r}")
            chosen += [row for row in named if row not in chosen]
        lines = (as_list if "list" in self.options else as_table)(head, chosen)
        return self.parse_text_to_nodes(repository.linked("\n".join(lines), file.parent))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("rows", RowsDirective)
    return {"parallel_read_safe": True}
