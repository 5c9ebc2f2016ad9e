"""The reference engine, which runs one client after another."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.engine import (
    Engine,
    Exchange,
    Failure,
    Result,
    RunStoppedError,
    torch_stream,
)


@dataclass(frozen=True)
class Sequential(Engine):
    """Runs the ``local_update`` of one client after another; its results define correctness.

    Torch's global random stream, from which a network may draw, is seeded for each client and
    exchange, and restored afterwards. A method that modifies its message stops the run, because
    all clients and the server share it; changes through ``Tensor.data`` are not seen.
    """

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        method, last, before = exchange.method, None, []
        for client in exchange.clients:
            message, client_state = exchange.messages[client.id], exchange.state(client)
            stream = exchange.stream(client)
            if message is not last:  # most messages are the same object
                last, before = message, _content(message)
            try:
                with torch_stream(client, stream):
                    update, new = method.local_update(message, client, client_state, stream)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # one client's failure must not end the round
                result = client, Failure(error), client_state
            else:
                result = client, _alone(update), new
            if _content(message) != before:
                raise RunStoppedError(
                    f"{type(method).__name__} modified the message to client {client.id}, which "
                    "clients of a simulation share: return new tensors instead"
                )
            yield result


def _content(message: Tree) -> list[object]:
    """Names, and identities of leaves with counts of the changes of tensors in place."""
    found: list[object] = []
    for name, value in message.items():
        if isinstance(value, dict):
            found += name, _content(value)
        else:
            counted = isinstance(value, Tensor) and not value.is_inference()
            found += name, id(value), value._version if counted else None
    return found


def _alone(update: Update) -> Update:
    """An update, or anything else, that claims no place in a stack: only engines know of one."""
    if isinstance(update, Update) and update.row is not None:
        return dataclasses.replace(update, row=None)
    return update
