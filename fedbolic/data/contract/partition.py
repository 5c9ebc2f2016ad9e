"""Partitions of a data set among clients."""

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import at_least, positive
from fedbolic.core.rng import Rng

_MAX_DRAWS = 1000
"""Maximum number of Dirichlet draws, so that an impossible request fails within seconds."""


class Partition(ABC):
    """Assignment of every example to exactly one client.

    The same labels and stream give the same split.
    """

    @abstractmethod
    def split(self, labels: Int[Tensor, " n"], rng: Rng) -> list[Tensor]:
        """Positions of the examples of every client, ascending (int64).

        Args:
            labels: Label of every example.
            rng: Random stream of the split.

        Returns:
            One index tensor per client. The tensors are disjoint and cover ``0 .. n - 1``.

        Raises:
            ValueError: If there are too few examples, or no valid split is found.
        """

    def assign(
        self, labels: Int[Tensor, " n"], owners: Int[Tensor, " n"] | None, rng: Rng
    ) -> list[Tensor]:
        """:meth:`split` for a data set that may name the client of every example.

        By default these names are ignored.

        Args:
            labels: Label of every example.
            owners: Number of the client that owns each example; ``None`` if the data set names no
                clients.
            rng: Random stream of the split.
        """
        del owners
        return self.split(labels, rng)


@dataclass(frozen=True)
class IID(Partition):
    """Equal shares drawn independently of the labels; sizes differ by at most 1.

    Args:
        num_clients: Number of clients, at least 1.

    Example:
        >>> [len(part) for part in IID(3).split(torch.zeros(8, dtype=torch.long), Rng(0))]
        [3, 3, 2]
    """

    num_clients: int

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)

    @override
    def split(self, labels: Int[Tensor, " n"], rng: Rng) -> list[Tensor]:
        _require(self.num_clients, labels, what="clients")
        order = torch.randperm(len(labels), generator=rng.generator())
        return [part.sort().values for part in order.tensor_split(self.num_clients)]


@dataclass(frozen=True)
class Shards(Partition):
    """Pathological label skew: equal shards of the examples sorted by label, dealt at random.

    A client sees few labels: about ``shards_per_client`` of them if classes are large.

    Args:
        num_clients: Number of clients, at least 1.
        shards_per_client: Number of shards per client, at least 1.

    References:
        McMahan et al. (2017), Section 3, arXiv:1602.05629.

    Example:
        >>> labels = torch.arange(12) % 4
        >>> [labels[part].unique().tolist() for part in Shards(2).split(labels, Rng(0))]
        [[1, 3], [0, 2]]
    """

    num_clients: int
    shards_per_client: int = 2

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients, shards_per_client=self.shards_per_client)

    @override
    def split(self, labels: Int[Tensor, " n"], rng: Rng) -> list[Tensor]:
        num_shards = self.num_clients * self.shards_per_client
        _require(num_shards, labels, what="shards")
        shuffled = torch.randperm(len(labels), generator=rng.at("order").generator())
        ordered = shuffled[labels[shuffled].sort(stable=True).indices]
        shards = ordered.tensor_split(num_shards)
        deal = torch.randperm(num_shards, generator=rng.at("deal").generator())
        return [
            torch.cat([shards[s] for s in hand.tolist()]).sort().values
            for hand in deal.split(self.shards_per_client)
        ]


@dataclass(frozen=True)
class Dirichlet(Partition):
    r"""Dirichlet label skew: client ``k`` gets the share ``p[j, k]`` of class ``j``.

    .. math:: p_j \sim \mathrm{Dir}_K(\alpha, \dots, \alpha)

    Classes are distributed in ascending order. With ``cap``, a client that already holds at least
    ``n / K`` examples gets none of the next class, and the shares of the other clients are scaled
    to sum to one. Since normalized components of a Dirichlet vector are again Dirichlet, only the
    shares of the other clients are drawn. The whole split is redrawn until the smallest client is
    large enough.

    Args:
        num_clients: Number of clients ``K``, at least 1.
        alpha: Concentration, above 0: small values are skewed, large values nearly IID.
        cap: Whether clients with at least ``n / K`` examples get no more; otherwise sizes vary
            widely.
        min_size: Minimum number of examples per client, at least 0. The default leaves 10 for
            testing if a quarter is held out.

    References:
        Yurochkin et al. (2019), Section 4, arXiv:1905.12022; the cap and the minimum size as in
        Li et al. (2021), arXiv:2102.02079, and their code.

    Example:
        >>> labels = torch.arange(1000) % 10
        >>> parts = Dirichlet(5, alpha=0.5).split(labels, Rng(0))
        >>> len(parts), sum(len(part) for part in parts), min(len(part) for part in parts) >= 40
        (5, 1000, True)
    """

    num_clients: int = 20
    alpha: float = 0.5
    cap: bool = True
    min_size: int = 40

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)
        positive(alpha=self.alpha)
        at_least(0, min_size=self.min_size)

    @override
    def split(self, labels: Int[Tensor, " n"], rng: Rng) -> list[Tensor]:
        _require(self.num_clients, labels, what="clients")
        if self.min_size * self.num_clients > len(labels):
            raise ValueError(
                f"{self.num_clients} clients of at least {self.min_size} examples need more than "
                f"the {len(labels)} available: use min_size={len(labels) // self.num_clients} or "
                "less, or fewer clients"
            )
        classes, sizes = labels.unique(return_counts=True)
        counts = self._counts(sizes.numpy(), rng.at("counts").numpy())
        dealt = [
            _shuffled(torch.nonzero(labels == label).flatten(), rng.at("order", int(label))).split(
                row.tolist()
            )
            for label, row in zip(classes, counts, strict=True)
        ]
        return [torch.cat(parts).sort().values for parts in zip(*dealt, strict=True)]

    def _counts(self, sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Number of examples by class and client, redrawn until every client is large enough."""
        best = 0
        for _ in range(_MAX_DRAWS):
            counts = self._draw(sizes, generator)
            smallest = int(counts.sum(0).min())
            if smallest >= self.min_size:
                return counts
            best = max(best, smallest)
        raise ValueError(
            f"{_MAX_DRAWS} draws of {self} gave no client split with at least {self.min_size} "
            f"examples each; the best draw's smallest client has {best}: use min_size={best} or "
            "less, fewer clients or a larger alpha"
        )

    def _draw(self, sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Number of examples by class and client, drawn once."""
        counts = np.zeros((len(sizes), self.num_clients), dtype=np.int64)
        for row, size in zip(counts, sizes, strict=True):
            # some client has room: if all held n / K or more, no example would remain
            room = counts.sum(0) * self.num_clients < sizes.sum()
            takers = np.flatnonzero(room) if self.cap else np.arange(self.num_clients)
            shares = generator.dirichlet(np.full(len(takers), self.alpha))
            cuts = np.floor(shares.cumsum() * size).astype(np.int64)
            cuts[-1] = size  # the sum of the shares may round to a little less than one
            row[takers] = np.diff(cuts, prepend=0)
        return counts


@dataclass(frozen=True)
class ByColumn(Partition):
    """The clients that the data set names, such as those of the client column of a table.

    Clients are numbered in ascending order of their names.

    Args:
        least: Minimum number of examples per client, at least 1.

    Raises:
        ValueError: If a client has fewer examples, or the data set names no clients.

    Example:
        >>> owners = torch.tensor([1, 0, 1])
        >>> ByColumn().assign(torch.zeros(3, dtype=torch.long), owners, Rng(0))
        [tensor([1]), tensor([0, 2])]
    """

    least: int = 1

    def __post_init__(self) -> None:
        at_least(1, least=self.least)

    @override
    def split(self, labels: Int[Tensor, " n"], rng: Rng) -> list[Tensor]:
        raise ValueError(
            "ByColumn needs data that name the client of every example: set client to the name of "
            "the column (TableFile) or array (Arrays) that does, or choose another partition"
        )

    @override
    def assign(
        self, labels: Int[Tensor, " n"], owners: Int[Tensor, " n"] | None, rng: Rng
    ) -> list[Tensor]:
        if owners is None:
            return self.split(labels, rng)
        sizes = owners.bincount()
        if small := (sizes < self.least).nonzero().flatten().tolist():
            raise ValueError(
                f"clients {small[:10]} have {sizes[small[:10]].tolist()} training examples, below "
                f"least={self.least}: leave these clients out of the data, or lower least"
            )
        return list(owners.argsort(stable=True).split(sizes.tolist()))


def deal_evenly(sizes: Int[Tensor, " n"], num_clients: int) -> Int[Tensor, " n"]:
    """Client of every piece of some data: the largest left goes to whoever has fewest examples.

    Args:
        sizes: Number of examples in each piece.
        num_clients: Number of clients.

    Example:
        >>> deal_evenly(torch.tensor([1, 3, 1]), 2)
        tensor([1, 0, 1])
    """
    clients = [(0, client) for client in range(num_clients)]  # a heap of sizes
    owners = torch.empty_like(sizes)
    for piece in sizes.argsort(descending=True, stable=True).tolist():
        held, client = clients[0]
        owners[piece] = client
        heapq.heapreplace(clients, (held + int(sizes[piece]), client))
    return owners


def _shuffled(index: Int[Tensor, " n"], rng: Rng) -> Int[Tensor, " n"]:
    return index[torch.randperm(len(index), generator=rng.generator())]


def _require(least: int, labels: Tensor, *, what: str) -> None:
    """Refuse a data set with fewer examples than parts."""
    if len(labels) < least:
        raise ValueError(
            f"{least} {what} cannot share {len(labels)} examples: ask for {len(labels)} or fewer"
        )
