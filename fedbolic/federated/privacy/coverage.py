"""Parts of a payload that privacy covers, and the refusal of all others."""

from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import Aggregator, Mean
from fedbolic.federated.contract.method import Method


def covered_form(phase: Method, server_state: Tree) -> Tree:
    """Form of the payloads of an exchange, after a check that all of it is made private.

    Args:
        phase: Method of the exchange.
        server_state: Current server state.

    Raises:
        ValueError: If the method has several exchanges in a round, solves for a head, now or
            later, has another aggregator than the mean (with a hint if it sends rows of a table),
            or sends other parts than ``delta``.
    """
    name = type(phase).__name__
    if phase.traits.cohort == "same" or not phase.traits.evaluates:
        raise ValueError(f"privacy covers methods of one exchange in a round, not {name}")
    if phase.traits.solves_head:  # before a round is paid for, though it may do so in its last one
        raise ValueError(
            f"privacy does not cover the sums from which {name} solves for a head: leave the head "
            "in closed form out"
        )
    if type(phase.aggregator).form is not Aggregator.form:  # a payload is a part of a whole
        raise ValueError(
            f"the rows that {name} sends say what a client holds, and privacy covers means of "
            "whole tables: let it send tables, such as by sends='table'"
        )
    if not isinstance(phase.aggregator, Mean):
        raise ValueError(
            f"privacy makes means private, and {name} uses {type(phase.aggregator).__name__}"
        )
    form = phase.template(phase.broadcast(server_state, 0)) or {}
    parts = [part for part, leaf in form.items() if leaf != {}]
    if "buffers" in parts:
        raise ValueError(
            "privacy does not cover buffers, such as the statistics of batch norm: use a model "
            "without them, or keep them at the clients by sharing"
        )
    if parts != ["delta"]:
        raise ValueError(
            f"privacy covers the part 'delta' of a payload, and {name} sends {sorted(parts)}"
        )
    return form
