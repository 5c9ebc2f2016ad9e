"""Ranks of torch.distributed that share the clients of an exchange."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import distributed
from typing_extensions import override

from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.engine import (
    Engine,
    Exchange,
    Failure,
    Result,
    RunStoppedError,
    moved_result,
)
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.processes.worker import deal, pickled, results, sent, worker_requests


@dataclass(frozen=True)
class Ranks(Engine):
    """Ranks that each run a share of the clients and then exchange all results.

    All ranks run the same program with the same method, data and seed, after
    ``torch.distributed.init_process_group``, so their server states stay equal. Results equal those
    of :class:`~fedbolic.federated.engines.workers.Workers`, but the loss of one rank stops the run
    on all of them. The command line does not start ranks.

    The data of a rank may be on its own device, such as ``cuda:1`` on rank 1. Results are exchanged
    through the memory of the CPU, so any backend serves (with NCCL, each rank first calls
    ``torch.cuda.set_device``), and arrive on the device of the rank that receives them.

    Args:
        inner: Engine that runs the clients of each rank.

    Example:
        >>> Ranks()
        Ranks(inner=Sequential())
    """

    inner: Engine = Sequential()

    @override
    def check(self, clients: Sequence[Client]) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ValueError("Ranks needs torch.distributed.init_process_group in every process")
        self.inner.check(clients)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        self.check(exchange.clients)
        shares = deal(exchange.clients, distributed.get_world_size())
        method = pickled(exchange.method)
        task = worker_requests("updates", method, exchange, shares)[distributed.get_rank()]
        by_id = {client.id: client for client in exchange.clients}
        own = {
            client_id: sent(pickle.dumps, *moved_result(update, client_state, "cpu"))
            for client_id, update, client_state in results(self.inner, by_id, task)
        }
        gathered: list[Any] = [None] * len(shares)
        try:
            distributed.all_gather_object(gathered, own)
        except RuntimeError as error:
            raise RunStoppedError(f"the connection to a rank is lost: {error}") from error
        found = {client_id: text for texts in gathered for client_id, text in texts.items()}
        for client in exchange.clients:
            update, client_state = pickle.loads(found.pop(client.id))
            update, client_state = moved_result(update, client_state, client.no_inputs.device)
            old = exchange.state(client)
            yield client, update, old if isinstance(update, Failure) else client_state
