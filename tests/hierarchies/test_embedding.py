"""Embedded hierarchies against brute force, and their files against other readers and damage."""

import contextlib
import csv
import json
import logging
import math
import random

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.near_names import near_names
from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy, random_tree
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.hierarchies import Embedding
from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.hierarchies.scored_places import ScoredPlaces, places_of
from fedbolic.manifolds import HalfSpacePlaces, Lorentz, ManifoldPlaces, Poincare, PolarPlaces

ODD = (
    *("plain", "a,b", 'say "hi"', "two\nlines", "return\rhere", "Ω ünï 🐈", " blank ", "'quoted"),
    *(
        "=1+1",
        "+x",
        "-x",
        "@x",
        "\ttab",
        "nul\0",
        "[]",
        "0.5",
        "true",
        "\uff1d1",
        "\nnext",
        "e\u0301",
    ),
)
seeds = st.integers(0, 2**32 - 1)


def numbers(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def polar(n, seed):
    turns = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, n)
    return PolarPlaces(torch.from_numpy(turns), 10 * numbers(seed, n).abs())


def half_space(n, seed):
    return HalfSpacePlaces(numbers(seed, n, 2), 3 * numbers(seed, n))


def ball(n, seed, c=0.5):
    return ManifoldPlaces(Poincare(c), Poincare(c).expmap0(numbers(seed, n, 3)))


def hyperboloid(n, seed, c=2.0):
    space = Lorentz(c)
    return ManifoldPlaces(space, space.expmap0(space.lift(numbers(seed, n, 3))))


def with_biases(n, seed):
    return places_of(NodeTable(2, 0.0, "ancestor"), numbers(seed, n, 3))


POINTS = {"polar": polar, "half-space": half_space, "ball": ball, "hyperboloid": hyperboloid}
KINDS = {**POINTS, "biases": with_biases}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def embedding(kind=ball, names=ODD, seed=0):
    tree = Hierarchy(tuple(names), random_tree(len(names), Rng(seed)).pairs)
    return Embedding.of(tree, kind(len(names), seed))


def names_up_to(n):
    return tuple(map(str, range(n)))


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


@every_kind
def test_a_table_has_every_name_and_exact_coordinates(kind, tmp_path):
    found = embedding(kind)
    found.to_csv(tmp_path / "x.csv", formulas=True)
    with (tmp_path / "x.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert tuple(row[0] for row in rows) == ODD
    parents = dict(found.parents.tolist())
    expected = [ODD[parents[i]] if i in parents else "" for i in range(len(ODD))]
    assert head[1] == "parent"
    assert [row[1] for row in rows] == expected
    whole = torch.cat(
        [x.double().reshape(len(ODD), -1) for x in found.places.tensors().values()], 1
    )
    if kind is polar:
        assert [int(row[2]) for row in rows] == found.places.turns.tolist()
    assert np.array_equal([[float(x) for x in row[2:]] for row in rows], whole.numpy())


def test_a_spreadsheet_runs_no_name(tmp_path, caplog):
    found = embedding()
    with caplog.at_level(logging.WARNING, "fedbolic"):
        found.to_csv(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    assert not [cell for row in rows for cell in row[:2] if cell[:1] in tuple("=+-@\uff1d\t\r\n")]
    assert [row[0].removeprefix("'") for row in rows] == [name.removeprefix("'") for name in ODD]
    assert "7 of 20 names" in caplog.text


def test_several_parents_are_a_list(tmp_path):
    pairs = torch.tensor([[0, 1], [0, 2]])
    Embedding(tuple("abc"), ball(3, 0), pairs).to_csv(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [json.loads(row["parents"]) for row in rows] == [["b", "c"], [], []]


@every_kind
def test_another_reader_finds_the_table_in_parquet(kind, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = embedding(kind)
    found.to_parquet(tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet").to_pydict()
    assert tuple(table.pop("name")) == ODD
    parents = dict(found.parents.tolist())
    assert table.pop("parents") == [[ODD[parents[i]]] if i in parents else [] for i in range(20)]
    columns = [c for x in found.places.tensors().values() for c in x.reshape(20, -1).T.tolist()]
    assert list(table.values()) == columns


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@every_kind
def test_a_saved_embedding_is_the_same(kind, suffix, tmp_path):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    found = embedding(kind)
    found.save(tmp_path / f"x{suffix}", {"made": "here"})
    again = Embedding.load(tmp_path / f"x{suffix}")
    assert again.names == found.names
    assert torch.equal(again.parents, found.parents)
    assert type(again.places) is type(found.places)
    for name, tensor in found.places.tensors().items():
        assert torch.equal(again.places.tensors()[name], tensor)
    assert again.nearest("plain") == found.nearest("plain")
    bare = Embedding(found.names, found.places)
    bare.save(tmp_path / f"y{suffix}")
    assert Embedding.load(tmp_path / f"y{suffix}").parents is None


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_damaged_file_is_refused_or_read(suffix, tmp_path):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    file = tmp_path / f"x{suffix}"
    embedding(polar).save(file)
    whole, generator, read = file.read_bytes(), random.Random(0), 0
    cut = [whole[: generator.randrange(len(whole))] for _ in range(40)]
    swapped = [bytearray(whole) for _ in range(80)]
    for content in swapped:
        content[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
    for content in (*cut, *swapped, b"", b"text"):
        file.write_bytes(content)
        with contextlib.suppress(ValueError):
            Embedding.load(file)
            read += 1
    assert read < 80


def rewritten(file, **changes):
    arrays = dict(np.load(file))
    for name, edit in changes.items():
        arrays[name] = edit(arrays[name]) if callable(edit) else edit
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})


def head(**changes):
    return lambda given: np.array(json.dumps(json.loads(str(given)) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"name_ends": lambda ends: ends[:-1]},
        {"name_ends": lambda ends: ends[::-1].copy()},
        {"name_ends": lambda ends: 0 * ends},
        {"name_ends": lambda ends: ends.astype(float)},
        {"names": lambda text: text[:-1]},
        {"names": lambda text: 0 * text + 255},
        {"names": lambda text: 0 * text + 65},
        {"parents": lambda pairs: pairs + 19},
        {"parents": lambda pairs: pairs.astype(float)},
        {"parents": lambda pairs: pairs.ravel()},
        {"turns": lambda turns: turns.astype(float)},
        {"turns": None},
        {"radii": lambda radii: radii * math.nan},
        {"radii": lambda radii: -1 - radii},
        {"more": np.zeros(3)},
        {"fedbolic": np.array("{")},
        {"fedbolic": np.array("[" * 9999)},
        {"fedbolic": head(format=2)},
        {"fedbolic": head(places="Path")},
        {"fedbolic": head(places=["PolarPlaces"])},
        {"fedbolic": head(places="ManifoldPlaces", manifold="Lorentz", c=-1)},
        {"fedbolic": None},
    ],
)  # fmt: skip
def test_a_forged_file_is_refused(changes, tmp_path):
    file = tmp_path / "x.npz"
    embedding(polar).save(file)
    rewritten(file, **changes)
    with pytest.raises(ValueError, match=r"x\.npz holds no embedding that can be read"):
        Embedding.load(file)


def test_a_file_of_another_ending_or_with_names_that_are_no_text_is_not_written(tmp_path):
    found = embedding()
    with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):
        found.save(tmp_path / "x.pkl")
    lone = Embedding(("\ud800", "b"), ball(2, 0))
    for write in (lone.to_csv, lone.save):
        with pytest.raises(ValueError, match="surrogates"):
            write(tmp_path / "x.npz")
    assert not list(tmp_path.iterdir())


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
