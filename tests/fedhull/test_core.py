"""Cores: the paper to the bit without a cut, as defined with one, and no class is ever lost."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from fedbolic.core.rng import Rng
from fedbolic.data import ClassRuns, FederatedData, HalfPlanes
from fedhull import (
    Central,
    EuclideanBoundary,
    Farthest,
    FedHull,
    HullPeeling,
    HyperbolicBoundary,
    HyperbolicSVC,
    PolarGrid,
    ValidatedCore,
    hull,
)
from fedhull.exchanges import arrays
from fedhull.geometry.hull import klein
from fedhull.leakage import leakage, quantised_hull, quantised_hulls
from tests.federated.simple_method import train
from tests.fedhull.geometry.test_hull import curvatures, seeds, spread
from tests.fedhull.test_method import federation, received, scores

BOUNDARY = HyperbolicBoundary(C=1.0, pairs=1)
shares = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9, 0.99])
every_rule = pytest.mark.parametrize("rule", [Farthest, HullPeeling])


def kept(core, x, y=None, c=1.0):
    """Indices of the points of the cores; of one class if there are no labels."""
    y = np.zeros(len(x), dtype=np.int64) if y is None else y
    return np.flatnonzero(core.kept(x, y, c=c, boundary=BOUNDARY)).tolist()


def complex_core(x, share):
    """Farthest in the unit disc, written out with complex numbers."""
    z = x[:, 0] + 1j * x[:, 1]
    number = len(z) - math.floor(share * len(z) + 1e-9)

    def exp0(v):
        return math.tanh(abs(v) / 2) * v / abs(v) if v else v

    def moved(by, w):
        return (w + by) / (1 + np.conj(by) * w)

    def log0(w):
        return 2 * np.arctanh(abs(w)) * w / np.maximum(abs(w), 1e-300)

    at = exp0(complex(np.median(log0(z).real), np.median(log0(z).imag)))
    for _ in range(5):
        toward = log0(moved(-at, z))
        at = moved(at, exp0(toward[abs(toward).argsort()[:number]].mean()))
    return sorted(abs(log0(moved(-at, z))).argsort()[:number].tolist())


def qhull_core(x, share):
    """HullPeeling by Qhull in the Klein model."""
    left = np.arange(len(x))
    while len(x) - len(left) < share * len(x) - 1e-9:
        left = np.delete(left, ConvexHull(klein(x[left])).vertices)
    return left.tolist()


@given(seeds, st.integers(12, 80), st.sampled_from([0.1, 0.2, 0.35]))
def test_the_farthest_points_are_those_of_the_formula(seed, n, share):
    x = spread(seed, n)
    assert kept(Farthest(share), x) == complex_core(x, share)


@given(seeds, st.integers(60, 120), st.sampled_from([0.05, 0.1, 0.2]))
def test_peeling_takes_off_hulls_until_the_share_is_gone(seed, n, share):
    x = spread(seed, n)
    assert kept(HullPeeling(share), x) == qhull_core(x, share)


@every_rule
@given(seeds, st.integers(0, 40), shares, st.sampled_from([0, 1]))
def test_a_class_keeps_three_corners_or_all_points(rule, seed, n, share, digits):
    x = spread(seed, n)
    x = np.round(x, digits) if digits else x
    left = kept(rule(share), x)
    assert len(left) == n or len(hull(x[left])) >= 3
    assert bool(left) == bool(n)


@every_rule
@given(seeds, st.integers(1, 60), shares)
def test_the_hull_of_a_core_lies_in_the_hull_of_the_class(rule, seed, n, share):
    x = spread(seed, n)
    left = kept(rule(share), x)
    inner = x[left][hull(x[left])]
    both = np.concatenate([x[hull(x)], inner])
    assert max(hull(both)) < len(hull(x))


@given(seeds, st.integers(20, 60))
def test_a_larger_share_peels_more(seed, n):
    x = spread(seed, n)
    cores = [set(kept(HullPeeling(share), x)) for share in (0.0, 0.1, 0.3, 0.6)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(cores))


@pytest.mark.parametrize(
    "core",
    [
        Farthest(0.2),
        HullPeeling(0.2),
        *(ValidatedCore(rule, (0.0, 0.2), folds=2) for rule in (Farthest(), HullPeeling())),
    ],
)
@settings(max_examples=5)
@given(seeds, st.integers(2, 40), st.randoms(use_true_random=False))
def test_cores_do_not_depend_on_the_order_of_points(core, seed, n, random):
    x, y, order = np.round(spread(seed, n), 1), np.arange(n) % 2, list(range(n))
    random.shuffle(order)
    moved = np.array(order)[kept(core, x[order], y[order])]
    assert {(*x[i], y[i]) for i in moved} == {(*x[i], y[i]) for i in kept(core, x, y)}


@every_rule
@given(seeds, st.integers(1, 60), curvatures)
def test_curvature_is_a_unit_of_length_for_cores(rule, seed, n, c):
    x = spread(seed, n, c)
    assert kept(rule(0.3), x / 4, c=16 * c) == kept(rule(0.3), x, c=c)


@every_rule
def test_classes_are_cut_one_by_one(rule):
    x, y = spread(0, 90), np.arange(90) % 3
    found = kept(rule(0.2), x, y)
    alone = [np.flatnonzero(y == k)[kept(rule(0.2), x[y == k])] for k in range(3)]
    assert found == sorted(np.concatenate(alone).tolist())


@every_rule
@pytest.mark.parametrize("boundary", [BOUNDARY, EuclideanBoundary()])
def test_a_share_of_nothing_is_the_paper_to_the_bit(rule, boundary):
    data = federation(3, missing=2)
    states = [
        train(FedHull(boundary=boundary, core=core), data)[0][-1].server_state
        for core in (None, rule(0.0))
    ]
    model, same = (state["model"] for state in states)
    assert received(states[0]) == received(states[1])
    assert all(torch.equal(model[name], same[name]) for name in model)
    central = [
        train(Central(boundary, hulls="once", core=core), data)[0][-1].server_state["model"]
        for core in (None, rule(0.0))
    ]
    assert all(torch.equal(central[0][name], central[1][name]) for name in central[0])


@every_rule
def test_a_server_reads_the_hulls_of_the_cores(rule):
    data, method = federation(5), FedHull(core=rule(0.2))
    server_state = train(method, data)[0][-1].server_state
    order, expected = server_state["order"].tolist(), {}
    for client in data.clients:
        x, y = arrays(client.train)
        for k in np.unique(y):
            core = x[y == k][kept(rule(0.2), x[y == k])]
            expected[order[client.id] * 3 + int(k)] = quantised_hull(core, method.grid).tolist()
    assert received(server_state) == expected


@every_rule
def test_one_place_trains_on_the_corners_of_the_cores(rule):
    data = federation(6)
    found = train(Central(BOUNDARY, hulls="once", core=rule(0.2)), data)[0][-1].server_state
    x, y = (np.concatenate(of) for of in zip(*(arrays(d.train) for d in data.clients), strict=True))
    cores = [x[y == k][kept(rule(0.2), x[y == k])] for k in range(3)]
    corners = [core[hull(core)] for core in cores]
    labels = np.repeat(np.arange(3), [len(of) for of in corners])
    model = HyperbolicSVC(C=1.0, pairs=1).fit(np.concatenate(corners), labels)
    assert found["model"]["normals"].numpy() == pytest.approx(model.normals_)


def test_cut_points_count_for_the_least_number_in_a_bin():
    grid = PolarGrid(1.0)
    x = np.repeat([[0.3, 0.0], [-0.3, 0.0], [0.0, 0.6]], 3, axis=0)
    core = np.arange(9) % 3 == 0  # one of the three equal points of each bin
    assert len(quantised_hull(x, grid, min_count=3, core=core)) == 3
    assert len(quantised_hull(x, grid, min_count=4, core=core)) == 0
    assert len(quantised_hull(x, grid, core=core & (x[:, 1] == 0))) == 2


def test_a_report_says_whose_points_are_revealed():
    grid = PolarGrid(0.01)
    x = np.stack([np.linspace(-0.5, 0.5, 11), np.zeros(11)], axis=1)
    y = np.zeros(11, dtype=np.int64)
    ends = leakage(x, y, grid, revealed=quantised_hulls(x, y, grid))
    assert (ends.outlying, ends.most_of_class) == (1.0, 2 / 11)
    middle = leakage(x, y, grid, revealed={0: grid.encode(x[[5]])})
    assert (middle.outlying, middle.most_of_class) == (1 / 11, 1 / 11)
    none = leakage(x, y, grid, revealed={})
    assert (none.outlying, none.most_of_class) == (0.0, 0.0)


@every_rule
def test_cores_reveal_points_that_are_less_outlying(rule):
    x, y = spread(1, 400), np.arange(400) % 2
    grid = PolarGrid(0.1)
    core = rule(0.3).kept(x, y, c=1.0, boundary=BOUNDARY)
    before, after = (
        leakage(x, y, grid, revealed=quantised_hulls(x, y, grid, core=mask))
        for mask in (None, core)
    )
    assert after.outlying < before.outlying


def test_where_classes_are_apart_nothing_is_cut():
    y = np.repeat([0, 1], 40)
    x = spread(0, 80, radius=0.5) + np.where(y, 0.5, -0.5)[:, None] * [1, 0]
    assert ValidatedCore().chosen(x, y, c=1.0, boundary=BOUNDARY) == 0.0


def test_where_outliers_overlap_some_are_cut():
    g = np.random.default_rng(0)
    x = 0.08 * g.standard_normal((600, 2)) + np.where(np.arange(600) % 2, 0.3, -0.3)[:, None]
    y = np.arange(600) % 2
    y[:30] = 1 - y[:30]  # a twentieth of the points has the label of the other class
    for rule in (Farthest(), HullPeeling()):
        found = ValidatedCore(rule).chosen(x, y, c=1.0, boundary=BOUNDARY)
        assert found > 0


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_client_with_nothing_to_compare_takes_the_least_share(n):
    x, y = spread(0, n), np.arange(n)
    core = ValidatedCore(shares=(0.05, 0.2))
    assert core.chosen(x, y, c=1.0, boundary=BOUNDARY) == 0.05


def test_cores_help_where_generated_classes_overlap():
    source = HalfPlanes(4000, offset=0.2, overlap=0.5, partition=ClassRuns(4))
    data: FederatedData = source.load(Rng(0))
    found = {
        core: scores(train(FedHull(boundary=BOUNDARY, core=core), data)[1], "holdout/accuracy")
        for core in (None, HullPeeling(0.2))
    }
    assert found[HullPeeling(0.2)][None] > found[None][None]
