"""The contract that every estimator of scikit-learn keeps; it gives values of wrong types, too."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from flynn import FlyHash, FlyNNClassifier


@parametrize_with_checks([FlyHash(), FlyNNClassifier(), FlyNNClassifier(decay=0.0)])
def test_estimators_keep_the_contract_of_sklearn(estimator, check):
    check(estimator)
