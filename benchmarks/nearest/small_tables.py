"""Accuracies of FlyNNClassifier and kNN on small tables: ten folds, scales of training folds."""

import csv
import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from benchmarks.nearest.rows import raw_task
from benchmarks.table import head, line, spread
from fedbolic.data.tables.table import TABLES
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

    References:
        Breiman (1996), Bias, variance, and arcing classifiers.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, d)) + (2 * y[:, None] - 1) * 2 / np.sqrt(d), y


def accuracies(x: np.ndarray, y: np.ndarray, model: FlyNNClassifier, lifts: int) -> list[float]:
    """The ten-fold accuracy with each of several lifts."""
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    return [
        float(cross_val_score(model.set_params(seed=seed), x, y, cv=folds).mean())
        for seed in range(lifts)
    ]


def more_tables(most: int = 250_000) -> dict[str, Examples]:
    """The tables of :func:`tables`, and those of the paper with few values."""
    tasks = {str(number): raw_task(str(number)) for number in TABLES}
    small = {name: (task.x, task.y) for name, task in tasks.items() if task.x.size <= most}
    return {**tables(), **small}


class NearestByChoice(BaseEstimator, ClassifierMixin):
    """kNN with the scaling and the number of neighbours that leaving one out finds best."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> "NearestByChoice":
        """Fit all pairs and keep the one with most right answers."""
        self.classes_ = np.unique(y)
        found = {}
        for scaling, k in itertools.product(SCALERS, (1, 5, 15, 45)):
            model: Any = make_pipeline(clone_of(scaling), KNeighborsClassifier(k)).fit(x, y)
            near = model[-1].kneighbors(return_distance=False)  # of others than the example itself
            votes = (y[near][:, :, None] == self.classes_).sum(1)
            found[model] = (self.classes_[votes.argmax(1)] == y).mean()
        self.model_ = max(found, key=lambda model: found[model])
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels by the pair that was kept."""
        return self.model_.predict(x)


def clone_of(scaling: Rescaling) -> Any:
    """An unfitted scaler, or none."""
    return SCALERS[scaling] if scaling is None else clone(SCALERS[scaling])


def choice(results: Path) -> None:
    """Write the accuracies of every table to a file and print them, and count the tables."""
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    rows = []
    print(head("table", "auto", "best of nine", "on-off, not scaled", "kNN"))
    for name, (x, y) in more_tables().items():
        nine = {
            (scaling, channels): cross_val_score(
                FlyNNClassifier(scaling=scaling, channels=channels), x, y, cv=folds
            ).mean()
            for scaling, channels in itertools.product(SCALERS, get_args(Channels))
        }
        auto, rival = (
            cross_val_score(model, x, y, cv=folds).mean()
            for model in (FlyNNClassifier(), NearestByChoice())
        )
        rows.append([name, auto, max(nine.values()), nine[None, "on-off"], rival])
        print(line(name, *(f"{v:.3f}" for v in rows[-1][1:])), flush=True)
        with results.open("w", newline="") as lines:
            csv.writer(lines).writerows([["table", "auto", "best", "default", "kNN"], *rows])
    near = sum(best - auto <= 0.01 for _, auto, best, *_ in rows)
    ahead = [sum(row[1] > row[i] for row in rows) for i in (3, 4)]
    print(
        f"of {len(rows)} tables: within .01 of the best of nine on {near}; ahead of on-off without "
        f"scaling on {ahead[0]}, of kNN on {ahead[1]}"
    )


def by_scaling(lifts: int) -> None:
    """Print a row for each table and scaling: mean and standard deviation over lifts, and kNN.

    Args:
        lifts: Draws of the lift and the signs.
    """
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    kinds: tuple[Channels, ...] = get_args(Channels)
    print(head("table", "scaling", *kinds, "kNN"))
    for (name, (x, y)), scaling in itertools.product(tables().items(), SCALERS):
        cells = []
        for channels in kinds:
            model = FlyNNClassifier(channels=channels, scaling=scaling)
            cells.append(spread(accuracies(x, y, model, lifts), 3))
        rival = make_pipeline(SCALERS[scaling], KNeighborsClassifier())
        nearest = f"{cross_val_score(rival, x, y, cv=folds).mean():.3f}"
        print(line(name, scaling, *cells, nearest), flush=True)
