"""Check that every local link of a built site leads somewhere: ``check_links.py FOLDER``."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, and the targets of its links and images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of a tag that name it or link it."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.targets.add(value)


def broken_links(folder: Path) -> list[str]:
    """One line for every link of the site's pages whose file or anchor does not exist."""
    pages = {file.resolve(): Page(file.read_text()) for file in folder.rglob("*.html")}
    broken = []
    for file, page in pages.items():
        for target in sorted(page.targets):
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            linked = (file.parent / unquote(url.path)).resolve() if url.path else file
            anchors = pages[linked].anchors if linked in pages else {"", url.fragment}
            if not linked.is_file() or unquote(url.fragment) not in anchors:
                broken.append(f"{file.relative_to(folder.resolve())}: {target}")
    return broken


def main(folder: str) -> None:
    """Print broken links and exit with 1 if there are any."""
    broken = broken_links(Path(folder))
    sys.exit("\n".join(["broken links:", *broken]) if broken else 0)


if __name__ == "__main__":
    main(sys.argv[1])
