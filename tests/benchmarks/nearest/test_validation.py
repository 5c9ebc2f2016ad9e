import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold, cross_val_score

from benchmarks.nearest.validation import fold_accuracies
from flynn import FlyNNClassifier
from flynn.fly_hash import connections, fly_hash


def test_subtracted_folds_are_those_of_training_without_them():
    x, y = load_digits(return_X_y=True)
    x, y = x[:300], y[:300]
    splits = list(StratifiedKFold(10, shuffle=True, random_state=0).split(x, y))
    winners = fly_hash(torch.from_numpy(x), connections(500, 64, 9, seed=4), 20)
    folds = [torch.from_numpy(test) for _, test in splits]
    labels, decays = torch.from_numpy(y), [0.0, 0.3, 0.8]
    found = fold_accuracies(winners, labels, folds, dim=500, num_classes=10, decays=decays)
    for decay, accuracies in zip(decays, found, strict=True):
        model = FlyNNClassifier(500, 9, 20, decay=decay, seed=4, channels="plain", scaling=None)
        np.testing.assert_allclose(accuracies, cross_val_score(model, x, y, cv=splits))
