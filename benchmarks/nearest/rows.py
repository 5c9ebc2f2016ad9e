"""Rows of the FlyNN paper's comparison, each tuned on one data set by its ten folds."""

import itertools
import os
import re
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import normalize, scale

from benchmarks.nearest import simhash
from benchmarks.nearest.validation import fold_accuracies
from fedbolic.data import Synthetic, Table
from flynn.channels import Channels, channel_signs, width
from flynn.fly_hash import connections, fly_hash

SYNTHETIC = re.compile(r"(binary|real) (\d+) x (\d+)")
NUM_FOLDS = 10
NUM_SETTINGS = 60  # of FlyNN, the paper's number
NUM_FIRST = 20  # of them drawn over all ranges; the others around the best so far
LARGEST_K = 64
MOST_BITS = 2**16  # of SimHash; the paper goes to 2048 d
ROW_OF: dict[Channels, str] = {"plain": "FlyNN", "signed": "signed", "on-off": "on-off"}


@dataclass(frozen=True, eq=False)
class Task:
    """A data set with its folds."""

    x: np.ndarray
    y: np.ndarray

    @property
    def num_classes(self) -> int:
        """Number of classes; labels are the integers below it."""
        return int(self.y.max()) + 1

    def splits(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Stratified folds as training and test positions, the same for every row."""
        folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=5489)
        return list(folds.split(self.x, self.y))

    def folds(self) -> list[torch.Tensor]:
        """Test positions of every fold."""
        return [torch.from_numpy(test) for _, test in self.splits()]


def neighbours(task: Task) -> tuple[float, float]:
    """Accuracy of the best k from 1 to 64, and accuracy of k = 1."""
    right = np.zeros((NUM_FOLDS, LARGEST_K))
    for fold, (train, test) in enumerate(task.splits()):
        k = min(LARGEST_K, len(train))
        near = NearestNeighbors(n_neighbors=k).fit(task.x[train])
        found = task.y[train][near.kneighbors(task.x[test], return_distance=False)]
        votes = np.cumsum(found[:, :, None] == np.arange(task.num_classes), axis=1)
        right[fold] = (votes.argmax(axis=2) == task.y[test, None]).mean(axis=0)
    means = right.mean(axis=0)
    return float(means.max()), float(means[0])


def majority(task: Task) -> float:
    """Accuracy of the class that is most frequent in the training part of a fold."""
    y = task.y
    return float(
        np.mean(
            [np.mean(y[test] == np.bincount(y[train]).argmax()) for train, test in task.splits()]
        )
    )


def setting(
    point: np.ndarray, d: int, most: int, channels: Channels = "plain"
) -> tuple[int, int, int, float]:
    """Values of m, s, rho and gamma at a point of the unit cube; the first three vary by ratio.

    Hashes of all channels are equally long; rows add up the same share of the values.
    """
    values = width(channels, d)
    m = round(2 * d * (most / 2) ** point[0])
    s = round(2 * max(values / 4, 1) ** point[1])
    rho = round(8 * 32 ** point[2])
    gamma = 0.0 if point[3] < 0.1 else 0.8 * (point[3] - 0.1) / 0.9
    return m, min(s, values), min(rho, m // 2), gamma


def flynn(
    task: Task, seed: int, *, most: int, lifts: int, channels: Channels = "plain"
) -> tuple[float, list[float]]:
    """Accuracy of the best of 60 settings, and of that setting with other lifts."""
    x, labels, folds = torch.from_numpy(task.x), torch.from_numpy(task.y), task.folds()
    rng, d = np.random.default_rng(seed), task.x.shape[1]

    def accuracy(point: np.ndarray, lift: int) -> float:
        m, s, rho, gamma = setting(point, d, most, channels)
        rows = connections(m, width(channels, d), s, lift)
        winners = fly_hash(x, rows, rho, signs=channel_signs(channels, d, lift))
        sizes = {"dim": m, "num_classes": task.num_classes}
        return float(fold_accuracies(winners, labels, folds, **sizes, decays=[gamma]).mean())

    best, top = np.zeros(4), -1.0
    for trial in range(NUM_SETTINGS):
        point = rng.random(4)
        if trial >= NUM_FIRST:
            point = np.clip(best + 0.2 * rng.standard_normal(4), 0, 1)
        found = accuracy(point, seed)
        if found > top:
            best, top = point, found
    return top, [accuracy(best, lift) for lift in range(seed + 1, seed + 1 + lifts)]


def sbfc(task: Task, seed: int) -> float:
    """Accuracy of a SimHash Bloom filter of the best length."""
    d = task.x.shape[1]
    shares = [0.05, *(k / 10 for k in range(1, 10)), *(2.0**k for k in range(1, 12))]
    lengths = sorted({min(max(1, round(share * d)), MOST_BITS) for share in shares})
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)
    sizes = {"dims": lengths, "num_classes": task.num_classes}
    found = simhash.simhash_accuracies(x, y, task.folds(), **sizes, seed=seed)
    return float(found.mean(dim=1).max())


def one_epoch(task: Task, seed: int) -> tuple[float, float]:
    """Accuracy of logistic regression and of a network after one epoch, each tuned briefly."""
    linear = [
        LogisticRegression(C=c, solver=solver, max_iter=1, random_state=seed)
        for c, solver in itertools.product((2.0**-5, 1.0, 2.0**5, 2.0**10), ("sag", "saga"))
    ]
    networks = [
        MLPClassifier((64,), learning_rate_init=lr, max_iter=1, random_state=seed).set_params(
            batch_size=b
        )
        for b, lr in itertools.product((16, 64), (1e-3, 1e-2, 1e-1))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # neither is meant to converge
        best = [
            max(
                float(cross_val_score(model, task.x, task.y, cv=task.splits()).mean())
                for model in models
            )
            for models in (linear, networks)
        ]
    return best[0], best[1]


def row(
    task: Task,
    *,
    seed: int,
    most: int,
    lifts: int,
    channels: Sequence[Channels],
    planes: bool,
    gradients: bool,
) -> dict[str, float]:
    """Tuned accuracy of every method on one data set."""
    nearest, first = neighbours(task)
    found = {"kNN": nearest, "1NN": first, "majority": majority(task)}
    if planes:
        found["SBFC"] = sbfc(task, seed)
    for kind in channels:
        name = ROW_OF[kind]
        best, others = flynn(task, seed, most=most, lifts=lifts, channels=kind)
        found[name], found[f"{name} others"] = best, statistics.fmean(others)
        found[f"{name} spread"] = statistics.stdev(others)
    if gradients:
        found["LR"], found["MLP"] = one_epoch(task, seed)
    return found


def synthetic(name: str, draw: int) -> Task:
    """Five classes of three clusters; binary ones are hashes of real ones of a tenth of the width.

    Raises:
        ValueError: If the name does not have this form.
    """
    match = SYNTHETIC.fullmatch(name)
    if match is None:
        raise ValueError(f'a synthetic set is named such as "real 1000 x 50", got {name!r}')
    n, d = int(match[2]), int(match[3])
    inner = d if match[1] == "real" else d // 10
    parts = Synthetic(n, 0, inner, draw=draw).read(None, download=False)
    if match[1] == "real":
        return Task(parts.x_train.double().numpy(), parts.y_train.numpy())
    rows = connections(d, inner, max(1, inner // 2), draw)
    ones = fly_hash(parts.x_train, rows, d // 5)  # Table 1's row of d = 100 is Table 3's of 20 ones
    x = torch.zeros(n, d, dtype=torch.float64).scatter_(1, ones.long(), 1.0)
    return Task(x.numpy(), parts.y_train.numpy())


def task(name: str, features: str = "unit rows") -> Task:
    """A published table or scikit-learn's digits, with examples of length one or with z-scores."""
    raw = raw_task(name)
    delta = normalize if features == "unit rows" else scale
    return Task(np.asarray(delta(raw.x)), raw.y)


def raw_task(name: str) -> Task:
    """A published table or scikit-learn's digits, with raw features."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        return Task(np.asarray(x), np.asarray(y))
    root = os.environ.get("FEDBOLIC_DATA")
    whole = Table(int(name)).read_all(Path(root) if root else None, download=True)
    return Task(whole.x.numpy(), whole.y.numpy())
