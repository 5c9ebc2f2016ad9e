"""Links between files of the repository become links of the site.

The pages of the repository link to one another and to source files by relative paths, as a code
host shows them. The site includes these pages, and its own pages link in the same way. A link
leads

- to a page of the site, where the Markdown file is one or is included by one;
- to the API, for a module or package of Python that is listed there;
- for a folder, to the page of the nearest README above it;
- else to the file itself: at ``repository_url`` if the configuration gives one, or a copy of it.

Nothing here imports Sphinx, so that a test can check all links without it.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGES = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
"""The packages that the API lists."""

INCLUDE = re.compile(r"^```\{include\} (\S+)$", re.M)
LINK = re.compile(
    r"^[ ]*(?P<fence>```+|~~~+).*?^[ ]*(?P=fence)"  # code, where nothing is a link
    r"|(?P<ticks>`+)(?:[^`\n]|\n(?!\n))+(?P=ticks)"
    r"|(?<=\]\()(?P<target>[^()\s]+)(?=\))",
    re.M | re.S,
)


@dataclass(frozen=True)
class Repository:
    """The files of a checkout, and the site that is made of them.

    Args:
        root: Folder of the checkout.
        url: Address under which its files can be read, ending in a slash; ``None`` if there is
            none, and the site copies the files that it links to.
    """

    root: Path
    url: str | None = None

    @property
    def docs(self) -> Path:
        """Folder of the site's sources."""
        return self.root / "docs"

    @cached_property
    def pages(self) -> dict[Path, Path]:
        """The site's page for every Markdown file, those of the repository included."""
        own = sorted(self.docs.rglob("*.md"))
        included = {
            (page.parent / path).resolve(): page
            for page in own
            for path in INCLUDE.findall(page.read_text())
        }
        return {page: page for page in own} | included

    def linked(self, text: str, folder: Path) -> str:
        """Markdown with its relative links rewritten for the site.

        Args:
            text: Markdown of a file in ``folder``.
            folder: Folder to which the links are relative.
        """

        def rewritten(match: re.Match[str]) -> str:
            target = match["target"]
            return match[0] if target is None else self.target(target, folder)

        return LINK.sub(rewritten, text)

    def target(self, target: str, folder: Path) -> str:
        """Target of one link on the site; it is unchanged if it is absolute or leads nowhere."""
        path, _, anchor = target.partition("#")
        file = (folder / path).resolve()
        if not path or path.startswith("/") or ":" in path or not file.exists():
            return target
        parts = file.relative_to(self.root).parts
        package = (file / "__init__.py").exists() and parts[0] in PACKAGES
        if file.is_dir() and not package:
            file = self.readme(file)
        if file in self.pages:
            page = "project:/" + self.pages[file].relative_to(self.docs).as_posix()
            return page + (f"#{anchor}" if anchor else "")
        place = file.relative_to(self.root)
        if place.parts[0] in PACKAGES and (file.is_dir() or file.suffix == ".py"):
            return "#" + ".".join(place.with_suffix("").parts)
        if file.suffix in (".png", ".svg"):
            return f"/../{place.as_posix()}"
        return f"path:/../{place.as_posix()}" if self.url is None else self.url + place.as_posix()

    def readme(self, folder: Path) -> Path:
        """The nearest README in this folder or above."""
        folders = (folder, *folder.parents)
        return next(f / "README.md" for f in folders if f / "README.md" in self.pages)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Rewrite the pages of the site, and those that it includes, when they are read."""
    app.add_config_value("repository_url", None, "env", (str, type(None)))
    root = Path(app.srcdir).resolve().parent

    def repository() -> Repository:
        return Repository(root, app.config.repository_url)

    def read_page(_: "Sphinx", name: str, text: list[str]) -> None:
        page = root / "docs" / f"{name}.md"
        if page.exists():
            text[0] = repository().linked(text[0], page.parent)

    def read_included(_: "Sphinx", path: Path, name: str, text: list[str]) -> None:
        text[0] = repository().linked(text[0], (root / "docs" / path).resolve().parent)

    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    return {"parallel_read_safe": True}
