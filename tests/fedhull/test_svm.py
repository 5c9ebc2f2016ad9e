"""The support vector machine: certified optimal, and at least as good as liblinear or descent."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.svm import LinearSVC

from fedhull.platt import platt_scaling
from fedhull.svm import fit_normal

seeds = st.integers(0, 2**31)
losses = st.sampled_from(["hinge", "squared_hinge"])
penalties = st.sampled_from([0.01, 0.1, 5.0, 2e4])


def examples(seed, n, dim=2, apart=1.0):
    g = np.random.default_rng(seed)
    y = np.where(g.random(n) < 0.5, 1.0, -1.0)
    x = g.normal(size=(n, dim))
    x[:, 0] += apart * y
    return x, y


def objective(w, x, y, C, loss):
    t = np.maximum(1 - y * (x @ w), 0)
    return w @ w / 2 + C * (t if loss == "hinge" else t * t).sum()


@given(seeds, st.integers(1, 200), st.sampled_from([1, 2, 7]), penalties, losses)
def test_every_solution_is_certified(seed, n, dim, C, loss):
    for apart in (0.0, 3.0):
        x, y = examples(seed, n, dim, apart)
        solved = fit_normal(x, y, C=C, loss=loss)
        assert solved.objective == pytest.approx(objective(solved.w, x, y, C, loss), rel=1e-12)
        assert solved.gap <= 1e-8 * solved.objective


@given(seeds, st.integers(2, 60), penalties, losses)
def test_nothing_nearby_is_better_than_the_gap_allows(seed, n, C, loss):
    x, y = examples(seed, n)
    solved = fit_normal(x, y, C=C, loss=loss)
    g = np.random.default_rng(seed)
    for size in 10.0 ** np.arange(-6, 1):
        other = solved.w + size * g.normal(size=2)
        assert objective(other, x, y, C, loss) >= solved.objective - solved.gap - 1e-12 * C * n
    found = minimize(objective, solved.w, (x, y, C, loss), method="Nelder-Mead")
    assert found.fun >= solved.objective - solved.gap - 1e-12 * C * n


@given(seeds, st.integers(10, 100), st.sampled_from([0.1, 1.0]), losses)
def test_it_is_no_worse_than_liblinear(seed, n, C, loss):
    x, y = examples(seed, n)
    y[:2] = 1, -1
    model = LinearSVC(C=C, loss=loss, fit_intercept=False, tol=1e-10, max_iter=20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    w = model.coef_[0]
    solved = fit_normal(x, y, C=C, loss=loss)
    assert objective(w, x, y, C, loss) >= solved.objective * (1 - 1e-8)
    if loss == "squared_hinge":
        np.testing.assert_allclose(solved.w, w, atol=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("order", ["mixed", "sorted"])
def test_many_examples_are_certified_in_any_order(loss, order):
    """The solver starts at the normal of every eighth example, which may be of one class."""
    x, y = examples(1, 5000)
    if order == "sorted":
        x, y = x[y.argsort()], np.sort(y)
        y[::8] = 1.0
    solved = fit_normal(x, y, C=1.0, loss=loss)
    assert solved.objective == pytest.approx(objective(solved.w, x, y, 1.0, loss), rel=1e-12)
    assert solved.gap <= 1e-8 * solved.objective


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_examples_of_other_types_are_those_of_their_values(loss, dtype):
    x, y = examples(2, 40)
    x, y = (4 * x).astype(dtype), y.astype(dtype)
    expected = fit_normal(x.astype(float), y.astype(float), C=1.0, loss=loss).w
    np.testing.assert_array_equal(fit_normal(x, y, C=1.0, loss=loss).w, expected)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("C", [0.1, 5.0, 2e4])
def test_degenerate_data_are_no_special_case(loss, C):
    p = np.array([1.0, 0.3])
    for x, y in (
        (np.array([p, -p]), np.array([1.0, -1.0])),  # the nearest pair seen from its midpoint
        (np.array([p, p, p, p]), np.array([1.0, -1.0, 1.0, -1.0])),
        (np.zeros((3, 2)), np.array([1.0, -1.0, 1.0])),
        (np.outer([1, 2, -1, -2], p), np.array([1.0, 1.0, -1.0, -1.0])),
        (np.outer([1, 1, -1, -1], p), np.array([1.0, 1.0, -1.0, -1.0])),
    ):
        solved = fit_normal(x, y, C=C, loss=loss)
        assert solved.gap <= 1e-8 * max(solved.objective, 1e-300)


def test_a_hard_margin_by_hand():
    """Two points at +-2: the margin is 1 for w = 1/2, and the objective is 1/8."""
    solved = fit_normal(
        np.array([[2.0, 0.0], [-2.0, 0.0]]), np.array([1.0, -1.0]), C=1e4, loss="hinge"
    )
    np.testing.assert_allclose(solved.w, [0.5, 0.0], atol=1e-8)
    assert solved.objective == pytest.approx(0.125)


def test_the_hinge_of_the_paper_and_the_squared_hinge_of_its_code_differ():
    """Eq. (7) as printed does not give the published numbers."""
    x, y = examples(3, 50)
    printed, released = (
        fit_normal(x, y, C=0.1, loss=name).w for name in ("hinge", "squared_hinge")
    )
    assert np.linalg.norm(printed - released) > 0.01


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="C must be a positive"):
        fit_normal(np.ones((2, 2)), np.array([1.0, -1.0]), C=0.0)


@given(seeds, st.integers(12, 60), st.sampled_from([0.0, 1.0, 5.0]))
def test_platt_scaling_is_that_of_scikit_learn(seed, n, apart):
    x, y = examples(seed, n, dim=1, apart=apart)
    y[:12] = [1, -1] * 6  # scikit-learn splits these data, though it refits nothing
    model = LinearSVC(dual=False).fit(x, y)
    theirs = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid").fit(x, y)
    a, b = platt_scaling(model.decision_function(x), y > 0)
    ours = 1 / (1 + np.exp(-a * model.decision_function(x) - b))
    np.testing.assert_allclose(ours, theirs.predict_proba(x)[:, 1], atol=2e-3)


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("order", ["mixed", "sorted", "small"])
def test_platt_scaling_of_many_scores_is_optimal_in_any_order(order, shift):
    """A convex loss is least where its gradient is 0.

    Every eighth score may be of one class, or so small that its slope is far too large for others.
    """
    x, y = examples(1, 5000, dim=1)
    if order == "sorted":
        x, y = x[y.argsort()], np.sort(y)
        y[::8] = 1.0
    if order == "small":
        x[::8] = 1e-100 * y[::8, None]
    scores, positive = x[:, 0], y > 0
    a, b = platt_scaling(scores, positive, shift=shift)
    ends = (positive.sum() + 1) / (positive.sum() + 2), 1 / ((~positive).sum() + 2)
    excess = expit(a * scores + b) - np.where(positive, *ends)
    assert abs(excess @ scores) < 1e-3
    assert abs(excess.sum()) < 1e-3 if shift else b == 0
