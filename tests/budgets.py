"""Work of training on a shadow device, for a set of methods and networks."""

import dataclasses
from dataclasses import dataclass

import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import Batched, LocalTraining, Mean, Sequential
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.rounds.fine_tuning import FineTuningPhase
from fedbolic.federated.rounds.update_filter import UpdateFilter
from fedbolic.methods import Apple, Ditto, FedAvg, FedNova, FedProto, Scaffold, SphereFed
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.nn.network.resnet import ResNet
from fedbolic.optim import SGD, Adam
from flatland import FedGnn, FedPub, FedSagePlus, FlatLand, Gcfl, NeighbourGenerator
from flatland.graphs.links import LinkNetwork
from flatland.graphs.model import GCN, LorentzGCN
from hyperfed import CrossEntropy, HyperFed
from tests import shadow
from tests.subjects import subject

RNG = Rng(3)
NUM_CLIENTS, BATCH, BATCHES = 4, 4, 2


def images(*shape, num_clients):
    """Clients with two full batches of random images."""
    generator = torch.Generator().manual_seed(0)

    def examples(n):
        x = torch.randn(n, *shape, generator=generator)
        return Examples({"x": x, "y": torch.randint(10, (n,), generator=generator)})

    meta = Meta(10, shape, num_clients)
    clients = [
        Client(i, examples(BATCH * BATCHES), examples(0), examples(4), meta)
        for i in range(num_clients)
    ]
    return FederatedData(tuple(clients), meta, None)


GREY, COLOURED = (1, 8, 8), (3, 8, 8)

METHODS = {
    "fedavg mlp": (FedAvg(MLP()), GREY),
    "fedavg mlp adam": (FedAvg(MLP(), optimizer=Adam()), GREY),
    "fedavg mlp dropout": (FedAvg(MLP(dropout=0.5)), GREY),
    "fedavg convnet": (FedAvg(ConvNet()), GREY),
    "fedprox convnet": (FedAvg(ConvNet(), proximal=0.1, optimizer=SGD(0.9, 1e-4)), GREY),
    "ditto convnet": (Ditto(ConvNet()), GREY),
    "scaffold convnet": (Scaffold(ConvNet()), GREY),
    "spherefed convnet": (SphereFed(ConvNet()), GREY),
    "hyperfed": (HyperFed(ConvNet()), GREY),
    "hyperfed trained": (HyperFed(ConvNet(), prototypes="trained"), GREY),
    "hyperfed mixup": (HyperFed(ConvNet(), mixup=1.0), GREY),
    "h-ce": (HyperFed(ConvNet(), objective=CrossEntropy(), aggregator=Mean()), GREY),
    "resnet batch norm": (FedAvg(ResNet(stem="cifar", width=4)), COLOURED),
    "resnet group norm": (FedAvg(ResNet(stem="cifar", width=4, norm="group")), COLOURED),
    "fednova convnet": (FedNova(ConvNet()), GREY),
    "fedproto mlp": (FedProto(MLP()), GREY),
    "apple mlp": (Apple(MLP()), GREY),
    "fine-tuned mlp": (FineTuningPhase(FedAvg(MLP())), GREY),
    "gcn": (FlatLand(network=GCN(), sharing={"*": "shared"}), None),
    "flatland": (FlatLand(), None),
    "flatland links": (FlatLand(LinkNetwork(LorentzGCN((16,)), dim=8)), "flatland/links"),
    "fedpub": (FedPub(), None),
    "gcfl": (Gcfl(), None),
    "fedgnn": (FedGnn(), None),
    "fedsage+": (FedSagePlus(generator=NeighbourGenerator(rounds=0)), None),
    "fine-tuned gcn": (FineTuningPhase(FlatLand(network=GCN(), sharing={"*": "shared"})), None),
}


@dataclass(frozen=True)
class Spent:
    """Work of an engine and of the update filter.

    Args:
        launches: Launches of a step, of one client for ``Sequential``, else of all.
        step_waits: Waits of the same step.
        step_uploads: Uploads in the same step.
        waits: Waits per client and round, outside the steps.
        uploads: Uploads per client and round, outside the steps.
        round_launches: Launches per client and round, outside the steps.
    """

    launches: float
    step_waits: float
    step_uploads: float
    waits: float
    uploads: float
    round_launches: float


def spent(name, engine, monkeypatch):
    """Measure the second exchange of an engine: the first may fill caches."""
    num_clients = len(_federation(name).clients)
    batches = BATCHES if isinstance(METHODS[name][1], tuple) else 1
    few, more = (
        exchange_of(name, engine=engine, epochs=epochs, monkeypatch=monkeypatch)
        for epochs in (2, 4)  # a single step has no losses to join
    )
    at_once = 1 if isinstance(engine, Sequential) else num_clients
    steps = 2 * batches * num_clients // at_once
    step = {kind: (more[kind] - few[kind]) / steps for kind in few}
    beside = {kind: (few[kind] - step[kind] * steps) / num_clients for kind in few}
    return Spent(
        step["launches"],
        step["waits"],
        step["uploads"],
        beside["waits"],
        beside["uploads"],
        beside["launches"],
    )


def _federation(name, num_clients=NUM_CLIENTS):
    shape = METHODS[name][1]
    if isinstance(shape, tuple):
        return images(*shape, num_clients=num_clients)
    return subject(shape or "flatland")[1]


def _with_local(method, local):
    if isinstance(method, FineTuningPhase):
        return FineTuningPhase(_with_local(method.method, local))
    return dataclasses.replace(method, local=local)


def exchange_of(name, *, engine, epochs, monkeypatch, num_clients=None):
    """Work of the second of two exchanges, as sums by kind.

    With ``num_clients`` the clients are as many, and the aggregation counts, too.
    """
    (method, shape), data = METHODS[name], _federation(name, num_clients or NUM_CLIENTS)
    batch_size = BATCH if isinstance(shape, tuple) else None
    method = _with_local(method, LocalTraining(epochs, batch_size))
    server_state = method.init(data.meta, RNG)
    with shadow.device(monkeypatch) as device:
        there = data.to(shadow.DEVICE, torch.float32)
        server_state = tree.to(server_state, shadow.DEVICE, torch.float32)
        messages = {c.id: method.broadcast(server_state, c.id) for c in there.clients}
        for _ in range(2):
            device.work.clear()
            results = engine.run(Exchange(method, messages, there.clients, {}, RNG))
            usable = list(UpdateFilter(method, messages, (), RNG).usable(results))
            assert len(usable) == len(there.clients)
            if num_clients:
                method.aggregator.aggregate(iter(usable))
            assert not getattr(engine, "_refused", {})
            assert not getattr(engine, "_uncaptured", {}), engine._uncaptured
    return device.work.total()


def scores_of(name, monkeypatch, num_clients):
    """Work of the scores of all clients with ``Batched``, as sums by kind."""
    (method, _), data = METHODS[name], _federation(name, num_clients)
    server_state = method.init(data.meta, RNG)
    with shadow.device(monkeypatch) as device:
        there = data.to(shadow.DEVICE, torch.float32)
        server_state = tree.to(server_state, shadow.DEVICE, torch.float32)
        messages = {c.id: method.broadcast(server_state, c.id) for c in there.clients}
        for _ in range(2):
            device.work.clear()
            assert len(Batched().scores(Exchange(method, messages, there.clients, {}, RNG)))
    return device.work.total()
