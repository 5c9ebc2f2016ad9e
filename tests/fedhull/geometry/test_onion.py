"""Onion layers: exact, equal to peeling in rational arithmetic, without a hull of all each time."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhull.geometry import onion
from fedhull.geometry.hull import klein_hull
from fedhull.geometry.onion import onion_layers
from tests.fedhull.geometry.test_hull import (
    cluster,
    curvatures,
    exact_chain,
    exact_extremes,
    seeds,
    spread,
)


@pytest.fixture
def recursive(monkeypatch):
    """Small sets are treated as large ones are."""
    monkeypatch.setattr(onion, "FEWEST", 12)
    monkeypatch.setattr(onion, "SPARSE", 2)


def peeled(x, corners):
    """Layers by definition, with a function for the corners of distinct points."""
    left, layers = np.arange(len(x)), []
    while len(left):
        outer = {tuple(x[left[i]]) for i in corners(x[left])}
        gone = np.array([tuple(point) in outer for point in x[left].tolist()])
        layers.append(left[gone].tolist())
        left = left[~gone]
    return layers


def found(x, c=1.0):
    return [layer.tolist() for layer in onion_layers(x, c=c)]


@given(seeds, st.integers(0, 9), st.sampled_from([0.0, 18.0, 30.0]))
def test_layers_are_those_of_the_definition_in_rational_arithmetic(seed, n, distance):
    x = cluster(seed, n, distance) if n else np.empty((0, 2))
    assert found(x) == peeled(x, exact_extremes)


@given(seeds, st.integers(1, 120), st.sampled_from([0, 1, 3]))
@pytest.mark.usefixtures("recursive")
def test_outer_points_and_one_polygon_stand_for_all(seed, n, digits):
    """Rounded points have copies and lines of points."""
    x = spread(seed, n)
    if digits:
        x = np.round(x, digits)
    assert found(x) == peeled(x, exact_chain)


@pytest.mark.usefixtures("recursive")
@pytest.mark.parametrize(
    "x",
    [
        np.linspace(-0.5, 0.5, 40)[:, None] * [[1.0, 1.0]],  # one geodesic
        np.tile([[0.1, 0.2]], (40, 1)),
        0.5 * np.stack([np.cos(np.arange(40.0)), np.sin(np.arange(40.0))], axis=1),  # all corners
        np.concatenate([spread(0, 60) * 1e-9, [[0.9, 0.1], [-0.3, 0.8], [0.1, -0.9]]]),
    ],
)
def test_degenerate_sets_are_peeled_too(x):
    assert found(x) == peeled(x, exact_chain)


@given(seeds, st.integers(1, 60), st.randoms(use_true_random=False))
def test_layers_do_not_depend_on_the_order_of_points(seed, n, random):
    x, order = np.round(spread(seed, n), 1), list(range(n))
    random.shuffle(order)
    moved = [sorted(order[i] for i in layer) for layer in found(x[order])]
    assert moved == found(x)


@given(seeds, st.integers(1, 60), curvatures)
def test_curvature_is_a_unit_of_length_for_layers(seed, n, c):
    x = spread(seed, n, c)
    assert found(x / 4, c=16 * c) == found(x, c=c)


@given(seeds, st.integers(1, 60))
def test_every_point_is_in_one_layer(seed, n):
    assert sorted(itertools.chain(*found(spread(seed, n)))) == list(range(n))


def test_layers_cost_a_few_hulls_of_all_points(monkeypatch):
    """Without the outer points, each of the layers would cost a hull of all that is left."""
    sizes = []

    def counted(points, flat, *, c):
        sizes.append(len(points))
        return klein_hull(points, flat, c=c)

    monkeypatch.setattr(onion, "klein_hull", counted)
    x = np.random.default_rng(0).normal(size=(30_000, 2)) / 10
    gone = num_layers = 0
    for layer in onion_layers(x):
        gone, num_layers = gone + len(layer), num_layers + 1
        if gone > 0.2 * len(x):
            break
    assert num_layers > 60
    assert sum(sizes) < 15 * len(x)
