"""Code on the pages works: Python blocks run, commands parse."""

import csv
import re
import shlex
from pathlib import Path

import pytest
import yaml

from fedbolic.cli.parser import command_line
from fedbolic.run.configuration import parse

ROOT = Path(__file__).parents[2]
SITE = [
    page.relative_to(ROOT).as_posix()
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.parent.name != "notebooks"  # these are executed by make docs
]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "fedbolic/README.md",
    "fedbolic/YOURS.md",
    *SITE,
)


def blocks(text, *languages):
    """Fenced blocks of a page in one of the languages, each with its first line's number."""
    return [
        (text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S)
        if match[1] in languages
    ]


def commands(block):
    """Words of every ``fedbolic`` command of a shell block, up to a pipe or another operator."""
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    found = []
    for line in lines:
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        if words[:3] == ["python", "-m", "fedbolic"]:
            words = words[2:]
        if words[:1] == ["fedbolic"]:
            ends = [i for i, word in enumerate(words) if word in ("|", "&&", ";", ">", "&")]
            found.append(words[1 : ends[0] if ends else None])
    return found


def pages():
    return [(name, (ROOT / name).read_text()) for name in PAGES if (ROOT / name).exists()]


def cases(get):
    return [
        pytest.param(value, id=f"{page}:{line}")
        for page, text in pages()
        for line, value in get(text)
    ]


@pytest.mark.parametrize("code", cases(lambda text: blocks(text, "python")))
def test_a_python_block_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "block", "exec"), {"__name__": "block"})


def shell(text):
    return [
        (line, words) for line, block in blocks(text, "bash", "sh") for words in commands(block)
    ]


@pytest.mark.parametrize("words", cases(shell))
def test_a_command_parses(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    if words in (["--help"], ["--version"]):
        pytest.skip("prints and exits")
    parse(command_line(), words)


@pytest.mark.parametrize(
    "text", [text for _, text in blocks((ROOT / "docs/run/index.md").read_text(), "yaml")]
)
def test_a_configuration_parses(text, tmp_path):
    command = "sweep" if "rows:" in text else "run"
    base = ROOT / "configs" / "fedavg/quick.yaml"
    (tmp_path / "file.yaml").write_text(text.replace("fedavg/quick.yaml", str(base)))
    parse(command_line(), [command, "--config", str(tmp_path / "file.yaml")])


def folder_of(config):
    """Folder in which ``fedbolic sweep`` leaves a table, from the words after ``--config``."""
    file = ROOT / "configs" / f"{config.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    return f"runs/{yaml.safe_load(file.read_text()).get('name') or file.stem}"


def test_a_report_reads_the_folder_of_the_sweep_before_it():
    found = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *(ROOT / "fedbolic").rglob("*.md")]:
        for _, block in blocks(page.read_text(), "bash"):
            swept = [folder_of(one) for one in re.findall(r"sweep --config (\S+)", block)]
            read = re.findall(r"report (runs/\w+)", block) if swept else []
            found += [(str(page), folder, folder in swept) for folder in read]
    assert len(found) >= 4
    assert [one for one in found if not one[2]] == []


def anchors(text):
    """Anchors of the headings of a page, as code hosts derive them."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def links(text):
    """Targets of the links of a page into the repository, each with its line's number."""
    found = re.finditer(r"\]\(([^)\s]+)\)", text)
    return [
        (text.count("\n", 0, match.start()) + 1, match[1])
        for match in found
        if "://" not in match[1]
    ]


def leads_somewhere(page, link):
    """True if a link of a page names a file and, if it names a heading, one that is there."""
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


def test_every_link_leads_somewhere():
    texts = [*pages(), ("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text())]
    found = [(page, line, link) for page, text in texts for line, link in links(text)]
    assert [at for at in found if not leads_somewhere(at[0], at[2])] == []
    assert not leads_somewhere("README.md", "#no-such-heading")


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80


def claims(text):
    """Rows of the table of claims, by their columns."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    heads = next(i for i, row in enumerate(rows) if row[0] == "claim")
    return [dict(zip(rows[heads], row, strict=True)) for row in rows[heads + 1 :]]


def test_a_claim_has_a_control_a_trivial_baseline_and_a_command():
    found = claims((ROOT / "README.md").read_text())
    assert len(found) >= 3
    for claim in found:
        for column in ("ours", "strongest control", "trivial"):
            assert re.search(r"\d", claim[column]), (claim["claim"], column)
        assert re.fullmatch(r"`.*`", claim["command"])


with (ROOT / "benchmarks" / "controls.csv").open(newline="") as file:
    CONTROLS = list(csv.DictReader(file))
SYSTEMS = ("hyperfed", "flatland", "fedhull", "flynn", "fedbolic/hierarchies", "fedbolic/knowledge")
TRIVIAL = ("majority", "popularity")


def tables(text):
    """Rows of every Markdown table of a page, the head first."""
    found = re.findall(r"(?:^\|.*\n)+", text + "\n", re.M)
    return [[row.strip("| \n").split(" | ") for row in one.splitlines()] for one in found]


def table(place):
    """Rows of a CSV file, or of the first table of a section that has a trivial baseline."""
    file, _, heading = place.partition("#")
    if not heading:
        with (ROOT / file).open(newline="") as lines:
            return list(csv.reader(lines))
    parts = re.split(r"^#+ (.*)$", (ROOT / file).read_text(), flags=re.M)
    section = parts[parts.index(heading) + 1]
    return next(rows for rows in tables(section) if any(row[0].startswith(TRIVIAL) for row in rows))


def figures(rows, name):
    """Cells next to a name in its rows, and those below it where it is a head, with a digit."""
    beside = [cell for row in rows for cell in row if name in row and cell != name]
    below = [row[i] for i, head in enumerate(rows[0]) if head == name for row in rows[1:]]
    return [cell for cell in beside + below if re.search(r"\d", cell)]


@pytest.mark.parametrize("listed", CONTROLS, ids=lambda one: one["table"])
def test_a_table_of_claims_has_its_simplest_equal_and_a_trivial_baseline(listed):
    """The list names, for each table, our row, the simplest model as large, and the baseline."""
    rows = table(listed["table"])
    assert listed["trivial"].startswith(TRIVIAL)
    assert len({listed[kind] for kind in ("ours", "control", "trivial")}) == 3
    for kind in ("ours", "control", "trivial"):
        assert figures(rows, listed[kind]), (kind, listed[kind])
    assert not figures(rows, "no such row")


def test_every_system_and_every_claim_has_a_table_with_controls():
    pages = {listed["page"] for listed in CONTROLS}
    assert {f"{name}/README.md" for name in SYSTEMS} <= pages
    claimed = {
        link.partition("#")[0]
        for claim in claims((ROOT / "README.md").read_text())
        for _, link in links(claim["claim"])
    }
    assert claimed <= pages


@pytest.mark.parametrize("page", sorted({listed["page"] for listed in CONTROLS}))
def test_a_table_in_percent_on_a_page_of_claims_has_a_trivial_baseline(page):
    for rows in tables((ROOT / page).read_text()):
        if any("%" in head for head in rows[0]):
            assert any(row[0].startswith(TRIVIAL) for row in rows), rows[0]


def test_a_claim_without_a_control_would_be_found():
    with pytest.raises(ValueError, match="shorter"):
        claims("| claim | ours | trivial |\n| a | 1 |")


@pytest.mark.parametrize("name", re.findall(r"--config ([\w/]+)`", (ROOT / PAGES[0]).read_text()))
def test_a_claim_names_a_configuration_that_there_is(name):
    assert (ROOT / "configs" / f"{name}.yaml").is_file()


def test_a_wrong_link_would_be_found():
    assert links("[a](b.md#c) and ![d](e.png), [f](https://g.org)") == [(1, "b.md#c"), (1, "e.png")]
    assert anchors("# A title\n## What *is* it: 2\n") == {"a-title", "what-is-it-2"}


def test_the_blocks_of_a_page_are_found():
    text = "a\n```python\nx = 1\n```\n```bash\nfedbolic run # c\n```\n```\nplain\n```\n"
    assert blocks(text, "python") == [(3, "x = 1\n")]
    assert blocks(text, "bash", "sh") == [(6, "fedbolic run # c\n")]


def test_the_commands_of_a_block_are_found():
    block = "$ fedbolic run --config a.yaml \\\n    --seed 3  # why\npip install x\n"
    block += "python -m fedbolic report runs | less\necho fedbolic\n"
    assert commands(block) == [
        ["run", "--config", "a.yaml", "--seed", "3"],
        ["report", "runs"],
    ]


def test_a_wrong_command_would_be_found():
    with pytest.raises(ValueError, match="nonsense"):
        parse(command_line(), ["run", "--nonsense=1"])
