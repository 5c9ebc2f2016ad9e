"""Every configuration in the repository is valid and begins with a description."""

import functools
from pathlib import Path

import pytest
import yaml

from benchmarks.nearest.__main__ import compare
from fedbolic.run import sweeps as module
from fedbolic.run.configuration import build, given
from fedbolic.run.experiment import run
from fedbolic.run.sweeps import sweep

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.yaml"))
SWEEPS = [name for name in FILES if "\nbase:" in (FOLDER / name).read_text()]


def read(name):
    return yaml.load((FOLDER / name).read_text(), yaml.CSafeLoader)


def kind(value):
    """The value, or the type of a number: only ``--slow`` finds one that is out of range."""
    return type(value) if isinstance(value, int | float) else repr(value)


@functools.cache
def drawn():
    """Rows and settings of each sweep that give a method an option as none before gives it."""
    known, chosen = set(), {}
    for name in SWEEPS:
        given, common = read(name), read(name).get("common") or {}
        method = read(Path(name).parent / given["base"])["method"]
        rows, each = given["rows"], given.get("settings") or {"": {}}
        (row, *_), (setting, *_) = rows, each
        asked = [(one, setting) for one in rows] + [(row, one) for one in each]
        chosen[name] = asked[0]
        for row, setting in asked:
            own = common | each[setting] | (rows[row] or {})
            found = {(repr(own.get("method", method)), k, kind(v)) for k, v in own.items()}
            if not found <= known:
                chosen[name] += row, setting
            known |= found
    return chosen


@pytest.mark.parametrize("name", FILES)
def test_a_configuration_begins_with_what_it_is_and_can_be_built(
    name, tmp_path, monkeypatch, request
):
    file = FOLDER / name
    text = file.read_text()
    assert text.startswith("# ")
    if "\nsets:" in text:
        build(compare, ["--config", str(file)])
        return
    monkeypatch.chdir(file.parent)  # paths of a sweep's base and published numbers start here
    if "\nrows:" not in text:
        build(run, ["--config", str(file)])
        return
    monkeypatch.setattr(module, "_run_all", lambda *_: [])
    settings = build(sweep, ["--config", str(file)])
    rows, grid, each = settings["rows"], settings["grid"] or {}, settings["settings"]
    if name in SWEEPS and not request.config.getoption("--slow"):
        rows = {row: own for row, own in rows.items() if row in drawn()[name]}
        each = each and {one: own for one, own in each.items() if one in drawn()[name]}
        grid = {option: values[:2] for option, values in grid.items()}
    first = {row: rows[row] for row in list(rows)[:1]}
    corner = {option: values[:1] for option, values in grid.items()}
    one_setting = each and dict(list(each.items())[:1])
    # all rows, all points of the grid and all settings, each with the first of the others
    asked = [(rows, corner, one_setting)]
    asked += [(first, grid, one_setting)] if grid else []
    asked += [(first, corner, each)] if each and len(each) > 1 else []
    for chosen, points, tables in asked:
        one = {"seeds": settings["seeds"][:1], "runs": tmp_path, "rows": chosen}
        one |= {"grid": points, "settings": tables}
        sweep(**given(sweep, {**settings, **one}))


def options(value, prefix=""):
    """All options of a configuration by dotted name, without the levels of class paths."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        key = prefix if name == "init_args" else f"{prefix}.{name}".strip(".")
        yield key
        yield from options(inner, key)


def test_rows_with_another_method_do_not_inherit_an_aggregator():
    """FedAvg over HyperFed's file would aggregate as HyperFed does, for it has that option, too."""
    wrong = []
    for name in SWEEPS:
        settings = yaml.safe_load((FOLDER / name).read_text())
        base = (FOLDER / name).parent / settings["base"]
        inherited = "method.aggregator" in options(yaml.safe_load(base.read_text()))
        for row, own in settings["rows"].items():
            given = {**(settings.get("common") or {}), **(own or {})}
            if inherited and "method" in given and "method.aggregator" not in given:
                wrong.append((name, row))
    assert wrong == []
