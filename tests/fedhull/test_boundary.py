"""The server's boundary equals that of the estimators, as numbers that clients can apply."""

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from fedhull import EuclideanBoundary, HyperbolicBoundary, HyperbolicSVC
from fedhull.boundary import Boundary
from tests.fedhull.geometry.test_hull import spread


def points(num_classes):
    x = spread(0, 90)
    return x, (np.digitize(x[:, 0], np.quantile(x[:, 0], np.arange(1, num_classes) / num_classes)))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_learned_tree_predicts_as_the_estimator(num_classes):
    x, y = points(num_classes)
    for loss in ("hinge", "squared_hinge"):
        model = HyperbolicSVC(2.0, loss=loss, pairs=2).fit(x, y)
        boundary = HyperbolicBoundary(2.0, loss, pairs=2)
        found = boundary.log_odds(boundary.fit(x, y, c=1.0), x, c=1.0)
        assert (found.argmax(axis=1) == model.predict(x)).all()
        assert found.shape == (len(x), num_classes)


def test_two_classes_in_flat_coordinates_are_those_of_scikit_learn():
    x, y = points(2)
    boundary = EuclideanBoundary(0.7)
    found = boundary.log_odds(boundary.fit(x, y, c=1.0), x, c=1.0)
    assert (found.argmax(axis=1) == LinearSVC(C=0.7).fit(x, y).predict(x)).all()


@pytest.mark.parametrize("boundary", [HyperbolicBoundary(2.0), EuclideanBoundary(2.0)])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_scores_are_zero_along_the_curves(boundary: Boundary, num_classes):
    x, y = points(num_classes)
    learned = boundary.fit(x, y, c=1.0)
    curves = boundary.curves(learned, c=1.0)
    assert len(curves) == (1 if num_classes == 2 else num_classes)
    at = learned["platt"][:, 1].numpy()
    for k, curve in enumerate(curves):
        near = curve[np.linalg.norm(curve, axis=1) < 0.99]
        odds = boundary.log_odds(learned, near, c=1.0)[:, 1 if num_classes == 2 else k]
        if len(near) > 1:
            np.testing.assert_allclose(odds, at[k], atol=1e-6)


@pytest.mark.parametrize("boundary", [HyperbolicBoundary(), EuclideanBoundary()])
def test_a_class_without_points_is_an_error(boundary: Boundary):
    with pytest.raises(ValueError, match="class"):
        boundary.fit(np.zeros((3, 2)), np.array([0, 0, 0]), c=1.0)
