"""The reference engine, which runs one client after another."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.data.client import Client
from fedbolic.federated.engines.engine import Engine, Failure, Result, torch_stream
from fedbolic.federated.method import Method
from fedbolic.federated.update import Update
from fedbolic.rng import Rng
from fedbolic.types import Tree


@dataclass(frozen=True)
class Sequential(Engine):
    """Runs the ``local_update`` of one client after another; its results define correctness.

    Torch's global random stream, from which a network may draw, is seeded for each client and
    exchange, and restored afterwards.
    """

    @override
    def run(
        self,
        method: Method,
        messages: Mapping[int, Tree],
        clients: Sequence[Client],
        client_states: Mapping[int, Tree],
        rng: Rng,
    ) -> Iterator[Result]:
        for client in clients:
            client_state = client_states.get(client.id, {})
            stream = rng.at("client", client.id)
            try:
                with torch_stream(client, stream):
                    update, new = method.local_update(
                        messages[client.id], client, client_state, stream
                    )
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # one client's failure must not end the round
                yield client, Failure(error), client_state
            else:
                yield client, _alone(update), new


def _alone(update: Update) -> Update:
    """An update, or anything else, that claims no place in a stack: only engines know of one."""
    if isinstance(update, Update) and update.row is not None:
        return dataclasses.replace(update, row=None)
    return update
