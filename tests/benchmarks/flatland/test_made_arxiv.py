"""The made graph of the benchmark: its numbers, and that its rounds run."""

import dataclasses

import networkx
import pytest

from benchmarks.flatland.made_arxiv import METHODS, MadeCitations, cost
from fedbolic.core.rng import Rng

SMALL = MadeCitations(num_nodes=900, num_edges=5000, num_features=8, num_classes=5)


def made(graph):
    return graph.read(Rng(0), None, download=False)


def test_a_made_graph_has_the_numbers_that_were_asked_for():
    graph = made(SMALL)
    edges = networkx.Graph(graph.edges.T.tolist())
    assert (len(graph), edges.number_of_edges(), graph.features.shape[1]) == (900, 5000, 8)
    assert sorted(set(graph.labels.tolist())) == list(range(5))
    assert int(graph.degrees.max()) > 5 * 2 * 5000 / 900


@pytest.mark.parametrize("within", [0.0, 1.0])
def test_edges_lie_within_classes_as_often_as_was_asked_for(within):
    graph = made(MadeCitations(900, 5000, 8, 5, within))
    same = (graph.labels[graph.edges[0]] == graph.labels[graph.edges[1]]).double().mean()
    assert float(same) == pytest.approx(within + (1 - within) / 5, abs=0.05)


def test_numbers_of_arxiv_are_the_default():
    assert dataclasses.astuple(MadeCitations())[:4] == (169_343, 1_166_243, 128, 40)


def test_more_edges_than_can_be_found_are_refused():
    with pytest.raises(ValueError, match="of 190 edges were found: ask for fewer"):
        made(MadeCitations(num_nodes=20, num_edges=190, num_classes=2))


@pytest.mark.parametrize("name", METHODS)
def test_rounds_are_timed(name):
    pytest.importorskip("pymetis")
    found = cost(name, SMALL, rounds=1)
    assert all(value > 0 for value in found.values())
    assert found["megabytes at most"] >= found["megabytes loaded"]
