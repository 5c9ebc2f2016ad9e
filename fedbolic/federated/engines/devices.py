"""Several devices of this process that share the clients of an exchange."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.rng import sharing_cpu_stream
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, ClientSlices
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.contract.engine import (
    Engine,
    Exchange,
    Failure,
    MethodKey,
    Remote,
    Result,
    moved_result,
)
from fedbolic.federated.contract.method import Method
from fedbolic.federated.engines.graphed import Graphed
from fedbolic.federated.engines.workers import Workers
from fedbolic.federated.processes.device_thread import Found, for_device_thread
from fedbolic.federated.processes.worker import ById, by_id, deal


@dataclass(frozen=True)
class Devices(Engine):
    """Devices of one process that each run a share of the clients, with a thread for each.

    All clients' data are copied to every device once and kept for all rounds of a run. In an
    exchange the largest clients are assigned first, each to the device with the fewest examples so
    far; messages and client states are copied to the device of their client, and updates and client
    states back to the device of the data. Updates are not summed on their way: sums are taken
    there, in ascending order of id, so the result does not depend on the number of devices as long
    as that of ``inner`` for a client does not depend on the other clients.

    Threads have one random stream of the CPU in common. A network that draws from it is found out
    after its first exchange, which is then repeated one device after another, as all later ones.

    Args:
        inner: Engine that runs the clients of each device; each device has its own copy.
        devices: Names of the devices, such as ``cuda:0``; empty for all CUDA devices.

    Raises:
        ValueError: If a name is not that of a device, or ``inner`` uses several devices itself.

    Example:
        >>> Devices(devices=("cuda:0", "cuda:1")).inner
        Graphed(memory=None, together=None, compiled=False)
    """

    inner: Engine = Graphed()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.inner, Devices | Workers | Remote):
            name = type(self.inner).__name__
            raise ValueError(f"inner must be an engine for one device, got {name}")
        for name in self.devices:
            try:
                torch.device(name)
            except RuntimeError as error:
                raise ValueError(f"devices must be names like cuda:0, got {name!r}") from error

    def places(self) -> list[torch.device]:
        """The devices that share the clients."""
        every = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        return [torch.device(name) for name in self.devices or every]

    @override
    def check(self, clients: Sequence[Client]) -> None:
        if not self.places():
            raise ValueError("no CUDA device was found: name devices, such as devices=['cpu']")
        count = torch.cuda.device_count()
        absent = [d for d in self.places() if d.type == "cuda" and (d.index or 0) >= count]
        if absent:
            raise ValueError(f"{count} CUDA devices were found, without {absent[0]}")
        self.inner.check(clients)

    @override
    @contextlib.contextmanager
    def open(self, clients: Sequence[Client]) -> Iterator[Engine]:
        self.check(clients)
        with contextlib.ExitStack() as stack:
            yield _Opened([_Share(d, self.inner, clients, stack) for d in self.places()], clients)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        with self.open(exchange.clients) as opened:
            yield from opened.run(exchange)


class _Share:
    """A device with a copy of the data, a copy of the engine and a thread.

    The thread lasts, since networks are built once in every thread.
    """

    def __init__(
        self,
        device: torch.device,
        inner: Engine,
        clients: Sequence[Client],
        stack: contextlib.ExitStack,
    ) -> None:
        self.device = device
        self.clients: ById
        if isinstance(clients, ClientSlices):
            self.clients = clients.to(device)
        else:
            self.clients = {client.id: client.to(device) for client in clients}
        self.pool = stack.enter_context(ThreadPoolExecutor(1, f"{device}"))
        own = dataclasses.replace(cast(Any, inner))  # its caches are not settings: they are empty
        held = self.clients if isinstance(self.clients, ClientSlices) else [*self.clients.values()]
        self.engine = stack.enter_context(own.open(held))


@dataclass(eq=False)
class _Opened(Engine):
    """The devices while the data lie on them."""

    shares: list[_Share]
    clients: Sequence[Client]
    _drawing: set[MethodKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.originals = by_id(self.clients)

    @override
    def run(self, exchange: Exchange) -> Iterator[Result]:
        def work(share: _Share, own: Sequence[Client]) -> list[Result]:
            return list(share.engine.run(_on(exchange, self._held(share, own), share.device)))

        found: dict[int, tuple[Update | Failure, Tree]] = {}
        for results in self._on_each(exchange.method, exchange.clients, work):
            found |= {client.id: (update, state) for client, update, state in results}
        for client in exchange.clients:
            update, state = moved_result(*found.pop(client.id), client.no_inputs.device)
            yield client, update, exchange.state(client) if isinstance(update, Failure) else state

    @override
    def scores(self, exchange: Exchange) -> dict[int, dict[str, float]]:
        def work(share: _Share, own: Sequence[Client]) -> dict[int, dict[str, float]]:
            return share.engine.scores(_on(exchange, self._held(share, own), share.device))

        found: dict[int, dict[str, float]] = {}
        for some in self._on_each(exchange.method, exchange.clients, work):
            found |= some
        return {client.id: found[client.id] for client in exchange.clients}

    def _held(self, share: _Share, clients: Sequence[Client]) -> list[Client]:
        """Clients with their data on a device."""

        def held(client: Client) -> Client:
            with contextlib.suppress(LookupError):
                if self.originals[client.id] is client:
                    return share.clients[client.id]
            return client.to(share.device)

        return [held(client) for client in clients]

    def _on_each(
        self,
        method: Method,
        clients: Sequence[Client],
        work: Callable[[_Share, Sequence[Client]], Found],
    ) -> list[Found]:
        """The results of every device that has clients, from threads if that is possible."""
        dealt = zip(self.shares, deal(clients, len(self.shares)), strict=True)
        some = [(share, own) for share, own in dealt if own]

        def begun(share: _Share, own: Sequence[Client]) -> Future[Found]:
            return share.pool.submit(for_device_thread(share.device, work), share, own)

        devices = {share.device for share, _ in some if share.device.type != "cpu"}
        # devices with separate random streams, each used by one thread
        if len(devices) == len(some) and MethodKey(method) not in self._drawing:
            before = torch.get_rng_state()
            with sharing_cpu_stream(), warnings.catch_warnings():
                futures = [begun(share, own) for share, own in some]
                wait(futures)
            if torch.equal(torch.get_rng_state(), before):
                return [future.result() for future in futures]
            torch.set_rng_state(before)
            self._drawing.add(MethodKey(method))
            text = "%s draws from the CPU's stream: one device follows another"
            logger.info(text, type(method).__name__)
        return [begun(share, own).result() for share, own in some]


def _on(exchange: Exchange, clients: Sequence[Client], device: torch.device) -> Exchange:
    """The exchange of clients on a device; a tensor in many messages is copied once."""
    copies: dict[int, Tensor] = {}

    def placed(x: Tensor) -> Tensor:
        return copies[id(x)] if id(x) in copies else copies.setdefault(id(x), x.to(device))

    ids, states = [client.id for client in clients], exchange.client_states
    moved = {i: tree.map_tensors(placed, exchange.messages[i]) for i in ids}
    kept = {i: tree.to(states[i], device) for i in ids if i in states}
    return Exchange(exchange.method, moved, clients, kept, exchange.rng)
