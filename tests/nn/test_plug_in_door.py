"""The table of checks that torch's tools make of every layer: complete, explained, and true."""

import csv

import pytest
from torch import nn

import fedbolic.nn
from benchmarks.script import FOLDER
from fedbolic.nn.graph import convolution as graph
from tests.nn import plug_in
from tests.nn.every_layer import layers
from tests.nn.process_group import group

LAYERS = layers()


def expected(name, check):
    return plug_in.explanation(name, check) or "yes"


def test_every_layer_has_a_row():
    given = [getattr(fedbolic.nn, name) for name in fedbolic.nn.__all__]
    given += [getattr(graph, name) for name in graph.__all__]
    modules = {x.__name__ for x in given if isinstance(x, type) and issubclass(x, nn.Module)}
    assert set(LAYERS) == modules


def test_the_table_has_no_cell_without_an_explanation():
    with (FOLDER / "measured" / "plug_in" / "layer.csv").open(newline="") as lines:
        (first, *checks), *rows = csv.reader(lines)
    assert (first, checks) == ("layer", list(plug_in.CHECKS))
    found = {name: dict(zip(checks, cells, strict=True)) for name, *cells in rows}
    assert found == {name: {c: expected(name, c) for c in checks} for name in LAYERS}


@pytest.fixture(scope="module")
def one_group():
    with group():
        yield


@pytest.mark.usefixtures("one_group")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_passes_what_takes_no_compiler(name):
    quick = [check for check in plug_in.CHECKS if check not in plug_in.SLOW]
    found = {check: plug_in.outcome(name, check, LAYERS[name]) for check in quick}
    assert found == {check: expected(name, check) for check in quick}


@pytest.mark.slow
@pytest.mark.parametrize("check", plug_in.SLOW)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_compiled_and_exported(name, check):
    assert plug_in.outcome(name, check, LAYERS[name]) == "yes"


def test_a_check_can_fail():
    class Forgetful(nn.Linear):
        def state_dict(self, *args, **options):
            return {}

    of = plug_in.Layer(lambda: Forgetful(2, 2), (LAYERS["Dropout"].inputs[0][:, :2],))
    assert plug_in.outcome("Forgetful", "state_dict", of).startswith("RuntimeError: Error(s)")
