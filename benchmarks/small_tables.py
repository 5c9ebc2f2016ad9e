"""FlyNNClassifier by default and kNN on small tables: ``python -m benchmarks.small_tables``.

Ten folds; scales are learned on the training folds.
"""

import argparse
import itertools
import statistics
from typing import Any, get_args

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from flynn import FlyNNClassifier
from flynn.channels import Channels
from flynn.fitted import Rescaling

SCALERS: dict[Rescaling, Any] = {
    None: "passthrough",
    "range": MinMaxScaler((-1, 1)),
    "standard": StandardScaler(),
}

Examples = tuple[np.ndarray, np.ndarray]


def tables() -> dict[str, Examples]:
    """Small tables of scikit-learn, and Breiman's twonorm, by name."""
    loaders = {"breast cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits}
    found = {}
    for name, load in loaders.items():
        x, y = load(return_X_y=True)
        found[name] = np.asarray(x), np.asarray(y)
    return {**found, "twonorm": twonorm()}


def twonorm(n: int = 2000, d: int = 20) -> Examples:
    """Two normal classes at plus and minus ``2 / sqrt(d)`` in every feature.

    Args:
        n: Number of examples.
        d: Number of features.

    References:
        Breiman (1996), Bias, variance, and arcing classifiers.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, d)) + (2 * y[:, None] - 1) * 2 / np.sqrt(d), y


def accuracies(x: np.ndarray, y: np.ndarray, model: FlyNNClassifier, lifts: int) -> list[float]:
    """The ten-fold accuracy with each of several lifts.

    Args:
        x: Examples.
        y: Their labels.
        model: Estimator with all settings except the seed.
        lifts: Number of lifts.
    """
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    return [
        float(cross_val_score(model.set_params(seed=seed), x, y, cv=folds).mean())
        for seed in range(lifts)
    ]


def main() -> None:
    """Print a row for each table and scaling: mean and standard deviation over lifts, and kNN."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lifts", type=int, default=5, help="draws of the lift and the signs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    kinds: tuple[Channels, ...] = get_args(Channels)
    print("| table | scaling | " + " | ".join(kinds) + " | kNN |\n" + "|-" * (3 + len(kinds)) + "|")
    for (name, (x, y)), scaling in itertools.product(tables().items(), SCALERS):
        cells = []
        for channels in kinds:
            model = FlyNNClassifier(channels=channels, scaling=scaling)
            found = accuracies(x, y, model, options.lifts)
            cells.append(f"{statistics.fmean(found):.3f} ± {statistics.stdev(found):.3f}")
        rival = make_pipeline(SCALERS[scaling], KNeighborsClassifier())
        nearest = f"{cross_val_score(rival, x, y, cv=folds).mean():.3f}"
        print(f"| {name} | {scaling} | " + " | ".join(cells) + f" | {nearest} |", flush=True)


if __name__ == "__main__":
    main()
