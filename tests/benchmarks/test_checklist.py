"""The checklist of the papers has a command or a need for each entry, and values from files."""

import re
import shlex

import pytest

from benchmarks.checklist import Entry, checklist, entries
from benchmarks.script import FOLDER, scripts

ROOT = FOLDER.parent
ENTRIES = list(entries())


def test_every_entry_has_a_value_or_a_need_and_no_other_reason():
    assert [e for e in ENTRIES if not (e.command or e.needs)] == []
    assert [e for e in ENTRIES if not (e.ours or e.needs)] == []
    assert {need for e in ENTRIES if e.needs for need in e.needs.split(", ")} <= {"GPU", "data"}
    assert {e.paper for e in ENTRIES} == {"HyperFed", "FlatLand", "FedHull", "FlyNN"}


def test_entries_of_fewer_data_have_a_need():
    fewer = [e for e in ENTRIES if re.search("14x14|600| of 71|instead of UC", e.what)]
    assert len(fewer) >= 10
    assert [e for e in fewer if not e.needs] == []


def test_our_values_stand_in_the_files_that_are_named():
    for entry in ENTRIES:
        if entry.ours:
            text = (ROOT / entry.where).read_text()
            assert "![" in text if entry.ours == "drawing" else entry.ours in text, entry


def test_commands_name_benchmarks_and_configurations_that_exist():
    names = {script.name for script in scripts()}
    for entry in ENTRIES:
        words = shlex.split(entry.command)
        for word in words:
            assert not word.startswith("configs/") or (ROOT / word).is_file(), entry
        if words[:2] == ["python", "-m"]:
            assert words[2].removeprefix("benchmarks.") in names, entry


@pytest.mark.parametrize(
    ("published", "ours", "gap"),
    [
        ("91.16", "76.65", "-14.51"),
        ("-0.05 ± 0.02", "-0.029 ± 0.003", "+0.021"),
        ("0.606", "0.630, 0.602 to 0.659", "+0.024"),
        ("39/2/30", "12/1/23", ""),
        ("drawing", "0.684", ""),
        ("1", "", ""),
    ],
)
def test_a_gap_is_the_difference_of_two_numbers(published, ours, gap):
    assert Entry("", "", "", "", published, ours, "", "").gap == gap


def test_the_page_shows_the_printed_list():
    assert checklist() == (ROOT / "docs" / "results" / "papers.csv").read_text()
