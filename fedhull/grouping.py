"""Grouping of hulls by class at the server, and naming of the groups at a client."""

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

from fedbolic import check
from fedhull.distance import poincare_distance

CROSS = 0.01
"""Weight of an edge between two hulls of one client, over the least weight of all."""


def hull_distances(
    hulls: Sequence[Float[np.ndarray, "_ 2"]], *, c: float = 1.0
) -> Float[np.ndarray, "n n"]:
    """Mean hyperbolic distance between the corners of every two hulls.

    Args:
        hulls: Their corners, at least one each.
        c: Minus the curvature.

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
    """A rule that puts hulls into as many groups as there are classes."""

    @abstractmethod
    def groups(
        self,
        distances: Float[np.ndarray, "n n"],
        clients: Int[np.ndarray, " n"],
        *,
        num_groups: int,
        seed: int = 0,
    ) -> Int[np.ndarray, " n"]:
        """The group of every hull, numbered in the order of their first hulls.

        Args:
            distances: Between hulls.
            clients: Whose hull each is, by an anonymous number.
            num_groups: How many classes there are.
            seed: For rules that draw starting points.

        Raises:
            ValueError: If the rule does not work for so many groups, or there are too few hulls.
        """


@dataclass(frozen=True)
class Assignment(Grouping):
    r"""The least sum of distances within groups, hulls of one client in different groups.

    .. math:: \min \sum_{\text{groups}} \sum_{u, v} d(u, v)

    Two groups of up to ``exact`` clients are solved by trying all; else every client is assigned
    anew by the Hungarian method, given the others, until nothing changes, from every client as the
    first, and the best is taken. Departs from the paper, which cuts a graph and does not use what
    the server knows: that hulls of one client are of different classes.

    Args:
        exact: Clients up to which two groups are solved exactly, at least 1.
    """

    exact: int = 12

    def __post_init__(self) -> None:
        check.at_least(1, exact=self.exact)

    @override
    def groups(
        self,
        distances: Float[np.ndarray, "n n"],
        clients: Int[np.ndarray, " n"],
        *,
        num_groups: int,
        seed: int = 0,
    ) -> Int[np.ndarray, " n"]:
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
    """Coordinate descent over clients; the costs fall, so it ends."""
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
                # an empty group costs as much as a typical one: it is for what fits nowhere
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
    """The balanced bisection of least weight, for two classes; hulls near one another weigh most.

    Args:
        max_iter: Passes, at least 1.

    References:
        Kernighan and Lin (1970); Prakash et al. (2024), Eq. (14), arXiv:2308.06895.
    """

    max_iter: int = 10

    def __post_init__(self) -> None:
        check.at_least(1, max_iter=self.max_iter)

    @override
    def groups(
        self,
        distances: Float[np.ndarray, "n n"],
        clients: Int[np.ndarray, " n"],
        *,
        num_groups: int,
        seed: int = 0,
    ) -> Int[np.ndarray, " n"]:
        if num_groups != 2:
            raise ValueError(f"KernighanLin makes two groups, got {num_groups}: use Assignment")
        _require(clients, num_groups)
        graph = networkx.from_numpy_array(edge_weights(distances))
        halves = networkx.algorithms.community.kernighan_lin_bisection(
            graph, max_iter=self.max_iter, weight="weight", seed=seed
        )
        labels = np.zeros(len(distances), dtype=np.int64)
        labels[list(halves[1])] = 1
        return _numbered(labels)


@dataclass(frozen=True)
class Spectral(Grouping):
    """Spectral clustering of the graph, hulls of one client hardly tied.

    Args:
        n_init: Starting points that are tried, at least 1.

    References:
        Prakash et al. (2024), App. H, arXiv:2308.06895; the rule for one client is their code's.
    """

    n_init: int = 100

    def __post_init__(self) -> None:
        check.at_least(1, n_init=self.n_init)

    @override
    def groups(
        self,
        distances: Float[np.ndarray, "n n"],
        clients: Int[np.ndarray, " n"],
        *,
        num_groups: int,
        seed: int = 0,
    ) -> Int[np.ndarray, " n"]:
        _require(clients, num_groups)
        weights = edge_weights(distances)
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


def edge_weights(distances: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """One over the distance; of hulls that coincide, ten over the least distance above 0.

    Args:
        distances: Between hulls.

    Example:
        >>> edge_weights(np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 2.0], [0.0, 2.0, 0.0]]))
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
    """The same groups, numbered in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse].astype(np.int64)


def match_labels(
    agreement: Float[np.ndarray, "num_groups num_classes"],
) -> Int[np.ndarray, " num_groups"]:
    """The class of every group, each class at most once, so that most agrees.

    A client does this on its own examples; so its names of the classes stay with it.

    Args:
        agreement: Examples of every class that the model puts into every group.

    Example:
        >>> match_labels(np.array([[1.0, 8.0], [3.0, 4.0]]))
        array([1, 0])
    """
    _, columns = linear_sum_assignment(-agreement)
    return columns
