"""Laws of every aggregator."""

import copy
from collections.abc import Callable, Sequence

from fedbolic.core import tree
from fedbolic.federated import Aggregator, Update
from fedbolic.testing.compare import assert_near, assert_same

Updates = Sequence[tuple[int, Update]]
"""Updates of several clients with their ids, in ascending order."""


def check_aggregator(aggregator: Aggregator, updates: Updates) -> None:
    """Assert all laws of an aggregator.

    Args:
        aggregator: Aggregator to test.
        updates: Updates of the form that it takes, at least two, with floats of at most about 1000.

    Raises:
        AssertionError: If the aggregator breaks a law, which the traceback names.

    Example:
        >>> import torch
        >>> from fedbolic.federated import Mean
        >>> check_aggregator(Mean(), [(i, Update({"a": torch.rand(3)})) for i in range(4)])
    """
    for law in AGGREGATOR_LAWS:
        law(aggregator, updates)


def aggregation_is_pure_and_deterministic(aggregator: Aggregator, updates: Updates) -> None:
    """Aggregation gives the same result twice and modifies no update."""
    before = copy.deepcopy([update.payload for _, update in updates])
    first, second = (aggregator.aggregate(updates) for _ in range(2))
    for (_, update), old in zip(updates, before, strict=True):
        assert_same(update.payload, old)
    assert_same(first.payload, second.payload)


def aggregation_reads_a_stream_once(aggregator: Aggregator, updates: Updates) -> None:
    """Updates may come from an iterator."""
    streamed, listed = aggregator.aggregate(iter(updates)), aggregator.aggregate(updates)
    assert_same(streamed.payload, listed.payload)


def order_of_updates_does_not_matter(aggregator: Aggregator, updates: Updates) -> None:
    """Another order of the updates changes rounding alone."""
    x, y = aggregator.aggregate(updates), aggregator.aggregate(updates[::-1])
    assert_near(x.payload, y.payload, 1e-10 * _unit(updates))
    assert abs(x.weight - y.weight) <= 1e-12 * abs(x.weight)


def aggregate_names_its_clients(aggregator: Aggregator, updates: Updates) -> None:
    """The aggregate holds the ids of the clients, and the sum of their weights."""
    total = aggregator.aggregate(updates)
    assert total.clients == tuple(client_id for client_id, _ in updates)
    expected = sum(update.weight for _, update in updates)
    assert abs(total.weight - expected) <= 1e-12 * abs(expected)


def no_updates_are_refused(aggregator: Aggregator, updates: Updates) -> None:
    """Without updates there is a ``ValueError``."""
    del updates
    try:
        aggregator.aggregate(iter(()))
    except ValueError:
        return
    raise AssertionError("an aggregate of no updates must raise ValueError")


def _unit(updates: Updates) -> float:
    """Rounding of the payloads' precision relative to double precision, roughly."""
    leaves = [leaf for _, update in updates for leaf in tree.tensors(update.payload).values()]
    single = any(leaf.is_floating_point() and leaf.element_size() < 8 for leaf in leaves)
    return 1e7 if single else 1.0


AGGREGATOR_LAWS: tuple[Callable[[Aggregator, Updates], None], ...] = (
    aggregation_is_pure_and_deterministic,
    aggregation_reads_a_stream_once,
    order_of_updates_does_not_matter,
    aggregate_names_its_clients,
    no_updates_are_refused,
)
"""Laws of every aggregator, for ``pytest.mark.parametrize``."""
