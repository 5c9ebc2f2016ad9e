"""The list of tables in configs/README.md is complete, and tables have every published row."""

import csv
import math
import re
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "configs"
ENTRY = re.compile(
    r"^\| \[[^]]+\]\((?P<file>[^)]+)\) \| (?P<about>[^|]+) \| (?P<runs>[\d,]*) ?\| "
    r"(?P<time>[^|]+) \| (?P<where>[^|]+) \|$"
)
LINES = (FOLDER / "README.md").read_text().splitlines()
LISTED = [match for line in LINES if (match := ENTRY.match(line))]
SWEEPS = {
    str(file.relative_to(FOLDER)): yaml.safe_load(file.read_text())
    for file in sorted(FOLDER.rglob("*.yaml"))
    if re.search(r"^(rows|sets):", file.read_text(), re.M)
}


def test_every_table_is_listed_once_and_every_listed_file_exists():
    assert sorted(match["file"] for match in LISTED) == sorted(SWEEPS)


def number_of_runs(sweep):
    """Runs of a sweep as the list writes them; a benchmark has none."""
    if "sets" in sweep:
        return ""
    sizes = [len(sweep.get(key) or [None]) for key in ("rows", "settings", "seeds")]
    sizes += [len(values) for values in (sweep.get("grid") or {}).values()]
    return f"{math.prod(sizes):,}"


def test_numbers_of_runs_are_those_of_the_files():
    listed = {entry["file"]: entry["runs"] for entry in LISTED}
    assert listed == {name: number_of_runs(SWEEPS[name]) for name in listed}


def test_what_needs_days_is_called_a_template_in_the_list_and_in_the_file():
    listed = {e["file"] for e in LISTED if "day" in e["time"]}
    assert listed
    for entry in LISTED:
        text = (FOLDER / entry["file"]).read_text()
        called = "emplate" in text.partition("\nbase:")[0], "template" in entry["where"]
        assert called in {(True, True), (False, False)}, entry["file"]
        assert all(called) or entry["file"] not in listed, entry["file"]


def test_tables_of_hyperfed_have_every_published_row():
    missing = {}
    for name in (n for n in SWEEPS if n.startswith("hyperfed/table")):
        (file,) = SWEEPS[name]["published"]
        with (FOLDER / name).parent.joinpath(file).open(newline="") as stream:
            numbers = list(csv.DictReader(stream))
        for setting in SWEEPS[name]["settings"]:
            rows = {number["row"] for number in numbers if number["setting"] == setting}
            assert rows, (name, setting)
            missing[name, setting] = rows - set(SWEEPS[name]["rows"])
    assert {where: rows for where, rows in missing.items() if rows} == {}


def test_hyperfeds_tables_cover_every_published_setting():
    for table in (1, 2, 3):
        file = FOLDER.parent / "benchmarks" / "published" / f"hyperfed_table{table}.csv"
        with file.open(newline="") as stream:
            published = {number["setting"] for number in csv.DictReader(stream)}
        of_table = [s for n, s in SWEEPS.items() if n.startswith(f"hyperfed/table{table}_")]
        assert published == {setting for sweep in of_table for setting in sweep["settings"]}
