"""One share of the points to cut off for all clients, from their votes."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, find_outside
from fedbolic.federated.contract.traits import Traits
from fedhull.boundary import Boundary
from fedhull.core import Core, ShareCore, ValidatedCore
from fedhull.exchanges import HullExchange, arrays
from fedhull.geometry.hull import BallPoints, PointLabels, PointMask


@dataclass(frozen=True)
class VotedCore(Core):
    """Cut with one share for all clients, the median of the shares that they find best.

    Each client votes for the share that :class:`~fedhull.core.ValidatedCore` would choose from its
    own points. An exchange before all others adds up the votes, and every client cuts with the
    lower median, which at least half of the clients would cut with, or with more. Clients with few
    points thus use what the others have found, and a few clients cannot move the share far.

    The sum of the votes says how many clients prefer each share, hence roughly how many have
    classes that overlap. Under a secure sum nobody learns who they are; in the clear the server
    does.

    Args:
        own: Rule by which a client chooses its vote.

    Example:
        >>> rule = VotedCore()
        >>> rule.median(torch.tensor([2, 0, 1, 3, 0]))
        0.1
        >>> rule.agreed(0.1)
        HullPeeling(share=0.1)
    """

    own: ValidatedCore = ValidatedCore()

    @override
    def kept(
        self, points: BallPoints, labels: PointLabels, *, c: float, boundary: Boundary
    ) -> PointMask:
        """Mask of the cores for points that are all in one place, where there is one vote."""
        return self.own.kept(points, labels, c=c, boundary=boundary)

    @override
    def require_dim(self, dim: int) -> None:
        self.own.require_dim(dim)

    def median(self, votes: Int[Tensor, " num_shares"]) -> float:
        """Least share for which, or for less, at least half of the clients voted.

        Args:
            votes: Number of votes for each share.
        """
        passed = 2 * votes.cumsum(0) >= votes.sum()
        return self.own.shares[int(passed.long().argmax())]

    def agreed(self, share: float) -> ShareCore:
        """Rule with the share that the vote gave.

        Args:
            share: One of the rule's shares.

        Raises:
            ValueError: If it is none of them.
        """
        if share not in self.own.shares:
            raise ValueError(f"the vote was about {self.own.shares}, got the share {share}")
        return self.own.rule.with_share(share)


@dataclass(frozen=True)
class CoreVotes(HullExchange):
    """Exchange before all others: the sum of the clients' votes for a share.

    Args:
        core: Rule that is voted about.
        c: Minus the curvature, above 0.
        boundary: Classifier that the server will train on the hulls.
    """

    core: VotedCore
    c: float
    boundary: Boundary

    traits = Traits(evaluates=False)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        points, labels = arrays(client.train)
        share = self.core.own.chosen(points, labels, c=self.c, boundary=self.boundary)
        votes = torch.zeros(len(self.core.own.shares), dtype=torch.int64)
        votes[self.core.own.shares.index(share)] = 1
        return Update({"votes": votes}, float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return {"votes": torch.zeros(len(self.core.own.shares), dtype=torch.int64)}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_outside(payload, "votes", 0, 1)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        share = self.core.median(total.payload["votes"].cpu())
        return server_state | {"exchange": "sizes", "core_share": share}
