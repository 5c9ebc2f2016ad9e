"""Rows of ``benchmarks.class_trees``: hyperbolic and flat losses, prototypes, and their tries."""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import log_softmax, normalize
from typing_extensions import override

from fedbolic.data import CIFAR100Superclasses, Hierarchy, HierarchySet
from fedbolic.federated import ClassifierMethod, LocalTraining, Mean
from fedbolic.hierarchies import TreeLayout
from fedbolic.nn.network.backbone import MLP
from hyperfed import (
    Arrangement,
    ClassTree,
    Cones,
    CosineCrossEntropy,
    CrossEntropy,
    EuclideanCrossEntropy,
    HyperFed,
)
from hyperfed.loss import Objective

DIM = 50
"""Width of the features, in which 100 Tammes prototypes are known exactly."""

ROUNDS = 10
LOCAL = LocalTraining(epochs=1, batch_size=128, clip_norm=1.0)
STEPS = (0.3, 1.0)
TREE = CIFAR100Superclasses()


def tree_distances(tree: Hierarchy, nodes: Tensor) -> Float64[Tensor, "nodes nodes"]:
    """Edges between nodes of a closed forest, whose roots have a common parent."""
    above = torch.eye(len(tree), dtype=torch.float64)
    above[tree.pairs[:, 0], tree.pairs[:, 1]] = 1.0
    return torch.cdist(above[nodes], above[nodes], p=1.0)  # nodes above one of the two alone


@cache
def distances(tree: HierarchySet) -> Float64[Tensor, "classes classes"]:
    """Distances of the leaves of a tree."""
    nodes = tree.read(None, download=False)
    num_children = torch.bincount(nodes.primary_parents + 1, minlength=len(nodes) + 1)[1:]
    return tree_distances(nodes, (num_children == 0).nonzero().squeeze(-1))


@dataclass(frozen=True)
class SoftLabels(ClassifierMethod):
    r"""Softmax with labels spread over the tree.

    .. math:: p(c \mid y) \propto e^{-\beta d(c, y) / 2}

    Args:
        sharpness: :math:`\beta`; infinite for the labels themselves.

    References:
        Bertinetto et al. (2020), Sec. 3.2, arXiv:1912.09393.
    """

    sharpness: float = np.inf

    @override
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        apart = distances(TREE) / 2
        targets = torch.where(apart > 0, torch.exp(-self.sharpness * apart), 1.0)
        targets = normalize(targets, p=1.0, dim=1).to(logits)
        return -(targets[labels] * log_softmax(logits, dim=-1)).sum(dim=-1)


@dataclass(frozen=True)
class CosineScaling(Arrangement):
    r"""Directions whose cosines are one minus the share of the tree distance in the largest.

    Multidimensional scaling: from the first eigenvectors of the wanted cosines, by descent on the
    sum of the squared differences.

    Args:
        tree: Tree of the classes.

    References:
        Barz and Denzler (2019), Sec. 3, arXiv:1809.09924, in as many dimensions as classes.
    """

    tree: HierarchySet

    @override
    def prototypes(
        self, num_classes: int, dim: int, slope: float
    ) -> Float64[Tensor, "classes dim"]:
        apart = distances(self.tree).numpy()
        wanted = 1 - apart / apart.max()
        values, vectors = np.linalg.eigh(wanted)
        start = vectors[:, -dim:] * np.sqrt(values[-dim:].clip(0))
        start += 0.01 * np.random.default_rng(0).standard_normal(start.shape)  # equal rows part
        found = minimize(_stress, start.ravel(), (wanted, dim), "L-BFGS-B", jac=True)
        return slope * normalize(torch.from_numpy(found.x).view(num_classes, dim))


def _stress(flat: np.ndarray, wanted: np.ndarray, dim: int) -> tuple[float, np.ndarray]:
    """Squared differences between cosines and wanted ones, and the gradient of their sum."""
    rows = torch.from_numpy(flat).view(-1, dim).requires_grad_()
    unit = normalize(rows)
    stress = (unit @ unit.T - torch.from_numpy(wanted)).square().sum()
    (gradient,) = torch.autograd.grad(stress, rows)
    return stress.item(), gradient.flatten().numpy()


def softmax(lr: float, sharpness: float = np.inf) -> ClassifierMethod:
    """A linear head."""
    return SoftLabels(MLP((256,), dim=DIM), ROUNDS, LOCAL, lr, sharpness)


def fixed(lr: float, objective: Objective, arrangement: Arrangement | None) -> ClassifierMethod:
    """Fixed prototypes."""
    method = HyperFed(
        MLP((256,), dim=DIM), ROUNDS, LOCAL, lr, objective=objective, aggregator=Mean()
    )
    return replace(method, arrangement=arrangement)


def cones(length: float) -> ClassTree:
    """A layout whose leaves lie at the slope of .9; longer first edges bring siblings closer."""
    return ClassTree(TREE, Cones(DIM, length, growth=2.9 / length - 1))


def boxes(radius: float) -> ClassTree:
    """A layout by boxes; a larger radius brings siblings closer."""
    return ClassTree(TREE, TreeLayout(way="boxes", dim=DIM, radius=radius))


Try = dict[str, ClassifierMethod]
"""Methods by their settings."""


def _tries(make: dict[str, partial[ClassifierMethod]]) -> Try:
    return {f"step {lr:g}, {name}": of(lr) for lr, (name, of) in product(STEPS, make.items())}


ROWS: dict[str, Try] = {
    "softmax": {f"step {lr:g}": softmax(lr) for lr in (0.1, 0.3, 0.6, 1.0)},
    "softmax, soft labels": _tries(
        {f"beta {b:g}": partial(softmax, sharpness=b) for b in (1.0, 2.0)}
    ),
    "cosine, Tammes": _tries(
        {
            f"scale {b:g}": partial(fixed, objective=CosineCrossEntropy(b), arrangement=None)
            for b in (5.0, 10.0)
        }
    ),
    "cosine, scaled tree": _tries(
        {
            f"scale {b:g}": partial(
                fixed, objective=CosineCrossEntropy(b), arrangement=CosineScaling(TREE)
            )
            for b in (5.0, 10.0)
        }
    ),
    "Euclidean distance, cones": _tries(
        {
            f"length {a:g}": partial(
                fixed, objective=EuclideanCrossEntropy(4.0), arrangement=cones(a)
            )
            for a in (0.6, 1.2)
        }
    ),
    "hyperbolic distance, Tammes": _tries(
        {
            f"tau {t:g}": partial(fixed, objective=CrossEntropy(t), arrangement=None)
            for t in (2.0, 4.0)
        }
    ),
    "hyperbolic distance, cones": _tries(
        {
            f"length {a:g}": partial(fixed, objective=CrossEntropy(4.0), arrangement=cones(a))
            for a in (0.6, 1.2)
        }
    ),
    "hyperbolic distance, boxes": _tries(
        {
            f"radius {a:g}": partial(fixed, objective=CrossEntropy(4.0), arrangement=boxes(a))
            for a in (3.0, 5.0)
        }
    ),
}
"""Four tries of every row. In the first four nothing is hyperbolic; Euclidean distances to cones
are the flat twin of hyperbolic ones."""
