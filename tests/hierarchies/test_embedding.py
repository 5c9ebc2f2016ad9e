"""Embedded hierarchies against brute force."""

import math
import random

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given

from fedbolic.core.near_names import near_names
from fedbolic.data import Hierarchy
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.hierarchies import Embedding
from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.hierarchies.scored_places import ScoredPlaces
from fedbolic.manifolds import HalfSpacePlaces, ManifoldPlaces, Poincare, PolarPlaces
from tests.hierarchies.embeddings import (
    ODD,
    POINTS,
    ball,
    embedding,
    every_kind,
    hyperboloid,
    names_up_to,
    polar,
    seeds,
    with_biases,
)


def by_hand(places, u, v):
    """The distance of two points by a formula of the model, in Python's own numbers."""
    if isinstance(places, PolarPlaces):
        r, s = places.radii[[u, v]].tolist()
        turn = (int(places.turns[u]) - int(places.turns[v])) / 2**64
        sine = math.sin(math.pi * turn)
        return 2 * math.asinh(
            math.sqrt(math.sinh((r - s) / 2) ** 2 + math.sinh(r) * math.sinh(s) * sine**2)
        )
    if isinstance(places, HalfSpacePlaces):
        x, y = places.positions[[u, v]].tolist()
        h, k = places.log_heights.exp()[[u, v]].tolist()
        return math.acosh(1 + (math.dist(x, y) ** 2 + (h - k) ** 2) / (2 * h * k))
    if isinstance(places, ScoredPlaces):
        (*x, _), (*y, bias) = (2 * places.embedded[[u, v]] / torch.tensor([1, 1, 2])).tolist()
        return math.dist(x, y) - bias
    c, (x, y) = float(places.manifold.c), places.points[[u, v]].tolist()
    if isinstance(places.manifold, Poincare):
        gaps = [1 - c * sum(a * a for a in z) for z in (x, y)]
        return math.acosh(1 + 2 * c * math.dist(x, y) ** 2 / math.prod(gaps)) / c**0.5
    inner = c * (x[0] * y[0] - sum(a * b for a, b in zip(x[1:], y[1:], strict=True)))
    return math.acosh(max(inner, 1.0)) / c**0.5


@every_kind
@given(seeds)
def test_the_nearest_are_those_of_all_distances_by_hand(kind, seed):
    found = embedding(kind, names_up_to(12), seed)
    near = found.nearest("3", 5)
    expected = sorted(by_hand(found.places, 3, v) for v in range(12) if v != 3)
    np.testing.assert_allclose([d for _, d in near], expected[:5], rtol=1e-6, atol=1e-6)
    for name, distance in near:
        hand = by_hand(found.places, 3, int(name))
        np.testing.assert_allclose(
            [distance, found.distance("3", name)], hand, rtol=1e-6, atol=1e-6
        )
    assert "3" not in dict(near)
    assert len(found.nearest("3", 100)) == 11
    if kind is not with_biases:
        assert found.nearest(found.place("3"), 1) == [("3", 0.0)]


@pytest.mark.parametrize("kind", POINTS.values(), ids=POINTS)
def test_the_index_finds_what_brute_force_finds(kind):
    found = embedding(kind)
    distances, numbers, exact = found.index().search(list(range(len(ODD))), k=4)
    assert exact.all()
    for node, name in enumerate(ODD):
        near = [(ODD[n], d) for n, d in zip(numbers[node], distances[node], strict=True)]
        assert near[0][0] == name
        assert [n for n, _ in near[1:]] == [n for n, _ in found.nearest(name, 3)]
        np.testing.assert_allclose([d for _, d in near[1:]], [d for _, d in found.nearest(name, 3)])


def test_of_equally_distant_nodes_the_one_with_the_smaller_number_comes_first():
    points = torch.tensor([[0.5, 0.0], [0.0, 0.0], [-0.5, 0.0], [0.5, 0.0]])
    found = Embedding(tuple("badc"), ManifoldPlaces(Poincare(), points))
    assert [name for name, _ in found.nearest("a")] == ["b", "d", "c"]


@given(seeds)
def test_direct_pairs_are_the_transitive_reduction(seed):
    graph = networkx.gn_graph(12, seed=seed)
    generator = random.Random(seed)
    graph.add_edges_from(sorted(generator.sample(range(12), 2), reverse=True) for _ in range(20))
    pairs = torch.tensor(sorted(graph.edges))
    reduced = sorted(map(list, networkx.transitive_reduction(graph).edges))
    given = Hierarchy(names_up_to(12), pairs)
    for hierarchy in (given, given.closure()):
        assert direct_pairs(hierarchy).tolist() == reduced
    found = Embedding.of(given, ball(12, seed))
    for node in graph:
        above = found.ancestors(str(node))
        assert {int(name) for name in above} == networkx.descendants(graph, node)
        steps = networkx.single_source_shortest_path_length(networkx.DiGraph(reduced), node)
        assert [steps[int(name)] for name in above] == sorted(steps[int(name)] for name in above)


def test_a_part_keeps_what_follows_through_nodes_that_it_lacks():
    chain = Hierarchy(tuple("abc"), torch.tensor([[0, 1], [1, 2]])).closure()
    part = Embedding.of(chain, ball(2, 0), torch.tensor([2, 0]))
    assert part.names == ("c", "a")
    assert part.ancestors("a") == ["c"]


@pytest.mark.parametrize("kind", POINTS.values(), ids=POINTS)
def test_something_new_is_placed_as_far_out_as_its_siblings_in_the_direction_of_its_parent(kind):
    n = 9
    found = embedding(kind, names_up_to(n))
    origin = {polar: PolarPlaces(torch.zeros(1).long(), torch.zeros(1).double())}.get(kind)
    if kind in (ball, hyperboloid):
        origin = ManifoldPlaces(
            found.places.manifold, found.places.manifold.origin(1, found.places.points.shape[1])
        )
    parents = {int(v) for v in found.parents[:, 1]}
    for parent in range(n):
        pairs = [(u, v) for u, v in found.parents.tolist() if v == parent or parent not in parents]

        def out(place):
            if origin is None:
                return -float(place.log_heights)
            return float(origin.dist(place))

        steps = [out(found.place(str(u))) - out(found.place(str(v))) for u, v in pairs]
        start = out(found.place(str(parent)))
        new = found.place_under(str(parent))
        step = sum(steps) / len(steps)
        expected = start + step if origin is None else max(0.0, start + step)
        np.testing.assert_allclose(out(new), expected, rtol=1e-6, atol=1e-6)
        # on one geodesic through the origin: distances add up
        moved = abs(expected - start)
        np.testing.assert_allclose(found.distance(str(parent), new), moved, rtol=1e-5, atol=1e-5)


def test_a_misspelt_name_gets_the_names_most_like_it():
    names = ("MacBook", "MacBook Air", "iPad", "laptops")
    found = Embedding(names, ball(4, 0))
    for ask in (found.nearest, found.place, lambda name: found.distance("iPad", name)):
        with pytest.raises(ValueError, match=r"no node 'macbok' among 4: did you mean 'MacBook',"):
            ask("macbok")
    assert near_names("air", names)[0] == "MacBook Air"
    assert near_names("lptops", names)[0] == "laptops"
    assert near_names("", names) == near_names("§", names) == []


def test_what_needs_parents_says_so_without_them():
    found = Embedding(("a", "b"), ball(2, 0))
    for ask in (found.ancestors, found.place_under):
        with pytest.raises(ValueError, match=r"needs the parents.*Embedding\.of"):
            ask("a")


@pytest.mark.parametrize(
    ("names", "parents", "message"),
    [
        (("a",), None, "1 names and 2 places"),
        (("a", "a"), None, "names must be different"),
        (("a", ""), None, "a name is empty: that of node 1"),
        (("a", "b"), [[0, 1], [1, 0]], "no cycles"),
        (("a", "b"), [[0, 2]], "names node 2"),
        (("a", "b"), [[0, 0]], "to itself"),
    ],
)
def test_what_is_no_embedding_is_refused(names, parents, message):
    with pytest.raises(ValueError, match=message):
        Embedding(names, ball(2, 0), None if parents is None else torch.tensor(parents))


def test_a_query_is_one_place_and_asks_for_one_neighbour_at_least():
    found = embedding()
    with pytest.raises(ValueError, match="one place, got 20"):
        found.nearest(found.places)
    with pytest.raises(ValueError, match="k must be at least 1"):
        found.nearest("plain", 0)
    assert repr(found) == "Embedding of 20 nodes in 3 dimensions (ManifoldPlaces)"


def test_numpy_gives_the_ball_and_refuses_what_it_cannot_hold():
    found = embedding(polar)
    array = found.to_numpy()
    radius = np.tanh(found.places.radii.numpy() / 2)
    np.testing.assert_allclose(np.linalg.norm(array, axis=1), radius, rtol=1e-12)
    far = PolarPlaces(torch.tensor([0, 1]), torch.tensor([20.0, 20.0]).double())
    with pytest.raises(ValueError, match="radius"):
        Embedding(("a", "b"), far).to_numpy(np.float32)


def test_scores_with_biases_are_no_points():
    found = embedding(with_biases)
    for ask in (found.to_numpy, found.places.to_lorentz, found.figure):
        with pytest.raises(ValueError, match="no distances of points"):
            ask()
    with pytest.raises(ValueError, match="no distances: use nearest"):
        found.index()
    with pytest.raises(TypeError, match="no direction outward"):
        found.place_under("plain")
    with pytest.raises(ValueError, match="has 3 coordinates a node"):
        ScoredPlaces(NodeTable(2, 0.0, "both"), torch.zeros(4, 2))


def test_a_plane_has_a_figure_and_a_space_has_none():
    found = embedding(polar)
    assert len(found.figure().points) == len(ODD)
    assert len(found.figure().curve_labels) == len(found.parents)
    with pytest.raises(ValueError, match="the places have 3"):
        embedding(ball).figure()
