"""Client updates and their aggregate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedbolic.types import Tree


@dataclass(frozen=True, eq=False)
class Update:
    """Update of one client: everything that leaves the client in an exchange.

    Args:
        payload: Tree that the server aggregates.
        weight: Weight of the client in a mean, usually its number of training examples; at least 0.
        metrics: Numbers to record, such as the training loss. One that is computed on an
            accelerator may stay there, as a tensor without axes: the server reads the numbers of
            several clients at once.
    """

    payload: Tree
    weight: float = 1.0
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)


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


def host_or_scalar(x: Tensor | float) -> Tensor | float:
    """A metric in double precision: on an accelerator a tensor, for which the host need not wait.

    Args:
        x: A number, or a tensor without axes.
    """
    if isinstance(x, Tensor) and x.device.type != "cpu":
        return x.double()
    return float(x)
