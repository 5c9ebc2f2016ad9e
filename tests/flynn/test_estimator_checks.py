"""scikit-learn's contract for estimators, which includes arguments of wrong types."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from flynn import FlyHash, FlyNNClassifier


@parametrize_with_checks(
    [
        FlyHash(),
        FlyHash(channels="signed", scaling="range"),
        FlyNNClassifier(),
        FlyNNClassifier(decay=0.0, channels="plain"),
        FlyNNClassifier(scaling="standard"),
    ]
)
def test_estimators_keep_the_contract_of_sklearn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"channels": "ON"}, r"channels must be one of .*on-off.*'ON'"),
        ({"scaling": "z"}, r"scaling must be one of .*standard.*'z'"),
    ],
)
def test_unknown_names_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FlyHash(**settings).fit(np.zeros((2, 3)))
