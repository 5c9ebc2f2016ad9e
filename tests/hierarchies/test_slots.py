"""Slots against a recursion in fractions, and the order of ancestors by mpmath, node by node."""

import dataclasses
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import Hierarchy
from fedbolic.data.hierarchies.hierarchy_split import ROOT
from fedbolic.hierarchies.common_slots import ClientNodes, SlotWeights
from fedbolic.hierarchies.slots import (
    BOTH,
    CLOSURE,
    NARROWEST,
    divide,
    divide_around,
    to_polar,
)
from tests.hierarchies.forests import federation, forests

SHAPES = {CLOSURE: (Fraction(1, 3), Fraction(1)), BOTH: (Fraction(4, 5), Fraction(4, 5))}
"""The gap, and the part of its share that a node has, a level of depth."""


def in_fractions(common, own, weights, shape):
    """Middle, width and depth of every node of a client, as fractions of a turn.

    Args:
        common: Parent of every common node.
        own: Parent of every node of the client.
        weights: Total, earlier and own weight of the cells of every common node, and of ROOT.
        shape: The shape of sectors.
    """
    found = {}
    gap, narrowing = SHAPES[shape]

    def seat(node, start, width, depth):
        part = width * narrowing ** max(depth, 0)
        if node != ROOT:
            found[node] = start + width / 2, part, depth
        return start + (width - part) / 2, part

    def below(node, parents):
        return sorted(child for child, parent in parents.items() if parent == node)

    def weight(node):
        return weights[node][0] + sum(weight(child) for child in below(node, common))

    def leaves(node):
        return sum(leaves(child) for child in below(node, own)) or 1

    def share(items, start, width):
        total = sum(x for _, x in items)
        for name, x in items:
            yield name, start, width * Fraction(x, total)
            start += width * Fraction(x, total)

    def around(items, start, width):
        if not items:
            return
        total, half, middle = sum(x for _, x in items), width / 2, start + width / 2
        sums = [abs(2 * sum(x for _, x in items[: i + 1]) - total) for i in range(len(items))]
        cut = min(range(len(items)), key=lambda i: sums[i]) + 1
        side = half * (Fraction(49, 50) - gap)
        yield from share(items[:cut], middle - half * Fraction(49, 50), side)
        yield from share(items[cut:], middle + half * gap, side)

    def put_private(node, start, width, depth):
        sector = seat(node, start, width, depth)
        for child, *place in around([(c, leaves(c)) for c in below(node, own)], *sector):
            put_private(child, *place, depth + 1)

    def put(node, start, width, depth):
        start, width = seat(node, start, width, depth)
        items = [("cells", weights[node][0])]
        items += [(child, weight(child)) for child in below(node, common)]
        for name, begin, size in (share if node == ROOT else around)(items, start, width):
            if name != "cells":
                put(name, begin, size, depth + 1)
                continue
            total, before, mine = (Fraction(x) for x in weights[node])
            slot = begin + size * before / total, size * mine / total
            for head, *place in share([(c, leaves(c)) for c in below(node, own)], *slot):
                put_private(head, *place, depth + 1)

    put(ROOT, Fraction(0), Fraction(1), -1)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@given(forests(), st.data())
def test_places_are_those_of_the_recursion(shape, forest, data):
    (common, private), numbers = forest, st.integers(1, 50)
    clients = federation(common, private).clients
    weights = {cell: [data.draw(numbers) for _ in private] for cell in (*sorted(common), ROOT)}
    for client, own in zip(clients, private, strict=True):
        i = client.id
        sums = {cell: (sum(w), sum(w[:i]), w[i]) for cell, w in weights.items()}
        columns = [torch.tensor(column) for column in zip(*sums.values(), strict=True)]
        rows, turns, radii = ClientNodes.of(client.train, shape).place(SlotWeights(*columns))
        expected = in_fractions(common, own, sums, shape)
        assert rows.tolist() == sorted(expected)
        for row, turn, radius in zip(rows.tolist(), turns.tolist(), radii.tolist(), strict=True):
            middle, width, depth = expected[row]
            apart = (Fraction(turn, 2**64) - middle) % 1
            assert min(apart, 1 - apart) < width / 100
            quarter = mpmath.pi / 2 * mpmath.mpf(width.numerator) / width.denominator
            lower = mpmath.log(float(SHAPES[shape][1])) * depth
            wanted = 2 * (mpmath.log(shape.scale / 4 / mpmath.sin(quarter)) + lower)
            assert radius == pytest.approx(float(wanted), rel=1e-3)


def distance(u, v):
    """Distance of two places of a turn and a radius, from the law of cosines."""
    (s, r), (t, q) = u, v
    angle = 2 * mpmath.pi * (mpmath.mpf(s) - t) / 2**64
    r, q = mpmath.mpf(r), mpmath.mpf(q)
    return mpmath.acosh(
        mpmath.cosh(r) * mpmath.cosh(q) - mpmath.sinh(r) * mpmath.sinh(q) * mpmath.cos(angle)
    )


def placed(clients, place, shape):
    """Turn and radius of every node, from what each client finds alone."""
    found = {}
    for client in clients:
        rows, turns, radii = place(ClientNodes.of(client.train, shape), client)
        polar = zip(turns.tolist(), radii.tolist(), strict=True)
        here = dict(zip(rows.tolist(), polar, strict=True))
        assert all(found.get(row, where) == where for row, where in here.items())
        found |= here
    return found


def by_client(nodes, client):
    equal = SlotWeights.equal(len(nodes.cells), client.id, client.meta.num_clients)
    return nodes.place(equal)


def by_number(nodes, client):
    return nodes.place_by_number(client.meta.num_classes, client.id, client.meta.num_clients)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", [by_client, by_number])
@given(forests())
def test_the_ancestors_of_a_node_are_nearer_than_all_others(place, shape, forest):
    data = federation(*forest)
    whole = data.holdout.test.hierarchy
    above = {u: set() for u in range(len(whole))}
    for u, v in whole.pairs.tolist():
        above[u].add(v)
    with mpmath.workdps(60):
        places = placed(data.clients, place, shape)
        assert len(set(places.values())) == len(places)
        for u in places:
            ancestors = [distance(places[u], places[v]) for v in above[u]]
            others = [distance(places[u], places[v]) for v in places if v not in above[u] | {u}]
            assert not ancestors or not others or max(ancestors) < min(others)
            if shape == BOTH:  # the parent first, and so on
                upwards = sorted(above[u], key=lambda v: len(above[v]), reverse=True)
                apart = [distance(places[u], places[v]) for v in upwards]
                assert apart == sorted(apart)


def test_heads_of_one_number_have_one_place():
    common, shared = {0: ROOT, 1: 0}, 5
    data = federation(common, [{5: 1, 6: 5}, {5: 1, 7: 5, 8: 7}, {9: 1}])
    one, two, _ = (
        dict(zip(rows.tolist(), zip(turns.tolist(), radii.tolist(), strict=True), strict=True))
        for rows, turns, radii in (
            by_number(ClientNodes.of(client.train), client) for client in data.clients
        )
    )
    assert one[shared] == two[shared]
    assert one[6] != two[7]
    first, second = (by_client(ClientNodes.of(c.train), c) for c in data.clients[:2])
    assert first[1][first[0] == shared] != second[1][second[0] == shared]


@given(forests())
def test_leaves_are_counted_in_the_cell_of_their_head(forest):
    common, private = forest
    for client, own in zip(federation(common, private).clients, private, strict=True):
        nodes = ClientNodes.of(client.train)
        leaves = set(own) - set(own.values())

        def cell_of(node, own=own):
            return cell_of(own[node]) if node in own else node

        expected = [sum(cell_of(x) == cell for x in leaves) for cell in (*sorted(common), ROOT)]
        assert nodes.count_leaves().tolist() == expected


def test_a_common_node_below_a_private_one_is_said(caplog):
    data = federation({0: ROOT, 1: 0}, [{2: 1}, {3: ROOT, 4: 3}])
    for client in data.clients:
        ClientNodes.of(client.train)
    assert not caplog.messages
    own = Hierarchy(tuple("abcde"), torch.tensor([[1, 0], [0, 3]])).closure()
    nodes = ClientNodes.of(dataclasses.replace(data.clients[1].train, hierarchy=own))
    (line,) = caplog.messages
    assert line.startswith("2 pairs have a common node below one of the client's own")
    assert nodes.private == {3: ROOT}


def test_a_hierarchy_that_is_too_deep_is_refused():
    data = federation({0: ROOT}, [{i: i - 1 for i in range(1, 40)}])
    with pytest.raises(ValueError, match=r"too deep for 64 bits of an angle: .* leave levels"):
        by_client(ClientNodes.of(data.clients[0].train), data.clients[0])
    with pytest.raises(ValueError, match=f"{NARROWEST} is the minimum"):
        to_polar([(0, NARROWEST - 1)], [0], CLOSURE)


def test_parts_are_apart_and_fill_what_they_divide():
    parts = divide([(i, i + 1) for i in range(7)], (3, 2**20))
    ends = [start + width for start, width in parts.values()]
    assert [start for start, _ in parts.values()] == [3, *ends[:-1]]
    assert ends[-1] == 3 + 2**20
    around = divide_around([("a", 5), ("b", 1), ("c", 1)], (0, 600), CLOSURE)
    assert around == {"a": (6, 194), "b": (400, 97), "c": (497, 97)}
    assert divide_around([], (0, 600), BOTH) == {}
