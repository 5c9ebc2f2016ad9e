"""Client updates, alone or stacked, and their aggregate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedbolic.core.types import Tree


@dataclass(frozen=True, eq=False)
class Update:
    """Update of one client: everything that leaves the client in an exchange.

    Args:
        payload: Tree that the server aggregates.
        weight: Weight of the client in a mean, usually its number of training examples, in
            0 .. 1e9.
        metrics: Numbers to record, such as the training loss; under ``train/...`` if a score or a
            count of the server has the name. One that is computed on an accelerator may stay there,
            as a tensor without axes: the server reads the numbers of several clients at once.
        row: Place in stacked tensors; ``None`` if there are none. It never leaves the process.
    """

    payload: Tree
    weight: float = 1.0
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    row: "StackedRow | None" = None

    @property
    def stack(self) -> "StackedPayload | None":
        """Stacked tensors of which the payload is a row, unless it has been replaced since."""
        return self.row.stack if self.row and self.row.payload is self.payload else None


@dataclass(frozen=True, eq=False)
class StackedPayload:
    """Payloads of several clients as one tree, whose tensors have a leading axis of clients.

    Args:
        payload: The stacked payloads.
        clients: Ids of the clients, ascending.
    """

    payload: Tree
    clients: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StackedRow:
    """Place of a client's results in stacked tensors.

    Args:
        stack: Payloads of this client and of others; ``None`` if the payload is a copy.
        index: Row of the client.
        payload: The payload in this row; whoever replaces the payload of an update leaves the row.
        client_state: The client state that was computed with it.
        norm: Upper bound of the Euclidean norm of all floating numbers of both; NaN or infinite if
            none is known.
    """

    stack: StackedPayload | None
    index: int
    payload: Tree
    client_state: Tree
    norm: float


@dataclass(frozen=True, eq=False)
class StackedUpdates:
    """Results of several clients, whose tensors have a leading axis of clients.

    Args:
        payload: The stacked payloads.
        client_states: The stacked client states. A leaf that is no tensor is common to all clients;
            a :class:`~fedbolic.federated.contract.jagged.Jagged` leaf holds one tree per client
            that was part of an earlier client state, and is neither copied nor examined again.
        weights: Weight of every client.
        metrics: Metrics of every client, as in :class:`Update`; empty if there are none.
    """

    payload: Tree
    client_states: Tree
    weights: Sequence[float]
    metrics: Sequence[Mapping[str, float | Tensor]] = ()


@dataclass(frozen=True, eq=False)
class AggregatedUpdate:
    """Aggregate of the client updates of one exchange.

    Args:
        payload: Aggregate of the payloads.
        weight: Sum of the weights.
        clients: Ids of the clients in the aggregate, ascending.
        metrics: Numbers that describe the aggregation itself.
    """

    payload: Tree
    weight: float
    clients: tuple[int, ...]
    metrics: dict[str, float] = field(default_factory=dict)


def split_columns(
    columns: Mapping[str, Tensor], num_clients: int
) -> list[dict[str, float | Tensor]]:
    """Metrics of every client, on an accelerator as views of the columns.

    Args:
        columns: Metrics by name, each with one number per client.
        num_clients: Number of clients.

    Example:
        >>> import torch
        >>> split_columns({"a": torch.tensor([1.0, 2.0])}, 2)
        [{'a': 1.0}, {'a': 2.0}]
    """
    values = [x.tolist() if x.device.type == "cpu" else x.unbind() for x in columns.values()]
    rows = zip(*values, strict=True) if values else [()] * num_clients
    return [dict(zip(columns, row, strict=True)) for row in rows]


def host_or_scalar(x: Tensor | float) -> Tensor | float:
    """A metric in double precision: on an accelerator a tensor, for which the host need not wait.

    Args:
        x: A number, or a tensor without axes.
    """
    if isinstance(x, Tensor) and x.device.type != "cpu":
        return x.double()
    return float(x)
