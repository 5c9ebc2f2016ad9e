"""Whole runs as on a CUDA device: captured, by kernels, without a fallback, as on the CPU."""

import contextlib
import dataclasses
import functools
import logging

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, Examples, FederatedData, Graph, LinkExamples
from fedbolic.data.contract.client import ClientSlices
from fedbolic.data.graphs.graph import GraphSplit, simple_edges
from fedbolic.federated import (
    Batched,
    Devices,
    Evaluation,
    Graphed,
    LocalTraining,
    Sequential,
    Trainer,
)
from fedbolic.federated.batched.replay import Replay
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.scores.metrics import EXTRA_METRICS, extra_scores, measuring
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import ConvNet
from fedbolic.nn.network.resnet import ResNet
from flatland import FlatLand
from flatland.graphs.links import LinkNetwork
from tests.federated.agreement import with_
from tests.federated.engines import test_graphed_gpu
from tests.federated.simple_method import NormNet
from tests.house import test_gpu_runs as on_a_gpu
from tests.launches import LEAST_REPLAYED, MOST_GRAPHS, replays_row
from tests.rehearsal import CUDA, rehearsal
from tests.subjects import QUICK, subject

NEAR = 1e-9
ENGINES = {
    "Sequential": Sequential(),
    "Batched": Batched(),
    "Graphed": Graphed(),
    "Graphed, one by one": Graphed(together=1),
}
LOCAL = LocalTraining(3, 8)
BACKBONES = {
    "ConvNet": FedAvg(ConvNet(), rounds=1, local=LOCAL),
    "ResNet": FedAvg(ResNet(blocks=(1, 1), width=4, stem="cifar"), rounds=1, local=LOCAL),
    "ResNet, group norm": FedAvg(
        ResNet(blocks=(1,), width=4, stem="imagenet", norm="group"), rounds=1, local=LOCAL
    ),
}
"""Methods with a convolution, besides the quick settings."""

OFTEN = (("closed_form_head", "Graphed"), ("flatland/links", "Graphed"))
"""Settings and engines with which the tests for a GPU are rehearsed by default."""

CASES = [
    pytest.param(name, engine, marks=[] if engine == "Graphed" else pytest.mark.slow)
    for name in (*QUICK, *BACKBONES)
    for engine in ENGINES
]


def case(name):
    if name in BACKBONES:
        return BACKBONES[name], subject("fedavg")[1]
    return subject(name)


def ended(name, engine, device):
    """Values at the end of a run in float64 on the CPU, and its rows; no client may fail."""
    method, data = case(name)
    evaluation = Evaluation(every=2)
    run = Trainer(engine, evaluation=evaluation).run(method, data.to(device, torch.float64), Rng(5))
    *_, (state, _) = run = list(run)
    rows = [row for _, of_exchange in run for row in of_exchange]
    assert not any(row.value for row in rows if row.name == "clients/failed")
    kept = {str(i): state.client_states[i] for i in sorted(state.client_states)}
    return tree.tensors(tree.to({"server": state.server_state, "clients": kept}, "cpu")), rows


@functools.cache
def on_the_cpu(name):
    return ended(name, Sequential(), "cpu")


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_a_run_takes_the_branches_for_cuda_and_is_that_on_the_cpu(name, engine, caplog):
    caplog.set_level(logging.INFO)
    on_the_cpu(name)
    caplog.clear()
    own = dataclasses.replace(ENGINES[engine])
    with rehearsal() as device:
        assert_is_that_on_the_cpu(name, *ended(name, own, CUDA))
    notes = [record.getMessage() for record in caplog.records]
    assert all("it takes no gradient steps" in text for text in notes if "one by one" in text)
    assert "not captured" not in caplog.text
    if isinstance(case(name)[0], GradientMethod):
        assert bool(device.graphs) == engine.startswith("Graphed")


def assert_is_that_on_the_cpu(name, found, rows):
    expected, told = on_the_cpu(name)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        torch.testing.assert_close(found[path], value, rtol=NEAR, atol=NEAR, msg=path)
    assert [row[:3] for row in rows] == [row[:3] for row in told]
    assert [row.value for row in rows] == pytest.approx([row.value for row in told], abs=NEAR)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_every_score_by_name_is_that_on_the_cpu(num_classes):
    generator = torch.Generator().manual_seed(num_classes)
    logits = torch.randn(40, num_classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(num_classes, (40,), generator=generator)
    with measuring(EXTRA_METRICS):
        expected = extra_scores(logits, labels)
        with rehearsal():
            found = extra_scores(logits.to(CUDA), labels.to(CUDA))
    assert expected.keys() >= {*EXTRA_METRICS}
    assert found == pytest.approx(expected, abs=NEAR)


@pytest.mark.parametrize(
    "name",
    [x if x == "ditto" else pytest.param(x, marks=pytest.mark.slow) for x in on_a_gpu.GRADIENT],
)
def test_two_devices_capture_steps_and_give_the_run_on_the_cpu(name, caplog):
    on_the_cpu(name)
    caplog.clear()
    with caplog.at_level(logging.INFO), rehearsal(devices=2) as made:
        found = ended(name, Devices(devices=("cuda:0", "cuda:1")), CUDA)
    assert_is_that_on_the_cpu(name, *found)
    assert made.replayed
    assert {graph.label for graph in made.graphs} == {"meta:0", "meta:1"}
    assert "not captured" not in caplog.text


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=[] if (name, engine) in OFTEN else pytest.mark.slow)
        for name in on_a_gpu.GRADIENT
        for engine in ("Batched", "Graphed")
    ],
)
def test_the_tests_for_a_gpu_pass(name, engine, monkeypatch, caplog):
    engine = ENGINES[engine]
    with rehearsal():
        on_a_gpu.test_no_step_waits_for_the_device(name, engine)
        on_a_gpu.test_neither_a_loss_nor_a_step_waits_for_the_device(
            name, engine, monkeypatch, caplog
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_tests_of_captures_and_of_repeated_runs_pass(name):
    with rehearsal():
        for together in (None, 1):
            with contextlib.suppress(pytest.skip.Exception):
                test_graphed_gpu.test_every_step_is_captured_and_equals_the_reference(
                    name, together
                )
        on_a_gpu.test_two_runs_are_equal_byte_for_byte(name, Graphed())


def test_the_tests_of_replays_pass():
    with rehearsal():
        test_graphed_gpu.test_a_replay_is_one_graph_from_the_second_call_on()
        test_graphed_gpu.refuse_a_wait()


def unequal(num_clients, most):
    """Clients with 1 to ``most`` small images each."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.zeros(3, num_clients, dtype=torch.int64)
    lengths[0] = torch.randint(1, most + 1, (num_clients,), generator=generator)

    def examples(n):
        x = torch.randn(n, 1, 4, 4, generator=generator, dtype=torch.float64)
        return Examples({"x": x, "y": torch.randint(10, (n,), generator=generator)})

    splits = examples(int(lengths.sum())), examples(0), examples(0)
    meta = Meta(10, (1, 4, 4), num_clients)
    return FederatedData(ClientSlices(splits, lengths, meta), meta)


def unequal_graphs(num_clients, most):
    """Clients with a graph of 4 to ``most`` nodes each, half of which are examples."""
    generator = torch.Generator().manual_seed(0)

    def client(i):
        n = int(torch.randint(4, most + 1, (), generator=generator))
        features = torch.randn(n, 5, generator=generator, dtype=torch.float64)
        edges = simple_edges(torch.randint(n, (2, 2 * n), generator=generator), n)
        graph = Graph(features, edges, torch.randint(3, (n,), generator=generator))
        nodes = torch.randperm(n, generator=generator).tensor_split((n // 2, 3 * n // 4))
        return Client(i, *(GraphSplit(graph, of.sort().values) for of in nodes), meta)

    meta = Meta(3, (5,), num_clients)
    return FederatedData(tuple(map(client, range(num_clients))), meta)


def unequal_links(num_clients, most):
    """Clients with some edges of such graphs, which are examples."""

    def client(of):
        n = len(of.train.graph)
        edges = simple_edges(of.train.graph.edges[:, :n], n)
        graph = Graph(of.train.graph.features, edges, of.train.graph.labels)
        pairs = edges.T[edges[0] < edges[1]]
        splits = (
            LinkExamples(graph, x, torch.ones(len(x)).long()) for x in (pairs, *2 * [pairs[:0]])
        )
        return Client(of.id, *splits, of.meta)

    data = unequal_graphs(num_clients, most)
    return FederatedData(tuple(map(client, data.clients)), data.meta)


def cohorts(kind, num_clients, rounds):
    """Ids of 20 of all clients, or of each with the same probability, in every round."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(rounds):
        order = torch.randperm(num_clients, generator=generator)[:20]
        chosen = torch.rand(num_clients, generator=generator) < 0.2
        yield sorted(order.tolist()) if kind != "poisson" else chosen.nonzero().flatten().tolist()


SAMPLED = {
    "batches": (with_(local=LocalTraining(2, 8)), "fixed"),
    "all examples at once": (with_(local=LocalTraining(6)), "fixed"),
    "several steps on a batch": (with_(local=LocalTraining(2, 16, 3)), "fixed"),
    "batch norm": (with_(backbone=NormNet(), local=LocalTraining(2, 8)), "fixed"),
    "cohorts of other sizes": (with_(local=LocalTraining(6, 8)), "poisson"),
    "graphs": (FlatLand(rounds=1, local=LocalTraining(8, None)), "graphs"),
    "links": (FlatLand(LinkNetwork(dim=4), rounds=1, local=LocalTraining(8, None)), "links"),
}
DATA = {"graphs": unequal_graphs, "links": unequal_links}
"""Methods and cohorts, with graphs for few of the numbers of clients, examples and steps."""


@pytest.mark.parametrize(
    "name",
    [name if name == "batches" else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLED],
)
def test_cohorts_of_unequal_clients_are_replayed_by_few_graphs(name, monkeypatch):
    (method, kind), calls, replay = SAMPLED[name], [], Replay.__call__
    data = DATA.get(kind, unequal)(100, 40)

    def noted(self):
        calls.append(self)
        replay(self)

    monkeypatch.setattr(Replay, "__call__", noted)
    start = Trainer().begin(method, data, Rng(0)).server_state
    with rehearsal() as device:
        there, sent = data.to(CUDA), tree.to(start, CUDA)
        with Graphed().open(there.clients) as opened:
            for i, ids in enumerate(cohorts(kind, 100, rounds=30)):
                found = exchanged(opened, method, there, ids, sent, i)
                if i % 10:
                    continue
                expected = exchanged(Sequential(), method, data, ids, start, i)
                for (_, update, _), (_, other, _) in zip(found, expected, strict=True):
                    payload = tree.tensors(tree.to(update.payload, "cpu"))
                    for path, value in tree.tensors(other.payload).items():
                        torch.testing.assert_close(payload[path], value, rtol=NEAR, atol=NEAR)
    assert len(device.graphs) <= (18 if kind == "poisson" else 12)
    assert device.replayed >= (0.93 if kind == "poisson" else 0.95) * len(calls)


def exchanged(engine, method, data, ids, server_state, number):
    """Results of the sampled clients."""
    messages = {i: method.broadcast(server_state, i) for i in ids}
    clients = [data.clients[i] for i in ids]
    return list(engine.run(Exchange(method, messages, clients, {}, Rng(number))))


BEYOND = {
    "adafgl": (12, 0.89),  # two phases with graphs of two sizes, three steps a round
    "hierarchies": (17, 0.95),  # a step size for each round of the burn-in, and so below
    "knowledge": (16, 0.95),
}
"""Settings that exceed the bounds of ``python -m tests.launches --replays``, with their own."""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_settings_are_replayed_by_few_graphs(name):
    row = replays_row(name, Graphed())
    graphs, replayed = BEYOND.get(name, (MOST_GRAPHS, LEAST_REPLAYED))
    assert row["graphs"] <= graphs
    assert float(row["replayed"] or 1) >= replayed


REFUSED = {
    "a number": lambda x: x.sum().item(),
    "a branch": lambda x: bool((x > 0).any()),
    "a list": lambda x: x.tolist(),
    "a copy down": lambda x: x.cpu(),
    "a mask": lambda x: x[x > 0],
    "a write through a mask": lambda x: x.index_put_((x > 0,), x.new_zeros(())),
    "positions": lambda x: x.nonzero(),
    "distinct values": lambda x: x.unique(),
    "repetitions": lambda x: torch.repeat_interleave(x.long()),
    "an index from the host": lambda x: x[torch.tensor([0])],
    "a copy up": lambda x: x + torch.ones(4).to(x.device),
    "a new tensor": lambda x: x * torch.tensor([1.0], device=x.device),
}
"""Operations that CUDA does not capture."""

CAPTURED = {
    "a view": lambda x: x.view(2, 2).T.add_(1),
    "a selection": lambda x: x.copy_(torch.where(x > 0, x, 1.0).index_select(0, x.argsort())),
    "zeros": lambda x: x.add_(torch.zeros(4, device=x.device) + 1),
    "lists": lambda x: torch._foreach_add_([x, x], 1.0),
    "a vector times a matrix": lambda x: x.copy_(x @ x.outer(x) / x.square().sum() + 1),
    "a gradient": lambda x: x.copy_(torch.func.grad(lambda y: y.pow(3).sum())(x) / 2),
}
"""Operations that CUDA captures; each changes its argument."""


def captured(function):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_does_not_capture_is_refused(name):
    with rehearsal():
        x = torch.arange(4.0).to(CUDA)
        REFUSED[name](x)
        with pytest.raises(RuntimeError, match="capturing"):
            captured(lambda: REFUSED[name](x))


@pytest.mark.parametrize("name", CAPTURED)
def test_a_replay_alone_changes_values(name):
    expected = torch.arange(1.0, 5.0)
    with rehearsal():
        x = expected.to(CUDA)
        graph = captured(lambda: CAPTURED[name](x))
        assert torch.equal(x.cpu(), expected)
        for _ in range(2):
            CAPTURED[name](expected)
            graph.replay()
            assert torch.equal(x.cpu(), expected)


def test_a_graph_repeats_numbers_and_its_results_are_not_there_before_a_replay():
    with rehearsal():
        x, kept, steps = torch.zeros(2).to(CUDA), [], iter((1.0, 2.0))
        graph = captured(lambda: kept.append(x.add_(next(steps)) * 2))
        assert kept[0].isnan().all()
        for _ in range(2):
            graph.replay()
        assert kept[0].tolist() == [4.0, 4.0]


def test_a_capture_on_the_stream_of_another_device_is_empty():
    with rehearsal(devices=2):
        captured(lambda: torch.zeros(1, device="cuda:0"))  # the stream is made and kept
        x = torch.zeros(1).to("cuda:1")
        with torch.cuda.device("cuda:1"), pytest.raises(UserWarning, match="empty"):
            captured(lambda: x.add_(1))
