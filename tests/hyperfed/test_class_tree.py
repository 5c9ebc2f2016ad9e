"""Prototypes at the leaves of a tree of the classes, compared with the layout by geoopt."""

import dataclasses
import math

import geoopt
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.testing import assert_close

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import (
    BalancedTree,
    CIFAR100Superclasses,
    HierarchyFile,
    balanced_tree,
    random_tree,
)
from fedbolic.hierarchies import TreeLayout
from fedbolic.nn.network.backbone import MLP
from hyperfed import ClassTree, Cones, HyperFed
from hyperfed.prototypes import min_angle, prototypes, tammes
from tests.hierarchies.forests import RandomTree

BALL = geoopt.PoincareBall()
SQUARE = BalancedTree(branching=2, depth=2)


@given(st.integers(1, 12), st.integers(0, 4), st.integers(6, 8), st.floats(0.5, 2.0))
def test_edges_of_cones_have_their_lengths_and_neighbours_the_angles_of_tammes(
    n, seed, dim, growth
):
    tree = random_tree(n, Rng(seed))
    points = Cones(dim, length=0.6, growth=growth).place(tree).points
    above, depths = tree.primary_parents, tree.depths
    for node in range(1, n):
        expected = 0.6 * growth ** int(depths[above[node]])
        assert float(BALL.dist(points[node], points[above[node]])) == pytest.approx(
            expected, rel=1e-9
        )
    for node in range(n):
        below = (above == node).nonzero().flatten()
        around = points[[*below.tolist(), *([int(above[node])] if node else [])]]
        directions = normalize(BALL.logmap(points[node], around), dim=1)
        if len(directions) > 1:
            assert min_angle(directions) >= min_angle(tammes(len(directions), dim)) - 1e-6


@given(st.integers(2, 12), st.integers(2, 12), st.floats(0.1, 0.99))
def test_cones_of_classes_without_superclasses_are_the_prototypes_of_the_paper(n, dim, slope):
    assume(n <= 2 * dim)  # a construction is known, which is balanced about the origin
    points = ClassTree(BalancedTree(n, 1), Cones(dim)).prototypes(n, dim, slope)
    assert_close(points, prototypes(n, dim, slope), rtol=0, atol=1e-12)


def boxes(dim, radius=5.0):
    return TreeLayout(way="boxes", dim=dim, radius=radius)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(2, 9), st.floats(0.1, 0.99))
def test_the_farthest_class_lies_at_the_slope_and_the_centre_within_it(
    branching, depth, dim, slope
):
    num_classes = branching**depth
    tree = ClassTree(BalancedTree(branching, depth), boxes(dim))
    points = tree.prototypes(num_classes, dim, slope)
    assert points.shape == (num_classes, dim)
    assert points.dtype == torch.float64
    assert float(points.norm(dim=1).max()) == pytest.approx(slope, abs=1e-12)
    assert float(points.norm(dim=1).min()) > 0


@pytest.mark.parametrize("dim", [3, 5, 20])
def test_distances_are_those_of_the_layout_where_nothing_is_scaled(dim):
    tree = balanced_tree(3, 2)
    leaves = torch.arange(4, 13)
    places = boxes(dim).place(tree)[leaves]
    expected = BALL.dist(*(places.to_poincare().unsqueeze(i) for i in (0, 1)))
    any_slope = ClassTree(BalancedTree(3, 2), boxes(dim)).prototypes(9, dim, 0.9)
    # the length before it was scaled: that of the farthest leaf from the centroid of the leaves
    lorentz = places.to_lorentz().mean(dim=0)
    lorentz = lorentz / (lorentz[0].square() - lorentz[1:].square().sum()).sqrt()
    centre = lorentz[1:] / (1 + lorentz[0])
    radius = float(BALL.dist(centre, places.to_poincare()).max())
    points = ClassTree(BalancedTree(3, 2), boxes(dim)).prototypes(9, dim, math.tanh(radius / 2))
    assert_close(BALL.dist(*(points.unsqueeze(i) for i in (0, 1))), expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(any_slope, points)


@pytest.mark.parametrize(
    "layout", [boxes(5), boxes(10), boxes(100), Cones(10, 1.5, 1.0), Cones(100)]
)
def test_every_class_of_cifar_100_is_nearer_to_its_siblings(layout):
    tree = CIFAR100Superclasses().read(None, download=False)
    points = ClassTree(CIFAR100Superclasses(), layout).prototypes(100, layout.dim, 0.9)
    distances = BALL.dist(points[:, None], points)
    above = tree.primary_parents[:100]
    siblings = above[:, None] == above
    nearest = distances.fill_diagonal_(math.inf).argmin(dim=1)
    assert bool(siblings[torch.arange(100), nearest].all())
    outside = distances[~siblings].mean() - distances[siblings].nan_to_num(posinf=0).sum() / 400
    assert float(outside) > 0.5


def test_a_larger_radius_brings_siblings_closer_and_keeps_superclasses_apart():
    tree = CIFAR100Superclasses().read(None, download=False)
    above = tree.primary_parents[:100]
    siblings = (above[:, None] == above) & ~torch.eye(100, dtype=torch.bool)
    shares = []
    for radius in (3.0, 4.0, 5.0):
        points = ClassTree(CIFAR100Superclasses(), boxes(20, radius)).prototypes(100, 20, 0.9)
        distances = BALL.dist(points[:, None], points)
        shares.append(float(distances[siblings].mean() / distances[~siblings].mean()))
    assert shares == sorted(shares, reverse=True)
    assert len({*shares}) == 3


def test_classes_of_a_file_are_its_leaves_in_the_order_of_their_names(tmp_path):
    file = tmp_path / "parents.csv"
    file.write_text("child,parent\nzebra,animal\napple,fruit\nmule,animal\npear,fruit\n")
    points = ClassTree(HierarchyFile(file), boxes(3)).prototypes(4, 3, 0.9)
    distances = BALL.dist(points[:, None], points).fill_diagonal_(math.inf)
    assert distances.argmin(dim=1).tolist() == [2, 3, 0, 1]  # apple, mule, pear, zebra


@pytest.mark.parametrize(
    ("tree", "layout", "error"),
    [
        (BalancedTree(2, 3), boxes(4), "8 leaves, but there are 4 classes"),
        (SQUARE, boxes(5), "the layout has 5 dimensions, but features have 4"),
        (SQUARE, TreeLayout(), "the layout has 2 dimensions, but features have 4"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused(tree, layout, error):
    with pytest.raises(ValueError, match=error):
        ClassTree(tree, layout).prototypes(4, 4, 0.9)


def test_one_class_has_no_neighbours():
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        ClassTree(BalancedTree(1, 2), boxes(4)).prototypes(1, 4, 0.9)


@pytest.mark.parametrize("slope", [0.0, 1.0, math.nan])
def test_a_slope_outside_the_ball_is_refused(slope):
    with pytest.raises(ValueError, match="slope must lie in"):
        ClassTree(SQUARE, boxes(4)).prototypes(4, 4, slope)


def test_hyperfed_takes_the_places_of_the_tree():
    arrangement = ClassTree(RandomTree(30), boxes(4))
    num_classes = len(
        set(range(30)) - set(RandomTree(30).read(None, download=False).primary_parents.tolist())
    )
    method = HyperFed(MLP((4,)), slope=0.8, arrangement=arrangement)
    state = method.init(Meta(num_classes, (5,), 3), Rng(0))
    expected = arrangement.prototypes(num_classes, 4, 0.8)
    assert_close(state["prototypes"]["head.weight"], expected.float())


def test_own_prototypes_have_no_tree():
    method = HyperFed(arrangement=ClassTree(SQUARE, boxes(20)))
    with pytest.raises(ValueError, match="prototypes='own'"):
        dataclasses.replace(method, prototypes="own")
