"""The sources of the site: every page and module has its place, and every link leads somewhere."""

import csv
import importlib.util
import re
from functools import cache

import pytest

from tests.command_line import ROOT


def extension(module):
    """A module of the site that does not import Sphinx."""
    file = ROOT / "docs/extensions" / f"{module}.py"
    spec = importlib.util.spec_from_file_location(module, file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


links, tables = extension("repository_links"), extension("page_tables")
ROWS = re.compile(
    r"^```\{rows\} (?P<page>\S+)\n(:after: (?P<after>[^\n]*)\n)?(:list:\n)?"
    r"(\n(?P<names>.*?)\n)?```$",
    re.M | re.S,
)

SITE = links.Repository(ROOT)
OUTSIDE = [
    page
    for folder in (*links.PACKAGES, "benchmarks", "configs")
    for page in sorted((ROOT / folder).rglob("*.md"))
] + sorted(ROOT.glob("*.md"))
OWN = [page for page in sorted(SITE.docs.rglob("*.md")) if page.parent.name != "notebooks"]


def name(path):
    return path.relative_to(ROOT).as_posix()


def test_pages_of_the_repository_are_pages_of_the_site():
    assert [name(page) for page in OUTSIDE if page not in SITE.pages] == []


def entries(page):
    """Pages that the toctrees of a page name, without notebooks."""
    text = page.read_text()
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if line and not line.startswith((":", "/notebooks")):
                found = [page.parent / f"{line}{suffix}" for suffix in (".md", ".rst")]
                yield next(file for file in found if file.exists())


def test_every_page_is_reached_from_the_front_page():
    reached, ahead = set(), [SITE.docs / "index.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead += [entry for entry in entries(page) if entry not in reached]
    assert reached == {*OWN, *(SITE.docs / "api").glob("*.rst")}


def test_every_public_module_is_in_the_api():
    pages = (SITE.docs / "api").glob("*.rst")
    text = "\n".join(page.read_text() for page in pages)
    packages = set(re.findall(r"^\.\. package:: (\S+)$", text, re.M))
    listed = {
        module for package in packages for module in ROOT.joinpath(*package.split(".")).glob("*.py")
    }
    missing = {m for top in links.PACKAGES for m in (ROOT / top).rglob("*.py")} - listed
    assert missing == set()


def test_every_method_has_a_page():
    text = (ROOT / tables.METHOD_PAGES).read_text()
    of_many = {ROOT / "fedbolic/methods" / name for name in ("joint.py", "personal/stages.py")}
    files = {*(ROOT / "fedbolic/methods").rglob("[!_]*.py")} - of_many
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    missing = {name for name in names if f"{name}." not in text}
    assert missing == set()


@cache
def anchors(page):
    """Anchors of the headings of a page, as code hosts and MyST derive them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def leads_somewhere(page, target):
    """True if the target of a link is elsewhere, or a file with the heading that is named."""
    if "://" in target:
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in anchors(file))


def test_every_link_leads_somewhere():
    targets = [
        (page, match["target"])
        for page in (*OUTSIDE, *OWN)
        for match in links.LINK.finditer(page.read_text())
        if match["target"]
    ]
    assert [(name(page), to) for page, to in targets if not leads_somewhere(page, to)] == []
    assert not leads_somewhere(OWN[0], "#no-such-heading")


def sources(page):
    """Text of a page, with what the site writes in the place of the directive of a method."""
    text = page.read_text()
    if "{method-page}" in text:
        text += tables.method_page(ROOT / tables.METHOD_PAGES, page.stem)
    return text


def test_every_page_of_a_method_is_in_the_table_of_these_pages():
    with (ROOT / tables.METHOD_PAGES).open(newline="") as file:
        rows = list(csv.DictReader(file))
    pages = [page for page in OWN if "```{method-page}\n" in page.read_text()]
    assert [row["page"] for row in rows] == [page.stem for page in pages]
    quick = [row["quick"] for row in rows if row["quick"]]
    assert [name for name in quick if not (ROOT / f"configs/{name}/quick.yaml").is_file()] == []


@pytest.mark.parametrize("page", [p for p in OWN if "{rows}" in sources(p)], ids=name)
def test_the_rows_that_a_page_shows_are_in_the_table(page):
    text = sources(page)
    found = list(ROWS.finditer(text))
    assert len(found) == text.count("{rows}")
    for match in found:
        source = tables.markdown(ROOT / match["page"])
        head, rows = tables.chosen_rows(
            source, (match["names"] or "").splitlines(), match["after"] or ""
        )
        # a heading of the row's own page would be looked for on this page
        assert "](#" not in "".join(cell for row in [head, *rows] for cell in row)


def test_rows_follow_the_one_line_that_is_named():
    table = "|a|b|\n|---|---|\n|{}|1|\n\n"
    page = f"# Heads\n\n{table.format('x')}of heads\n\n## *Tails*, Heads\n\n{table.format('y')}"
    assert tables.chosen_rows(page, ["y"], "Tails") == (["a", "b"], [["y", "1"]])
    with pytest.raises(ValueError, match="no row of the table begins with 'y'"):
        tables.chosen_rows(page, ["y"], "Heads")
    with pytest.raises(ValueError, match=r"2 lines begin with '\|a'"):
        tables.chosen_rows(page, ["x"], "|a")


@pytest.mark.parametrize(
    ("link", "on_the_site"),
    [
        ("README.md#install", "project:/index.md#install"),
        ("fedbolic/nn/README.md", "project:/layers/nn.md"),
        ("fedbolic/nn/layers/linear.py", "#fedbolic.nn.layers.linear"),
        ("fedbolic/manifolds", "#fedbolic.manifolds"),
        ("configs/hyperfed", "project:/run/configs.md"),
        ("configs/demo.yaml", "path:/../configs/demo.yaml"),
        ("benchmarks/precision.py", "path:/../benchmarks/precision.py"),
        ("hyperfed/disc.png", "/../hyperfed/disc.png"),
        ("https://arxiv.org", "https://arxiv.org"),
        ("#install", "#install"),
        ("nowhere.md", "nowhere.md"),
    ],
)
def test_a_link_is_rewritten_for_the_site(link, on_the_site):
    assert SITE.linked(f"a [b]({link}), c", ROOT) == f"a [b]({on_the_site}), c"


def test_with_an_address_files_are_not_copied():
    site = links.Repository(ROOT, "https://host.example/tree/main/")
    target = site.target("configs/demo.yaml", ROOT)
    assert target == "https://host.example/tree/main/configs/demo.yaml"


@pytest.mark.parametrize(
    "code", ["`f[0](README.md)`", "```python\nf[0](README.md)\n```", "~~~\n[a](README.md)\n~~~"]
)
def test_code_has_no_links(code):
    text = SITE.linked(f"[a](README.md)\n\n{code}\n\n[b](README.md)\n", ROOT)
    assert text == f"[a](project:/index.md)\n\n{code}\n\n[b](project:/index.md)\n"
