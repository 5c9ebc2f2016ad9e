"""Exact rows against enumeration; step sizes, seeds and verdicts of the table of controls."""

import http.server
import math
import socketserver
from dataclasses import replace

import networkx as nx
import pytest
import torch

from benchmarks.hierarchies import controls as hierarchy_controls
from benchmarks.hierarchies.__main__ import FIGURES
from benchmarks.hierarchies.controls import CELLS, LRS, SEEDS, TRAINED, Cell, Controls, Sampled
from benchmarks.hierarchies.exact import EXACT, Walk
from benchmarks.hierarchies.fitted import FITTED
from benchmarks.hierarchies.table import (
    FLAT_ROWS,
    LAID_OUT,
    Contest,
    contests,
    table,
    trained_table,
)
from benchmarks.hierarchies.trees import TREES
from benchmarks.results import Results
from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy, balanced_tree, random_tree
from tests.benchmarks.kept_tables import assert_kept

TREE = random_tree(40, Rng(5))
ALL = torch.arange(len(TREE))


def descendants(hierarchy):
    graph = nx.DiGraph(hierarchy.pairs.tolist())
    return {v: nx.ancestors(graph, v) | {v} for v in range(len(hierarchy))}


def test_intervals_nest_as_sets_of_descendants_do():
    below, gaps = descendants(TREE), EXACT["nested intervals"](TREE)(ALL)
    for u in below:
        ranking = gaps[u].argsort(stable=True).tolist()
        around = [v for v in below if u in below[v]]
        assert ranking[: len(around)] == sorted(around, key=lambda v: len(below[v]))
        others = [len(below[v]) for v in ranking[len(around) :]]
        assert others == sorted(others, reverse=True)


def test_a_node_lies_in_the_sectors_of_its_ancestors_alone():
    tree = balanced_tree(3, 3)  # without only children, who share a place
    below = descendants(tree)
    gaps = EXACT["flat, laid out"](tree)(torch.arange(len(tree)))
    for u, v in ((u, v) for u in range(len(tree)) for v in range(len(tree)) if u != v):
        if v not in below[u]:  # a node may lie in the direction of one of its descendants
            assert (float(gaps[u, v]) < 1e-9) == (u in below[v])


def test_sectors_are_shared_by_leaves():
    edges = torch.tensor([[1, 0], [2, 0], [3, 1], [4, 1], [5, 1]])
    walk = Walk.of(Hierarchy(tuple("abcdef"), edges))
    widths = [width for _, width in walk.sectors()]
    assert widths == pytest.approx([1, 3 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 4])
    assert [middle for middle, _ in walk.sectors()][2:4] == pytest.approx([7 / 8, 1 / 8])


def test_ancestors_of_a_class_are_those_of_its_resolution_order():
    tree = TREES["Python"](None)
    for kind in (bool, socketserver.ThreadingTCPServer, http.server.SimpleHTTPRequestHandler):
        node = tree.names.index(f"{kind.__module__}.{kind.__qualname__}")
        above = tree.ancestors[tree.offsets[node] : tree.offsets[node + 1]].tolist()
        names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__[1:]}
        assert {tree.names[v] for v in above} == names


def test_popularity_and_join_count_pairs():
    gaps = EXACT["popularity"](TREE)(ALL[:3])
    assert (-gaps[1]).tolist() == [len(below) - 1 for below in descendants(TREE).values()]
    joined = EXACT["join"](TREE)(ALL)
    assert {tuple(pair) for pair in (joined == 0).nonzero().tolist()} == {
        tuple(pair) for pair in TREE.pairs.tolist()
    }


def test_scores_of_inferred_pairs_leave_out_what_is_held():
    held = torch.arange(TREE.num_pairs) % 3 > 0
    sampled = Sampled(TREE)
    rank = torch.where(TREE.contains(ALL[:, None], ALL), 0.0, 1.0)
    found = sampled.scores(lambda nodes: rank[nodes], "held out", held)
    assert found == {"inferred": 1.0, "rank": 1.0}
    whole = sampled.scores(lambda nodes: rank[nodes], "closure", held)
    assert whole["MAP"] == whole["rank"] == 1.0
    assert whole["direct"] < 1  # ancestors beyond the parents are wrong there


@pytest.fixture
def controls(tmp_path, monkeypatch):
    monkeypatch.setitem(TREES, "mammals", lambda root: TREE)
    return Controls(Results(tmp_path / "a.csv", quiet=True))


def test_a_trained_row_has_all_figures_and_as_many_numbers(controls, monkeypatch):
    shapes = {}
    kind = hierarchy_controls.Unscored

    def short(**settings):
        made = kind(**{**settings, "rounds": 1, "steps": 1})
        shapes[made.bias, made.score, made.c] = made.dim + (made.bias != "none")
        return made

    monkeypatch.setattr(hierarchy_controls, "Unscored", short)
    for row in TRAINED:
        found = controls.trained(Cell("mammals", clients=3), row, 0.1, 0)
        assert {"MAP", "rank", "direct", "distance", "common"} <= found.keys()
        assert all(map(math.isfinite, found.values()))
    assert set(shapes.values()) == {5}
    assert len(shapes) == len(TRAINED)
    for task, clients in (("strict", 3), ("held out", 1)):
        cell = Cell("mammals", clients=clients, task=task)
        assert controls.trained(cell, "hyperbolic", 0.1, 0).keys() == {"inferred", "rank"}


def test_step_sizes_are_chosen_on_a_seed_that_is_not_reported(controls, monkeypatch):
    asked = []

    def trained(self, cell, row, lr, seed):
        asked.append((cell, row, lr, seed))
        return {"MAP": math.nan if lr == 0.03 else 1 - lr, "inferred": lr}

    def fitted(self, cell, row, lr, seed):
        asked.append((cell, row, lr, seed))
        return {"distance": 1.0, "loss": math.nan if lr == 0.03 else lr}

    monkeypatch.setattr(Controls, "trained", trained)
    monkeypatch.setattr(Controls, "fitted", fitted)
    cell, ten = Cell("mammals", clients=20), Cell("mammals")
    controls.run([cell])
    trained_rows = dict.fromkeys(set(cell.rows) & TRAINED.keys(), cell)
    for row, of in (trained_rows | dict.fromkeys(FITTED, ten)).items():
        tried = [(at, lr) for at, name, lr, seed in asked if name == row and seed == 100]
        assert tried == [(ten, lr) for lr in LRS]
        reported = [(at, lr, seed) for at, name, lr, seed in asked if name == row and seed != 100]
        assert reported == [(of, 0.1, seed) for seed in range(SEEDS)]
    done = len(asked)
    controls.run([cell])
    assert len(asked) == done


def contest(**values):
    return Contest(CELLS[0], "MAP", {name.replace("_", " "): v for name, v in values.items()})


def test_a_side_is_ahead_by_two_standard_errors():
    flat, curved = [0.80, 0.82, 0.81], ["hyperbolic"]
    ahead = contest(hyperbolic=[0.90, 0.92, 0.91], flat=flat)
    assert ahead.verdict(curved, ["flat"]) == "**hyperbolic**"
    assert contest(hyperbolic=[0.81, 0.85, 0.80], flat=flat).verdict(curved, ["flat"]) == "neither"
    # the best row of a side counts, and one without seeds has no error
    exact = {"flat, laid out": [0.94], "plane, laid out": [0.95]}
    both = replace(ahead, values={**ahead.values, **exact})
    assert both.verdict(curved, ["flat", "flat, laid out"]) == "flat, laid out"
    assert both.verdict([*curved, *LAID_OUT], FLAT_ROWS) == "**plane, laid out**"
    assert contest(plane=[1.0], flat=[1.0]).verdict(["plane"], ["flat"]) == "neither"
    assert contest(flat=flat).verdict(curved, ["flat"]) == ""
    # of distances the smaller error is better
    assert replace(ahead, measure="distance").verdict(curved, ["flat"]) == "flat"


def test_a_cell_has_its_own_rows_and_those_that_depend_on_no_client():
    of = Cell("mammals", clients=20, numbers=2)
    known = {
        Cell("mammals").key("join", "", 0): {"distance": 0.3},
        Cell("mammals").key("flat, fitted", 0.1, 0): {"distance": 0.2},
        replace(of, clients=10).key("flat, fitted", 0.1, 0): {"distance": 0.1},
        of.key("flat", 0.1, 0): {"distance": 0.4},
        of.key("flat", 0.1, 100): {"distance": 0.5},
    }
    found = {each.cell: each.values for each in contests(known, [of, replace(of, clients=5)])}
    assert found == {of: {"join": [0.3], "flat, fitted": [0.1], "flat": [0.4]}}


def test_the_kept_tables_are_those_of_the_file():
    known = Results(FIGURES, quiet=True).known
    assert_kept(table(contests(known)), "hierarchies/controls.csv")
    assert_kept(trained_table(contests(known)), "hierarchies/trained.csv")
    unknown = replace(CELLS[0], clients=7)
    values = {"flat": [0.1, 0.1], "flat + b_v": [0.2, 0.2], "hyperbolic": [0.3, 0.3]}
    of = [Contest(unknown, measure, values) for measure in ("MAP", "direct", "common")]
    line = trained_table(of).splitlines()[-1]
    assert line.split(" | ")[1:3] == ["20.0 ± 0.0", "**30.0 ± 0.0**"]
