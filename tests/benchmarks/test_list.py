"""The list of benchmarks is complete, and each says what it prints and how long that takes."""

import csv
from collections import Counter

import pytest

from benchmarks import __main__ as program
from benchmarks.script import FOLDER, scripts

SCRIPTS = list(scripts())
NAMES = [script.name for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_benchmark_says_what_it_prints_and_how_long_that_takes(script):
    assert script.prints.endswith(".")
    assert script.takes


def test_the_list_has_a_line_for_every_benchmark(capsys):
    program.main()
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in printed[2:]] == NAMES
    assert len(NAMES) <= 25


def test_every_benchmark_is_named_on_a_page():
    root = FOLDER.parent
    folders = [root, *(root / name for name in ("benchmarks", "fedbolic", "fedhull", "flatland"))]
    files = [root / "flynn" / "README.md", root / "Makefile"]
    files += [
        file
        for folder in folders
        for file in folder.glob("**/README.md" if folder != root else "*.md")
    ]
    pages = "\n".join(file.read_text() for file in files)
    assert [name for name in NAMES if f"benchmarks.{name}" not in pages] == []


def test_kept_tables_are_those_that_were_printed(tmp_path):
    printed = "Words.\n\n**float32, c = 1**\n\n| | a |\n|---|---|\n| x | 1, 2 |\n\n| row |\n|---|\n"
    program.keep(f"{printed}\n{printed}", tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "float32-c-1-2.csv",
        "float32-c-1.csv",
        "row-2.csv",
        "row.csv",
    ]
    with (tmp_path / "float32-c-1.csv").open(newline="") as lines:
        assert [*csv.reader(lines)] == [["", "a"], ["x", "1, 2"]]
    assert (tmp_path / "row.csv").read_text() == "row\n"


def test_the_table_of_precision_on_the_page_is_the_one_kept():
    page = (FOLDER / "README.md").read_text()
    kept = {name: rows for name, rows in program.tables(page) if "far from tangents" in rows[0]}
    with (FOLDER / "measured/precision/float32-c-1.csv").open(newline="") as lines:
        assert [*kept.values()] == [[*csv.reader(lines)]]


def test_no_folder_has_more_than_20_modules():
    held = Counter(file.parent for file in FOLDER.rglob("*.py"))
    assert {str(folder): num for folder, num in held.items() if num > 20} == {}
