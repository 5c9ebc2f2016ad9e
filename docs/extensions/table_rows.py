"""Directives for tables of the repository.

``rows`` shows some rows of a table of a page, ``tables`` all tables in the CSV files of a folder,
``method-page`` what the tables say of the method of a page.
"""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from page_tables import METHOD_PAGES, as_list, as_table, chosen_rows, markdown, method_page
from repository_links import Repository
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class RowsDirective(SphinxDirective):
    """Rows of a table whose first cells begin with one of the names.

    The argument is the path of a page or a CSV from the root of the repository. ``after`` begins
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
                markdown(file), list(self.content), self.options.get("after", "")
            )
        except ValueError as error:
            raise self.error(f"{file}: {error}") from None
        lines = (as_list if "list" in self.options else as_table)(head, chosen)
        return self.parse_text_to_nodes(repository.linked("\n".join(lines), file.parent))


class TablesDirective(SphinxDirective):
    """Every CSV in the folders of a folder as a table, under the path of its file.

    The argument is the path of the folder from the root of the repository.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the tables as Markdown of the site."""
        folder = Path(self.env.srcdir).parent / self.arguments[0]
        lines: list[str] = []
        for file in sorted(folder.glob("*/*.csv")):
            self.env.note_dependency(str(file))
            name = file.relative_to(folder).with_suffix("")
            lines += [f"**{name}**", "", markdown(file), ""]
        return self.parse_text_to_nodes("\n".join(lines))


class MethodDirective(SphinxDirective):
    """Command, classes and table rows of the method of this page."""

    def run(self) -> list[nodes.Node]:
        """Parse the page's sections as Markdown of the site."""
        repository = Repository(Path(self.env.srcdir).parent, self.config.repository_url)
        file = repository.root / METHOD_PAGES
        self.env.note_dependency(str(file))
        page = Path(self.env.doc2path(self.env.docname))
        text = repository.linked(method_page(file, page.stem), page.parent)
        return self.parse_text_to_nodes(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("rows", RowsDirective)
    app.add_directive("tables", TablesDirective)
    app.add_directive("method-page", MethodDirective)
    return {"parallel_read_safe": True}
