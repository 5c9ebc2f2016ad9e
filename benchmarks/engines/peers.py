"""Rounds of ``benchmarks.engines`` by other frameworks, each in its own environment.

Such an environment needs torch and the framework only. A round begins when the seeds of its orders
arrive from the benchmark and ends when "done" has been sent back, so that the rounds of all
candidates can be interleaved.
"""

import copy
import functools
import importlib
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.engines import plain_loop
from benchmarks.engines.plain_loop import Workload

GIVEN = "FEDBOLIC_BENCHMARK_GIVEN"
"""Environment variable that names the file with the work, for processes that a framework starts."""

ENDLESS = 10**6


@functools.cache
def given() -> tuple[Workload, list[tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Work of every client, the clients' data and the initial global parameters."""
    fields, data, values = torch.load(os.environ[GIVEN])
    return Workload(**fields), data, values


class Line:
    """The peer's end of the connection to the benchmark."""

    def __init__(self, descriptor: int) -> None:
        self.connection = Connection(descriptor)

    def done(self) -> None:
        """Report the end of the round."""
        self.connection.send("done")

    def begin(self, values: Callable[[], dict[str, np.ndarray]]) -> list[int]:
        """Wait for this peer's turn and return the seeds of the next round."""
        while (asked := self.connection.recv()) == "values":
            self.connection.send(values())
        return asked


class _Network(nn.Module):
    """A network with the two functions that pfl expects."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Metrics; pfl requests them before the first round only."""
        return {"loss": self.loss(x, y).item()}


def pfl(line: Line) -> None:
    """FederatedAveraging of pfl in one process; data are permuted when they are loaded."""
    ask = functools.cache(importlib.import_module)
    work, data, values = given()
    network = _Network(plain_loop.network(work))
    network.net.load_state_dict(values)
    seeds: list[int] = []

    def numbers() -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in network.net.named_parameters()}

    class TakingTurns(ask("pfl.callback.base").TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            seeds[:] = line.begin(numbers)
            return super().on_train_begin(model=model)

        def after_central_iteration(self, *args: Any, **named: Any) -> Any:
            line.done()
            seeds[:] = line.begin(numbers)
            return super().after_central_iteration(*args, **named)

    def dataset(i: int) -> Any:
        x, y = data[i]
        order = torch.cat(list(plain_loop.batches(work, seeds[i])))
        return ask("pfl.data.dataset").Dataset([x[order], y[order]], user_id=str(i))

    sampler = ask("pfl.data.sampling").get_user_sampler("minimize_reuse", list(range(len(data))))
    clients = ask("pfl.data.federated_dataset").FederatedDataset(dataset, sampler)
    model = ask("pfl.model.pytorch").PyTorchModel(
        network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)
    )
    weighting = ask("pfl.aggregate.weighting").WeightByDatapoints()
    hyper = ask("pfl.hyperparam")
    ask("pfl.algorithm.federated_averaging").FederatedAveraging().run(
        ask("pfl.algorithm.base").NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=len(data),
            val_cohort_size=0,
        ),
        ask("pfl.aggregate.simulate").SimulatedBackend(clients, clients, [weighting]),
        model,
        hyper.NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        hyper.NNEvalHyperParams(local_batch_size=work.batch_size),
        [TakingTurns()],
    )


def train_client(message: Any, context: Any) -> Any:
    """One client's round in Flower, in any process."""
    torch.set_num_threads(1)
    app = importlib.import_module("flwr.app")
    work, data, _ = given()
    i = int(context.node_config["partition-id"])
    x, y = data[i]
    net = _flower_network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    plain_loop.train(net, work, x, y, message.content["config"]["seeds"][i])
    content = {
        "arrays": app.ArrayRecord(net.state_dict()),
        "metrics": app.MetricRecord({"num-examples": len(y)}),
    }
    return app.Message(content=app.RecordDict(content), reply_to=message)


@functools.cache
def _flower_network() -> nn.Module:
    return plain_loop.network(given()[0])


def flower(line: Line, num_actors: int) -> None:
    """Flower's simulation with Ray: FedAvg without evaluation, one CPU for each actor."""
    app = importlib.import_module("flwr.app")
    strategies = importlib.import_module("flwr.serverapp.strategy")
    _, data, values = given()
    server = importlib.import_module("flwr.serverapp").ServerApp()
    client = importlib.import_module("flwr.clientapp").ClientApp()
    client.train()(train_client)

    class TakingTurns(strategies.FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            def numbers() -> dict[str, np.ndarray]:
                return {n: x.numpy() for n, x in arrays.to_torch_state_dict().items()}

            config["seeds"] = line.begin(numbers)
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, *args: Any) -> Any:
            aggregate = super().aggregate_train(*args)
            line.done()
            return aggregate

    @server.main()
    def main(grid: Any, context: Any) -> None:
        num = len(data)
        strategy = TakingTurns(fraction_evaluate=0.0, min_train_nodes=num, min_available_nodes=num)
        strategy.start(
            grid, app.ArrayRecord(values), num_rounds=ENDLESS, train_config=app.ConfigRecord()
        )

    importlib.import_module("flwr.simulation").run_simulation(
        server,
        client,
        num_supernodes=len(data),
        backend_config={
            "init_args": {"num_cpus": num_actors, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def blazefl(line: Line) -> None:
    """FedAvg of BlazeFL's ``contrib`` by its serial trainer, whose sums are in float32."""
    fedavg = importlib.import_module("blazefl.contrib.fedavg")
    work, data, values = given()
    network = plain_loop.network(work)
    network.load_state_dict(values)
    seeds: list[int] = []

    class Same:
        def select_model(self, model_name: str) -> nn.Module:
            del model_name
            return copy.deepcopy(network)

    class Dealt:
        def get_dataloader(self, type_: Any, cid: int, **named: Any) -> Any:
            x, y = data[cid]
            return ((x[i], y[i]) for i in plain_loop.batches(work, seeds[cid]))

    ids, common = list(range(len(data))), {"model_selector": Same(), "model_name": ""}
    common |= {"dataset": Dealt(), "device": "cpu", "batch_size": work.batch_size, "seed": 0}
    common |= {"num_clients": len(ids)}
    server = fedavg.FedAvgBaseServerHandler(global_round=ENDLESS, sample_ratio=1.0, **common)
    trainer = fedavg.FedAvgBaseClientTrainer(epochs=1, lr=work.lr, **common)

    def numbers() -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in server.model.named_parameters()}

    while True:
        seeds[:] = line.begin(numbers)
        trainer.local_process(server.downlink_package(), ids)
        for package in trainer.uplink_package():
            server.load(package)
        line.done()


PEERS: dict[str, Callable[[Line], None]] = {
    "pfl": pfl,
    "BlazeFL": blazefl,
    "Flower, 1 actor": functools.partial(flower, num_actors=1),
    "Flower, 2 actors": functools.partial(flower, num_actors=2),
}


def main(name: str, descriptor: str) -> None:
    """Run rounds until the connection is closed."""
    torch.set_num_threads(1)
    PEERS[name](Line(int(descriptor)))
