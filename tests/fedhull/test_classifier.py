"""The estimator: scikit-learn's contract, reference points, geodesic boundaries."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from fedbolic.manifolds import Poincare
from fedhull.classifier import HyperbolicSVC, ToBall
from fedhull.geometry.hull import hull
from fedhull.geometry.reference import midpoints, overlap
from tests.fedhull.geometry.test_hull import spread

seeds = st.integers(0, 2**31)
curvatures = st.sampled_from([0.25, 1.0, 3.0])


def failures(estimator):
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    return {check["check_name"] for check in found if check["status"] == "failed"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_pipeline_keeps_the_contract_of_scikit_learn():
    """scikit-learn's own pipelines fail these two checks, too: a pipeline replaces its steps."""
    own = failures(make_pipeline(StandardScaler(), LogisticRegression()))
    assert failures(make_pipeline(ToBall(), HyperbolicSVC())) <= own
    assert own <= {"check_estimators_overwrite_params", "check_dont_overwrite_parameters"}


def two_hulls(seed, c, apart):
    x = spread(seed, 12, c, radius=1.5)
    away = Poincare(c).expmap0(torch.tensor([apart / 2 / c**0.5, 0.0], dtype=torch.float64))
    y = Poincare(c).mobius_add(away, torch.from_numpy(spread(seed + 1, 12, c, 1.5))).numpy()
    return x[hull(x, c=c)], y[hull(y, c=c)]


def sides(polygon, c, num=150):
    """Many points on every side of a polygon, by the exponential map."""
    start, space = torch.from_numpy(polygon), Poincare(c)
    along = space.logmap(start, start.roll(-1, dims=0))
    at = torch.linspace(0, 1, num, dtype=torch.float64)[:, None, None]
    return space.expmap(start, at * along).flatten(0, 1)


@given(seeds, curvatures)
def test_the_exact_reference_point_halves_the_distance_of_the_hulls(seed, c):
    one, other = two_hulls(seed, c, apart=6.0)
    assert not overlap(one, other, c=c)
    (p,) = midpoints(one, other, c=c, reference="exact")
    space, p = Poincare(c), torch.from_numpy(p)
    to_one, to_other = (space.dist(p, sides(of, c)).min() for of in (one, other))
    least = space.cdist(sides(one, c), sides(other, c)).min()
    assert float(to_one) == pytest.approx(float(to_other), rel=2e-3)
    assert float(to_one + to_other) == pytest.approx(float(least), rel=2e-3)


@given(seeds, curvatures, st.integers(1, 5))
def test_reference_points_halve_the_nearest_pairs_of_corners(seed, c, pairs):
    one, other = two_hulls(seed, c, apart=4.0)
    space = Poincare(c)
    distances = [
        (float(space.dist(torch.from_numpy(x), torch.from_numpy(y))), i, j)
        for i, x in enumerate(one)
        for j, y in enumerate(other)
    ]
    found = torch.from_numpy(midpoints(one, other, c=c, pairs=pairs))
    for p, (distance, i, j) in zip(found, sorted(distances), strict=False):
        for corner in (one[i], other[j]):
            to = float(space.dist(p, torch.from_numpy(corner)))
            assert to == pytest.approx(distance / 2, rel=1e-6)
    assert len(found) == min(pairs, len(one) * len(other))


def test_corners_may_be_farther_apart_than_hulls():
    """The paper's nearest pair of extreme points can be farther apart than the hulls are."""
    wall = np.array([[0.0, 0.8], [0.0, -0.8]])
    point = np.array([[0.3, 0.0]])
    by_corners, exact = (
        midpoints(point, wall, reference=reference) for reference in ("vertices", "exact")
    )
    assert abs(by_corners[0, 1]) > 0.1
    np.testing.assert_allclose(exact, [[np.tanh(np.arctanh(0.3) / 2), 0]], atol=1e-12)


def test_hulls_may_be_nearest_where_neither_has_a_corner():
    """Two geodesics have a common perpendicular: comparing corners with sides is not enough."""
    one = np.array([[0.4, 0.8], [0.4, -0.8]])
    (by_corners,), (exact,) = (
        midpoints(one + np.array([0.0, 0.05]), -one, reference=reference)
        for reference in ("vertices", "exact")
    )
    assert abs(by_corners[1]) > 0.5
    assert abs(exact[1]) < 0.1


@given(seeds, curvatures)
def test_hulls_that_share_a_point_overlap(seed, c):
    one, other = two_hulls(seed, c, apart=0.5)
    both = np.concatenate([other, one[:1]])
    assert overlap(one, both[hull(both, c=c)], c=c)


def test_equal_points_of_two_classes_are_their_own_reference_point():
    p = np.array([[0.3, 0.2]])
    np.testing.assert_allclose(midpoints(p, p), p, atol=1e-15)


def test_a_missing_hull_is_an_error():
    with pytest.raises(ValueError, match="both hulls need a corner"):
        midpoints(np.empty((0, 2)), np.zeros((1, 2)))


@given(seeds)
def test_rotations_keep_scores(seed):
    x = spread(seed, 40)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0.05).astype(int)
    y[:2] = 0, 1
    turned = x @ np.array([[0.6, -0.8], [0.8, 0.6]])
    first, second = HyperbolicSVC().fit(x, y), HyperbolicSVC().fit(turned, y)
    np.testing.assert_allclose(
        first.decision_function(x), second.decision_function(turned), atol=1e-6
    )


def test_the_penalty_of_the_paper_depends_on_where_the_reference_point_lies():
    """log_p has coordinates that shrink towards the boundary, so a translation changes lambda."""
    x = spread(0, 40)
    y = (x[:, 0] > 0.05).astype(int)
    moved = Poincare().mobius_add(torch.tensor([0.0, 0.8]).double(), torch.from_numpy(x)).numpy()
    first, second = HyperbolicSVC(C=0.01).fit(x, y), HyperbolicSVC(C=0.01).fit(moved, y)
    ratio = (1 - np.square(second.points_).sum()) / (1 - np.square(first.points_).sum())
    assert ratio < 0.5
    same = HyperbolicSVC(C=0.01 / ratio**2).fit(moved, y)
    apart, near = (
        np.abs(first.decision_function(x) - model.decision_function(moved)).max()
        for model in (second, same)
    )
    assert near < 1e-6
    assert apart > 0.1


def test_separated_classes_are_separated_and_certified():
    near = torch.from_numpy(spread(0, 10, radius=0.5))
    turns = 2 * torch.pi * torch.arange(3).double() / 3
    centres = 0.8 * torch.stack([turns.cos(), turns.sin()], dim=1)
    x = Poincare().mobius_add(centres[:, None], near).flatten(0, 1).numpy()
    y = np.repeat(["c", "b", "a"], 10)
    for loss in ("hinge", "squared_hinge"):
        model = HyperbolicSVC(C=100.0, loss=loss).fit(x, y)
        assert model.score(x, y) == 1.0
        assert model.gap_ < 1e-8
        np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
        assert (model.classes_[model.predict_proba(x).argmax(axis=1)] == y).all()


def test_one_class_and_points_outside_are_refused():
    with pytest.raises(ValueError, match="got one class, "):
        HyperbolicSVC().fit(np.zeros((3, 2)), [3, 3, 3])
    with pytest.raises(ValueError, match="open ball"):
        HyperbolicSVC().fit(np.array([[0.0, 0.0], [2.0, 0.0]]), [0, 1])


def test_curvature_is_a_unit_of_length():
    x = spread(0, 30, 4.0)
    y = (x[:, 0] > 0).astype(int)
    small = HyperbolicSVC(c=4.0, C=0.1).fit(x, y).predict(x)
    large = HyperbolicSVC(c=1.0, C=0.1 / 4).fit(2 * x, y).predict(2 * x)
    assert (small == large).all()
