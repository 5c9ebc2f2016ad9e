"""Rows of ``benchmarks.class_trees``: hyperbolic and flat losses, prototypes, and their tries."""

import csv
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import log_softmax, normalize
from typing_extensions import override

from fedbolic.data import CIFAR100Superclasses, Hierarchy, HierarchySet, Nouns, taxonomy
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
SUPERCLASSES = CIFAR100Superclasses()


@dataclass(frozen=True)
class WordNetClasses(HierarchySet):
    """The classes of CIFAR-100 below their synsets in WordNet, without nodes of a single child.

    ``synsets.csv`` names a synset for every class: of a word with several senses the one that
    its superclass and its images mean. Eight classes have a name that no synset has. A synset with
    several parents hangs from its primary parent.

    Args:
        root: Folder of the data; ``None`` for the folders of ``FEDBOLIC_DATA``.
    """

    root: Path | None = None

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        return _below_synsets(Nouns(), root or self.root)


@cache
def _below_synsets(nouns: HierarchySet, root: Path | None) -> Hierarchy:
    """The tree of the classes in a hierarchy that has their synsets."""
    with Path(__file__).with_name("synsets.csv").open(newline="") as lines:
        synsets = {row["class"]: row["synset"] for row in csv.DictReader(lines)}
    hierarchy = nouns.read(root, download=False)
    number = {name: i for i, name in enumerate(hierarchy.names)}
    above, chains, children = hierarchy.primary_parents.tolist(), {}, defaultdict(set)
    for label, synset in synsets.items():
        chain, node = [label], number[synset]
        while node >= 0:
            chain.append(hierarchy.names[node])
            node = above[node]
        chains[label] = chain
        for below, parent in pairwise(chain):
            children[parent].add(below)
    parents = dict.fromkeys(synsets, "")  # the classes come first
    for label, chain in chains.items():
        kept = [name for name in chain[1:] if len(children[name]) > 1]
        parents |= pairwise((label, *kept))
    return taxonomy(parents)


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
        tree: Tree of the classes.
        sharpness: :math:`\beta`; infinite for the labels themselves.

    References:
        Bertinetto et al. (2020), Sec. 3.2, arXiv:1912.09393.
    """

    tree: HierarchySet = SUPERCLASSES
    sharpness: float = np.inf

    @override
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        apart = distances(self.tree) / 2
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


def softmax(lr: float, tree: HierarchySet, sharpness: float = np.inf) -> ClassifierMethod:
    """A linear head."""
    return SoftLabels(MLP((256,), dim=DIM), ROUNDS, LOCAL, lr, tree=tree, sharpness=sharpness)


def fixed(lr: float, objective: Objective, arrangement: Arrangement | None) -> ClassifierMethod:
    """Fixed prototypes."""
    method = HyperFed(
        MLP((256,), dim=DIM), ROUNDS, LOCAL, lr, objective=objective, aggregator=Mean()
    )
    return replace(method, arrangement=arrangement)


def cones(tree: HierarchySet, length: float) -> ClassTree:
    """A layout whose deepest leaves lie at the slope of .9.

    Args:
        tree: Tree of the classes.
        length: Length of the first edges; longer ones bring siblings closer.
    """
    nodes = tree.read(None, download=False)
    levels = int(nodes.depths.max()) + (int((nodes.primary_parents < 0).sum()) > 1)
    roots = np.roots([*[length] * (levels - 1), length - 2.9])
    (growth,) = (float(root.real) for root in roots if root.imag == 0 < root.real)
    return ClassTree(tree, Cones(DIM, length, growth))


def boxes(tree: HierarchySet, radius: float) -> ClassTree:
    """A layout by boxes; a larger radius brings siblings closer."""
    return ClassTree(tree, TreeLayout(way="boxes", dim=DIM, radius=radius))


Try = dict[str, ClassifierMethod]
"""Methods by their settings."""


def _tries(make: dict[str, partial[ClassifierMethod]]) -> Try:
    return {f"step {lr:g}, {name}": of(lr) for lr, (name, of) in product(STEPS, make.items())}


def rows(tree: HierarchySet, lengths: tuple[float, float]) -> dict[str, Try]:
    """Four tries of every row.

    In the first four nothing is hyperbolic; Euclidean distances to cones are the flat twin of
    hyperbolic ones.

    Args:
        tree: Tree of the classes.
        lengths: Two lengths of the first edges of cones.
    """
    scaled, hyperbolic = CosineScaling(tree), CrossEntropy(4.0)
    places = {f"length {a:g}": cones(tree, a) for a in lengths}

    def to(objective: Objective, arrangement: Arrangement | None) -> partial[ClassifierMethod]:
        return partial(fixed, objective=objective, arrangement=arrangement)

    return {
        "softmax": {f"step {lr:g}": softmax(lr, tree) for lr in (0.1, 0.3, 0.6, 1.0)},
        "softmax, soft labels": _tries(
            {f"beta {b:g}": partial(softmax, tree=tree, sharpness=b) for b in (1.0, 2.0)}
        ),
        "cosine, Tammes": _tries(
            {f"scale {b:g}": to(CosineCrossEntropy(b), None) for b in (5.0, 10.0)}
        ),
        "cosine, scaled tree": _tries(
            {f"scale {b:g}": to(CosineCrossEntropy(b), scaled) for b in (5.0, 10.0)}
        ),
        "Euclidean distance, cones": _tries(
            {name: to(EuclideanCrossEntropy(4.0), place) for name, place in places.items()}
        ),
        "hyperbolic distance, Tammes": _tries(
            {f"tau {t:g}": to(CrossEntropy(t), None) for t in (2.0, 4.0)}
        ),
        "hyperbolic distance, cones": _tries(
            {name: to(hyperbolic, place) for name, place in places.items()}
        ),
        "hyperbolic distance, boxes": _tries(
            {f"radius {a:g}": to(hyperbolic, boxes(tree, a)) for a in (3.0, 5.0)}
        ),
    }
