"""The directive ``rows``: some rows of a table that stands on a page of the repository."""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from page_tables import as_list, as_table, chosen_rows
from repository_links import Repository
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class RowsDirective(SphinxDirective):
    """Rows of a page's table whose first cells begin with one of the names.

    The argument is the path of the page from the root of the repository. ``after`` begins
    one line of the page: the first table below it counts. ``list`` gives the cells as a list.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"after": directives.unchanged, "list": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Parse the chosen rows as Markdown of the site."""
        repository = Repository(Path(self.env.srcdir).parent, self.config.repository_url)
        file = repository.root / self.arguments[0]
        self.env.note_dependency(str(file))
        try:
            head, chosen = chosen_rows(
                file.read_text(), list(self.content), self.options.get("after", "")
            )
        except ValueError as error:
            raise self.error(f"{file}: {error}") from None
        lines = (as_list if "list" in self.options else as_table)(head, chosen)
        return self.parse_text_to_nodes(repository.linked("\n".join(lines), file.parent))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("rows", RowsDirective)
    return {"parallel_read_safe": True}
