"""Channels: transformations of an update on its way from a client to the server."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update


class Channel(ABC):
    """Transformation of every update at its client, and of the aggregated update at the server."""

    @property
    def needs_additive(self) -> bool:
        """True if the channel needs an aggregator that sums."""
        return False

    @abstractmethod
    def send(self, update: Update, client: Client, rng: Rng) -> Update:
        """Update that leaves the client; ``rng`` is the random stream of this client."""

    def receive(self, total: AggregatedUpdate) -> AggregatedUpdate:
        """Aggregated update that the server uses; by default unchanged."""
        return total


@dataclass(frozen=True)
class Clip(Channel):
    r"""Clipping of updates to a Euclidean norm of at most ``bound``.

    .. math:: u \mapsto u \min(1, b / \|u\|)

    Args:
        bound: Largest Euclidean norm over all tensors of ``part`` together.
        part: Part of the payload to measure and scale; other parts, such as buffers, stay
            unchanged.

    Raises:
        ValueError: If ``bound`` is not positive, or (from ``send``) the payload has no such part.

    References:
        McMahan et al. (2018), Algorithm 1 (flat clipping), arXiv:1710.06963.
    """

    bound: float
    part: str = "delta"

    def __post_init__(self) -> None:
        check.positive(bound=self.bound)

    @override
    def send(self, update: Update, client: Client, rng: Rng) -> Update:
        if self.part not in update.payload:
            raise ValueError(
                f"Clip scales the part {self.part!r} of a payload, but this payload has only "
                f"{sorted(update.payload)}: set channels.part to one of them"
            )
        part = {self.part: update.payload[self.part]}
        norm = float(tree.norm(part))
        if norm <= self.bound:
            return update
        factor = self.bound / norm
        return dataclasses.replace(
            update,
            payload=update.payload | tree.scale(part, factor),
            metrics={**update.metrics, "clip/factor": factor},
        )
