"""Workloads of ``benchmarks.gpu``: a method, generated data, and a plain PyTorch loop.

The plain loop trains one client after another with ``torch.optim`` and does the same arithmetic:
the same network, the same loss, the same batches.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client, Examples, FederatedData, Graph
from fedbolic.data.graphs.graph import GraphSplit, simple_edges
from fedbolic.federated import Batched, Engine, Graphed, LocalTraining, Sequential, Trainer
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.nn.network.classifier import Classifier
from fedbolic.nn.network.resnet import ResNet
from flatland import GCN, FlatLand, LorentzGCN
from flatland.graphs.blocks import graph_block
from hyperfed import HyperFed
from hyperfed.loss import clip

RNG = Rng(0)
NUM_CLASSES, NUM_WORDS, WORD_RATE, DEGREE = 10, 1433, 0.0127, 4
"""Classes; then features, share of features that are not 0, and mean degree, as on Cora."""


@dataclass(frozen=True)
class Size:
    """Sizes of the benchmark's work.

    Args:
        resnet: Residual network.
        methods: Quick settings to compare with the CPU; ``None`` for all.
        timed: Workloads whose steps are timed; ``None`` for all.
        layers: Layers whose convolutions are timed; ``None`` for all.
        clients: Numbers of clients of a step.
        batch: Examples in a batch.
        nodes: Nodes of a client's graph.
        seconds: Seconds of the steps of one timing, so that the clock is exact enough.
        repeats: Timings, of which the median counts.
        copied: Numbers that the copy of the roofline moves.
        matrix: Rows of the roofline's matrices.
        launches: Launches in a chain of the roofline.
        pixels: Height and width of the residual network's images.
        most_rows: Bound on the rows and columns of the geometry's cases.
    """

    resnet: ResNet
    methods: tuple[str, ...] | None = None
    timed: tuple[str, ...] | None = None
    layers: tuple[str, ...] | None = None
    clients: tuple[int, ...] = (20, 100)
    batch: int = 32
    nodes: int = 270
    seconds: float = 0.25
    repeats: int = 3
    copied: int = 2**28
    matrix: int = 8192
    launches: int = 1000
    pixels: int = 32
    most_rows: int = 2**20


FULL = Size(ResNet(stem="cifar"))
SMALL = Size(
    ResNet(blocks=(1,), width=4, stem="cifar"),
    methods=("fedavg", "flatland"),
    timed=("MLP", "FlatLand"),
    layers=("ConvNet 8x8, second",),
    clients=(2,),
    batch=4,
    nodes=12,
    seconds=0.0,
    repeats=1,
    copied=2**10,
    matrix=16,
    launches=3,
    pixels=8,
    most_rows=64,
)
"""Sizes that take seconds on a CPU and show nothing but that every part runs."""


def engines() -> dict[str, Engine]:
    """The engines that are measured, by name."""
    return {"Sequential": Sequential(), "Batched": Batched(), "Graphed": Graphed()}


def one_by_one() -> dict[str, Engine]:
    """The engines for networks that fill a device alone."""
    return {"Sequential": Sequential(), "Graphed(together=1)": Graphed(together=1)}


@dataclass(frozen=True)
class GpuWorkload:
    """A federation, a method and the parts of the plain loop that does the same."""

    name: str
    method: GradientMethod
    data: Callable[[int], FederatedData]
    network: Callable[[Meta], nn.Module]
    loss: Callable[[nn.Module, Params, Tree], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]

    def visiting(self, visits: int, *, epochs: int = 1) -> GradientMethod:
        """The method with other numbers of steps on each batch and of epochs."""
        local = dataclasses.replace(self.method.local, repeats=visits, epochs=epochs)
        return dataclasses.replace(self.method, local=local)  # type: ignore[type-var]  # a dataclass

    def messages(self, data: FederatedData) -> dict[int, Tree]:
        """Messages of the first exchange."""
        start = Trainer().begin(self.method, data, RNG).server_state
        return {client.id: self.method.broadcast(start, client.id) for client in data.clients}


def tasks(
    method: GradientMethod, messages: dict[int, Tree], clients: Iterable[Client]
) -> list[ClientTask]:
    """Tasks of the clients in the first exchange, as the engines begin them."""
    return [
        ClientTask.begin(method, messages[c.id], c, {}, RNG.at("client", c.id)) for c in clients
    ]


class GpuPlainLoop:
    """A plain PyTorch loop over the clients of a workload."""

    def __init__(self, work: GpuWorkload, data: FederatedData, *, compiled: bool = False) -> None:
        inputs = data.clients[0].no_inputs
        self.work = work
        self.network = work.network(data.meta).to(inputs.device, inputs.dtype).train()
        self.messages = work.messages(data)

        def loss(batch: Params, context: Tree) -> Tensor:
            return work.loss(self.network, batch, context)

        self.compiled = compiled
        self.loss = torch.compile(loss, mode="reduce-overhead") if compiled else loss

    def run(self, method: GradientMethod, clients: Sequence[Client]) -> list[Params]:
        """Train all clients, one after another, and return their parameters."""
        return [self._trained(task) for task in tasks(method, self.messages, clients)]

    def _trained(self, task: ClientTask) -> Params:
        own = task.context.get("own", {}).get("fixed", {})
        values = {**task.local["parameters"], **task.local["buffers"], **own}
        named = [*self.network.named_parameters(), *self.network.named_buffers()]
        with torch.no_grad():
            for name, x in named:
                x.copy_(values[name])
        optimizer = self.work.optimizer(self.network)
        device = named[0][1].device
        positions = task.plan.positions.to(device)
        draws = {name: draw.to(device) for name, draw in task.plan.draws.items()}
        examples = task.examples.all()
        for i in range(len(positions)):
            batch = {name: x[positions[i]] for name, x in examples.items()}
            batch |= {name: draw[i] for name, draw in draws.items()}
            self.step(optimizer, batch, task.context)
        return {name: x.detach().clone() for name, x in self.network.named_parameters()}

    def step(self, optimizer: torch.optim.Optimizer, batch: Params, context: Tree) -> None:
        """A step on a batch."""
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        self.loss(batch, context).backward()
        optimizer.step()


def images(
    num_clients: int, num_examples: int, shape: tuple[int, ...], device: torch.device
) -> FederatedData:
    """Normal noise with random labels; half as many test examples as training examples."""
    generator = torch.Generator().manual_seed(0)

    def parts(num: int) -> list[Examples]:
        total = num * num_clients
        x = torch.randn(total, *shape, generator=generator)
        y = torch.randint(NUM_CLASSES, (total,), generator=generator)
        return Examples({"x": x, "y": y}).to(device).cut(torch.arange(total).split(num or 1))

    nothing = Examples(parts(1)[0].at(torch.arange(0)))
    meta = Meta(NUM_CLASSES, shape, num_clients)
    train, test = parts(num_examples), parts(num_examples // 2)
    clients = (Client(i, train[i], nothing, test[i], meta) for i in range(num_clients))
    return FederatedData(tuple(clients), meta)


def graphs(num_clients: int, num_nodes: int, device: torch.device) -> FederatedData:
    """Random graphs of equal size with sparse features; half of the nodes train, half test."""
    generator = torch.Generator().manual_seed(0)
    meta = Meta(NUM_CLASSES, (NUM_WORDS,), num_clients)
    pairs = torch.triu_indices(num_nodes, num_nodes, offset=1)

    def client(i: int) -> Client:
        chosen = torch.randperm(pairs.shape[1], generator=generator)[: num_nodes * DEGREE // 2]
        words = torch.rand(num_nodes, NUM_WORDS, generator=generator) < WORD_RATE
        words[:, i % NUM_WORDS] = True  # no row is empty
        features = words / words.sum(dim=1, keepdim=True)
        labels = torch.randint(NUM_CLASSES, (num_nodes,), generator=generator)
        graph = Graph(features, simple_edges(pairs[:, chosen], num_nodes), labels).to(device)
        nodes = torch.arange(num_nodes, device=device).tensor_split(2)
        train, test = (GraphSplit(graph, some) for some in nodes)
        return Client(i, train, GraphSplit(graph, nodes[0][:0]), test, meta)

    return FederatedData(tuple(client(i) for i in range(num_clients)), meta)


def workloads(device: torch.device, size: Size) -> list[GpuWorkload]:
    """The workloads of the table of steps."""
    digits, grey = (1, 8, 8), (1, 28, 28)
    return [
        _classification("MLP", FedAvg(MLP()), grey, device, size.batch),
        _classification("digits CNN", FedAvg(ConvNet()), digits, device, size.batch),
        _classification("28x28 CNN", FedAvg(ConvNet()), grey, device, size.batch),
        _hyperfed(device, size.batch),
        _graph("GCN", FlatLand(GCN(dropout=0.0), sharing={"*": "shared"}), device, size.nodes),
        _graph("FlatLand", FlatLand(LorentzGCN(dropout=0.0)), device, size.nodes),
    ]


def resnet(device: torch.device, size: Size) -> GpuWorkload:
    """The residual network, with batches of twice the usual size."""
    shape = (3, size.pixels, size.pixels)
    return _classification("ResNet-18", FedAvg(size.resnet), shape, device, 2 * size.batch)


def _classification(
    name: str, method: FedAvg, shape: tuple[int, ...], device: torch.device, batch: int
) -> GpuWorkload:
    method = dataclasses.replace(method, local=LocalTraining(1, batch), lr=0.05)

    def network(meta: Meta) -> nn.Module:
        head = nn.Linear(method.backbone.num_features, meta.num_classes)
        return Classifier(method.backbone.build(meta), head)

    return GpuWorkload(
        name,
        method,
        lambda num_clients: images(num_clients, 2 * batch, shape, device),
        network,
        lambda network, batch, context: cross_entropy(network(batch["x"]), batch["y"]),
        lambda network: torch.optim.SGD(network.parameters(), lr=method.lr),
    )


def _hyperfed(device: torch.device, batch: int) -> GpuWorkload:
    method = HyperFed(ConvNet(), local=LocalTraining(1, batch))

    def network(meta: Meta) -> nn.Module:
        return Classifier(method.backbone.build(meta), nn.Identity())

    def loss(network: nn.Module, batch: Params, context: Tree) -> Tensor:
        z = network(batch["x"])
        z = clip(z, method.clip)
        points = context["own"]["prototypes"]["head.weight"]
        return method.objective.losses(z, points, batch).mean()

    return GpuWorkload(
        "HyperFed",
        method,
        lambda num_clients: images(num_clients, 2 * batch, (1, 28, 28), device),
        network,
        loss,
        lambda network: torch.optim.SGD(network.parameters(), lr=method.lr),
    )


def _graph(name: str, method: FlatLand, device: torch.device, nodes: int) -> GpuWorkload:
    method = dataclasses.replace(method, local=LocalTraining(1, None))

    def loss(network: nn.Module, batch: Params, context: Tree) -> Tensor:
        logits = network(graph_block(context["own"]["graph"].parts))
        return cross_entropy(logits[0, batch["node"]], batch["y"])

    def optimizer(network: nn.Module) -> torch.optim.Optimizer:
        named = dict(network.named_parameters())
        curvatures = [x for n, x in named.items() if n.startswith("curvature.")]
        weights = [x for n, x in named.items() if not n.startswith("curvature.")]
        groups = [{"params": weights, "weight_decay": method.weight_decay}]
        groups += [{"params": curvatures, "lr": method.lr * method.curvature_rate}]
        return torch.optim.Adam([group for group in groups if group["params"]], lr=method.lr)

    return GpuWorkload(
        name,
        method,
        lambda num_clients: graphs(num_clients, nodes, device),
        method.network.build,
        loss,
        optimizer,
    )
