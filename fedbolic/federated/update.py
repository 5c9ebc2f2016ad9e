"""Client updates and their aggregate."""

from dataclasses import dataclass, field

from fedbolic.types import Tree


@dataclass(frozen=True, eq=False)
class Update:
    """Update of one client: everything that leaves it.

    Args:
        payload: What the server aggregates.
        weight: Its weight in a mean, usually the number of training examples; at least 0.
        metrics: Numbers to record, such as the training loss.
    """

    payload: Tree
    weight: float = 1.0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AggregatedUpdate:
    """Aggregate of one exchange, as the server receives it.

    Args:
        payload: The aggregate of the clients' payloads.
        weight: The sum of their weights.
        clients: The ids of those who delivered, ascending.
        metrics: Numbers about the aggregation itself.
    """

    payload: Tree
    weight: float
    clients: tuple[int, ...]
    metrics: dict[str, float] = field(default_factory=dict)
