"""Grouping of hulls by class at the server, and naming of the groups by the clients."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import networkx
import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import SpectralClustering
from typing_extensions import override

from fedbolic.core import check
from fedhull.geometry.distance import poincare_distance

HullDistances = Float[np.ndarray, "n n"]
"""Distance between each pair of hulls."""

HullNumbers = Int[np.ndarray, " n"]
"""Number of the client or of the group of each hull."""

CROSS = 0.01
"""Weight of an edge between two hulls of one client, as a fraction of the least weight."""


def hull_distances(hulls: Sequence[Float[np.ndarray, "_ dim"]], *, c: float = 1.0) -> HullDistances:
    """Mean hyperbolic distances between the corners of each pair of hulls.

    Args:
        hulls: Corners of each hull, at least one.
        c: Minus the curvature, above 0.

    References:
        Prakash et al. (2024), Eq. (8), arXiv:2308.06895.

    Example:
        >>> hull_distances([np.zeros((2, 2)), np.array([[0.5, 0.0]])])[0].round(3)
        array([0.   , 1.099])
    """
    corners = np.concatenate(list(hulls))
    sizes = np.array([len(hull) for hull in hulls])
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    means = np.zeros((len(hulls), len(hulls)))
    for i, start in enumerate(starts):
        to_each = poincare_distance(hulls[i][:, None], corners[start:], c=c).mean(axis=0)
        means[i, i:] = np.add.reduceat(to_each, starts[i:] - start) / sizes[i:]
    return means + np.triu(means, 1).T


class Grouping(ABC):
    """Rule that partitions hulls into as many groups as there are classes."""

    @abstractmethod
    def groups(
        self, distances: HullDistances, clients: HullNumbers, *, num_groups: int, seed: int = 0
    ) -> HullNumbers:
        """Group of each hull; groups are numbered in the order of their first hulls.

        Args:
            distances: Distances between hulls.
            clients: Anonymous number of the client of each hull.
            num_groups: Number of classes.
            seed: Seed for rules that draw starting points.

        Raises:
            ValueError: If the rule does not support this number of groups, there are fewer hulls
                than groups, or one client has more hulls than there are groups.
        """


@dataclass(frozen=True)
class Assignment(Grouping):
    r"""Least sum of distances within groups, with hulls of one client in different groups.

    .. math:: \min \sum_{\text{groups}} \sum_{u, v} d(u, v)

    For two groups and up to ``exact`` clients, all assignments are tried. Otherwise, the hulls of
    one client at a time are reassigned by the Hungarian method, given the others, until nothing
    changes. The best of several descents is taken; each starts from another client with at least
    two hulls. Departs from the paper, which cuts a graph and ignores that hulls of one client have
    different classes, which the server knows.

    Args:
        exact: Largest number of clients for an exact solution of two groups, at least 1.
    """

    exact: int = 12

    def __post_init__(self) -> None:
        check.at_least(1, exact=self.exact)

    @override
    def groups(
        self, distances: HullDistances, clients: HullNumbers, *, num_groups: int, seed: int = 0
    ) -> HullNumbers:
        del seed
        _require(clients, num_groups)
        members = [np.flatnonzero(clients == client) for client in np.unique(clients)]
        if num_groups == 2 and len(members) <= self.exact:
            found = _all_bisections(distances, members)
        else:
            starts = [start for start in range(len(members)) if len(members[start]) > 1] or [0]
            tries = [_by_hungarian(distances, members, num_groups, start) for start in starts]
            found = min(tries, key=lambda labels: _cost(distances, labels))
        return _numbered(found)


def _all_bisections(distances: np.ndarray, members: list[np.ndarray]) -> np.ndarray:
    best, best_cost = np.zeros(len(distances), dtype=np.int64), np.inf
    for flips in itertools.product((0, 1), repeat=len(members) - 1):
        labels = np.zeros(len(distances), dtype=np.int64)
        for own, flip in zip(members, (0, *flips), strict=True):
            labels[own] = (np.arange(len(own)) + flip) % 2
        cost = _cost(distances, labels)
        if cost < best_cost:
            best, best_cost = labels, cost
    return best


def _by_hungarian(
    distances: np.ndarray, members: list[np.ndarray], num_groups: int, start: int
) -> np.ndarray:
    """Coordinate descent over clients, which ends because the cost decreases."""
    labels = np.full(len(distances), -1)
    labels[members[start]] = np.arange(len(members[start]))
    while True:
        before = labels.copy()
        for own in (members[start], *members[:start], *members[start + 1 :]):
            others = labels.copy()
            others[own] = -1
            costs = np.stack(
                [distances[own][:, others == g].sum(axis=1) for g in range(num_groups)], axis=1
            )
            if (others >= 0).any():
                # an empty group costs as much as a typical one, so it attracts only hulls that fit
                # no other group
                sizes = np.array([(others == g).sum() for g in range(num_groups)])
                costs[:, sizes == 0] = np.median(distances[own][:, others >= 0]) * sizes.max()
                rows, columns = linear_sum_assignment(costs)
                labels[own[rows]] = columns
        if (labels == before).all():
            return labels


def _cost(distances: np.ndarray, labels: np.ndarray) -> float:
    return float(distances[labels[:, None] == labels[None, :]].sum())


@dataclass(frozen=True)
class KernighanLin(Grouping):
    """Balanced graph bisection with the least cut weight, for two classes.

    The weight of an edge is the reciprocal of the distance between its hulls.

    Args:
        max_iter: Number of passes, at least 1.

    References:
        Kernighan and Lin (1970); Prakash et al. (2024), Eq. (14), arXiv:2308.06895.
    """

    max_iter: int = 10

    def __post_init__(self) -> None:
        check.at_least(1, max_iter=self.max_iter)

    @override
    def groups(
        self, distances: HullDistances, clients: HullNumbers, *, num_groups: int, seed: int = 0
    ) -> HullNumbers:
        if num_groups != 2:
            raise ValueError(f"KernighanLin makes two groups, got {num_groups}: use Assignment")
        _require(clients, num_groups)
        graph = networkx.from_numpy_array(_edge_weights(distances))
        halves = networkx.algorithms.community.kernighan_lin_bisection(
            graph, max_iter=self.max_iter, weight="weight", seed=seed
        )
        labels = np.zeros(len(distances), dtype=np.int64)
        labels[list(halves[1])] = 1
        return _numbered(labels)


@dataclass(frozen=True)
class Spectral(Grouping):
    """Spectral clustering of the graph, with nearly no weight between hulls of one client.

    Args:
        n_init: Number of starting points, at least 1.

    References:
        Prakash et al. (2024), App. H, arXiv:2308.06895; the weights between hulls of one client
        follow the authors' code.
    """

    n_init: int = 100

    def __post_init__(self) -> None:
        check.at_least(1, n_init=self.n_init)

    @override
    def groups(
        self, distances: HullDistances, clients: HullNumbers, *, num_groups: int, seed: int = 0
    ) -> HullNumbers:
        _require(clients, num_groups)
        weights = _edge_weights(distances)
        least = weights[weights > 0].min(initial=np.inf)
        weights[clients[:, None] == clients[None, :]] = CROSS * least
        np.fill_diagonal(weights, 0.0)
        clustering = SpectralClustering(
            num_groups,
            affinity="precomputed",
            n_init=self.n_init,
            assign_labels="discretize",
            random_state=seed % 2**32,
        )
        return _numbered(clustering.fit_predict(weights))


def _edge_weights(distances: HullDistances) -> HullDistances:
    """Reciprocal distances; for coinciding hulls, ten over the least distance above 0.

    Args:
        distances: Distances between hulls.

    Example:
        >>> _edge_weights(np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 2.0], [0.0, 2.0, 0.0]]))
        array([[ 0. ,  2. , 20. ],
               [ 2. ,  0. ,  0.5],
               [20. ,  0.5,  0. ]])
    """
    least = distances[distances > 0].min(initial=np.inf)
    top = 10 / least if np.isfinite(least) else 1.0
    weights = np.divide(1, distances, out=np.full_like(distances, top), where=distances > 0)
    np.fill_diagonal(weights, 0.0)
    return weights


def _require(clients: np.ndarray, num_groups: int) -> None:
    if len(clients) < num_groups:
        raise ValueError(
            f"{len(clients)} hulls cannot make {num_groups} groups: a class is absent everywhere"
        )
    _, counts = np.unique(clients, return_counts=True)
    if counts.max() > num_groups:
        raise ValueError(f"a client has {counts.max()} hulls but there are {num_groups} classes")


def _numbered(labels: np.ndarray) -> np.ndarray:
    """The same groups, renumbered in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse].astype(np.int64)


def match_labels(
    agreement: Float[np.ndarray, "num_groups num_classes"],
) -> Int[np.ndarray, " num_groups"]:
    """One-to-one assignment of classes to groups with the largest agreement.

    Each client computes this on its own examples, so its class names never leave it.

    Args:
        agreement: Number of examples of each class that the model assigns to each group.

    Example:
        >>> match_labels(np.array([[1.0, 8.0], [3.0, 4.0]]))
        array([1, 0])
    """
    _, columns = linear_sum_assignment(-agreement)
    return columns
