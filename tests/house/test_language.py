"""Names and sentences: the field's words in code, docstrings and pages."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
FILES = sorted(
    file
    for top in (*INSTALLED, "benchmarks", "tests")
    for file in (ROOT / top).rglob("*.py")
    if file != Path(__file__)
)
PAGES = [
    *sorted(file for top in (*INSTALLED, "benchmarks") for file in (ROOT / top).rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
]

COUNTED = [
    *(page for page in PAGES if (ROOT / "benchmarks") not in page.parents),
    *(ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"),
]
"""Pages of the product and of its site, as ``benchmarks.house`` counts them."""

MOST_WORDS, LONGEST_SENTENCE = 35_000, 30

CLAUSES = {"What", "How", "Whether", "Where", "Which", "Who", "Whose", "Those", "When"}
"""First words of a clause; a summary is a noun phrase or an imperative and begins with none."""

REPLACED = {
    *(
        "Stepped",
        "Schedule",
        "Total",
        "Position",
        "tally",
        "Delivery",
        "Feed",
        "Ragged",
        "Footprint",
    ),
    *("side_by_side", "alike", "Shelf", "Letter", "Post", "acquainted", "Terms", "Cards", "Shares"),
    *(
        "Sums",
        "Survivors",
        "Tune",
        "Tuned",
        "tuning",
        "tune",
        "Calibrate",
        "Calibrated",
        "calibrate",
    ),
    *("calibrating", "Collect", "sheet", "Sheet", "verb", "verbs", "Curved", "drawn_in", "draw_in"),
    *(
        "arc",
        "chord",
        "Known",
        "Images",
        "picture",
        "pull",
        "shrink",
        "likeness",
        "price",
        "boring",
    ),
    *("posting", "agreeing", "question", "introduction", "change", "memories", "Plan"),
    *(
        "Published",
        "Disc",
        "Block",
        "Hyperbolic",
        "shelf",
        "delivery",
        "feed",
        "footprint",
        "floors",
    ),
}
"""Words that stood for known things in earlier versions; each has the field's own word now.

Not listed, as they have their usual meaning elsewhere: ``anchor`` (YAML), ``answer``, ``Cohort``,
``Embedding`` (of torch), ``Euclidean`` (the space), ``lift`` (of the hyperboloid), ``lower`` (of a
string), ``memory`` (in megabytes), ``pairs``, ``parts`` and ``Task`` (of a benchmark).
"""

WORDS = re.compile(rf"\b({'|'.join(sorted(REPLACED))})\b")

UNSHOWN = re.compile(
    r"(curvature|geometry)\s+(wins|pays|leads)|(wins|help\S*)\b.{0,30}\bby far", re.I | re.S
)
"""Claims of a win of curvature, which no table with a flat bias a node shows."""


def names_in(source):
    """Identifiers of Python code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def spans_in(page):
    """Identifiers in the code spans and code blocks of a page."""
    spans = re.findall(r"`+([^`]+)`+", page)
    return {name for span in spans for name in re.findall(r"(?<![\w-])[A-Za-z_]\w*(?![\w-])", span)}


def docstrings(source):
    """All docstrings of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def definitions(source):
    """Public names that a module defines."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_"))


def faults_of_file(source):
    """Summaries that are clauses, ``None`` that is not written so, and names that were replaced."""
    texts = docstrings(source)
    summaries = [text.partition("\n")[0] for text in texts]
    return {
        "clauses": [line for line in summaries if line.split()[0].rstrip(",") in CLAUSES],
        "write ``None``": [text for text in texts if re.search(r"\bnone: ", text)],
        # to take all files apart into tokens takes seconds
        "names": sorted(names_in(source) & REPLACED) if WORDS.search(source) else [],
    }


def test_files_speak_the_fields_language():
    faults = {
        (str(f), kind): found
        for f in FILES
        for kind, found in faults_of_file(f.read_text()).items()
        if found
    }
    assert faults == {}


def test_pages_name_what_there_is():
    assert {str(f): found for f in PAGES if (found := spans_in(f.read_text()) & REPLACED)} == {}


def sentences(page):
    """Sentences of a page, without its code, tables, headings and the addresses of links."""
    page = re.sub(r"^(```|~~~).*?^\1\s*?$", "", page, flags=re.M | re.S)
    page = re.sub(r"<[^>]+>|!?\[([^]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"^(\||#).*$|^\s*([-*+]|\d+\.)\s", "\n\n", page, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", page):
        yield from re.split(r"(?<=[.!?])[*)`\"]*\s+(?=[A-Z`*\[(\d])", " ".join(paragraph.split()))


def test_pages_are_short_and_so_are_their_sentences():
    pages = {str(page): page.read_text() for page in [*COUNTED, ROOT / "benchmarks/README.md"]}
    long = [
        (page, s)
        for page in pages
        for s in sentences(pages[page])
        if len(s.split()) > LONGEST_SENTENCE
    ]
    assert long == []
    assert sum(len(page.read_text().split()) for page in COUNTED) <= MOST_WORDS


def test_no_text_claims_a_win_of_curvature():
    texts = [
        *PAGES,
        *(f for f in FILES if "tests" not in f.parts),
        *(ROOT / "configs").rglob("*.*"),
    ]
    assert {str(f): m[0] for f in texts if (m := UNSHOWN.search(f.read_text()))} == {}


def test_a_public_name_is_defined_once():
    found = defaultdict(list)
    for file in FILES:
        if file.relative_to(ROOT).parts[0] in INSTALLED:
            for name in definitions(file.read_text()):
                found[name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1 and name != "main"} == {}


def test_the_checks_can_fail():
    planted = 'x = Tune()\ndef f():\n    """Whether it is so; none: not."""\n'
    faults = faults_of_file(planted)
    line = ["Whether it is so; none: not."]
    assert faults == {"clauses": line, "write ``None``": line, "names": ["Tune"]}
    assert spans_in("a `Shelf.keep` and the shelf") & REPLACED == {"Shelf"}
    assert [*sentences("# A b\nIt is [one](a.md).\n- *Two*. Three\n")][1:] == [
        "It is one.",
        "*Two*.",
        "Three",
    ]
    assert UNSHOWN.search("On hierarchies\nit wins by far")
    assert list(definitions("a: int = 1\n_b = 2\nclass C: ...\n")) == ["a", "C"]
