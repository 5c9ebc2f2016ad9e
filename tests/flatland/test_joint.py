"""Clients in one batch give the same results as one by one: methods, sizes, dropout, cohorts."""

import dataclasses
import gc
import itertools
import logging
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import HOLDOUT
from fedbolic.federated import (
    Auto,
    Batched,
    Cohort,
    Evaluation,
    FineTune,
    Graphed,
    LocalTraining,
    Sequential,
    Trainer,
    Workers,
)
from fedbolic.federated.batched.static_steps import StaticSteps
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.engines import auto as trying
from fedbolic.optim import SGD
from flatland import (
    GCN,
    Constant,
    ExpandedGCN,
    FedGnn,
    FedGta,
    FedPub,
    FedSagePlus,
    FlatLand,
    Gcfl,
    LorentzGCN,
    MaskedGCN,
    NeighbourGenerator,
)
from flatland.graphs.blocks import Sparse, graph_block
from flatland.graphs.graph_method import GraphMethod
from flatland.method import SHARING
from flatland.rivals.affinities import GradientNorms
from tests.federated.agreement import replace_alone
from tests.federated.simple_method import assert_near
from tests.flatland.cases import ODD, complete, federation, graph_of, path, star
from tests.flatland.test_method import ROWS, VARIANTS

TOLERANCE = 1e-9
"""The first steps of Adam multiply the rounding of a gradient that should be 0 by up to 1e6."""

ALIKE = [(path(9), 9), (star(8), 8), (complete(6), 9), ([], 8)]
"""Graphs of about one size, so that they form one batch."""


def agree(method, data, caplog, **settings):
    """Assert that both engines end in the same state and rows, with no client run by itself."""
    ends = []
    with caplog.at_level(logging.INFO, "fedbolic"):
        for engine in (Sequential(), Batched()):
            exchanges = list(Trainer(engine, **settings).run(method, data, Rng(3)))
            ends.append((exchanges[-1][0], [row for _, new in exchanges for row in new]))
    assert "one by one" not in caplog.text
    (plain, rows), (fast, new) = ends
    assert_near(fast.server_state, plain.server_state, TOLERANCE)
    assert fast.client_states.keys() == plain.client_states.keys()
    for i, client_state in plain.client_states.items():
        assert_near(fast.client_states[i], client_state, TOLERANCE)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("graphs", "sparse"),
    [(ALIKE, True), (list(ODD.values()), False)],
    ids=["alike and sparse", "odd and dense"],
)
@pytest.mark.parametrize("method", [*ROWS.values(), *VARIANTS.values()], ids=[*ROWS, *VARIANTS])
def test_a_block_of_clients_is_each_of_them_alone(method, graphs, sparse, caplog):
    network = dataclasses.replace(method.network, dropout=0.5, activation="elu")
    method = dataclasses.replace(method, network=network, rounds=3)
    agree(method, federation(graphs, sparse=sparse), caplog)


TOGETHER = {
    "flatland": FlatLand(LorentzGCN((6,)), personal_proximal=0.1),
    "fedpub": FedPub(MaskedGCN((6,)), sparsity=1e-3, proximal=0.1),
    "fedgta": FedGta(GCN((6,)), threshold=0.9),
    "gcfl": Gcfl(GCN((6,))),
    "gcfl+": Gcfl(GCN((6,)), affinity=GradientNorms(window=2), warmup=0),
    "fedgnn": FedGnn(ExpandedGCN((6,), bits=2), clip=0.02, pseudo=3),
    "fedsage+": FedSagePlus(
        GCN((6,)), generator=NeighbourGenerator(4, most=2, rounds=2, epochs=15, class_weight=0.0)
    ),
}


@pytest.mark.parametrize("engine", [Batched(), Graphed()], ids=["batched", "graphed"])
@pytest.mark.parametrize("name", TOGETHER)
def test_a_round_and_its_scores_are_computed_for_all_clients_at_once(name, engine, monkeypatch):
    data, method = federation(ALIKE), dataclasses.replace(TOGETHER[name], rounds=3)
    evaluation = Evaluation(fine_tuning=FineTune(1), metrics=("macro_f1",))
    plain = list(Trainer(Sequential(), evaluation=evaluation).run(method, data, Rng(3)))
    for alone in ("finish", "evaluate"):
        refusing = refuse_clients(getattr(GraphMethod, alone))
        replace_alone(monkeypatch, GraphMethod, alone, refusing)
    fast = list(Trainer(engine, evaluation=evaluation).run(method, data, Rng(3)))
    (found, _), (expected, _) = fast[-1], plain[-1]
    assert_near(found.server_state, expected.server_state, TOLERANCE)
    for i, client_state in expected.client_states.items():
        assert_near(found.client_states[i], client_state, TOLERANCE)
    for (_, new), (_, rows) in zip(fast, plain, strict=True):
        assert [row[:3] for row in new] == [row[:3] for row in rows]
        values = [row.value for row in rows]
        assert [row.value for row in new] == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("name", TOGETHER)
def test_buffers_and_captured_steps_serve_all_rounds(name, monkeypatch):
    """Nothing that changes between rounds is part of a captured step."""
    made, begin = [], StaticSteps.__init__

    def noted(self, method, wave, *given, **options):
        made.append(wave)
        begin(self, method, wave, *given, **options)

    monkeypatch.setattr(StaticSteps, "__init__", noted)
    method = dataclasses.replace(TOGETHER[name], rounds=4)
    counts = [len(made) for _ in Trainer(Graphed()).run(method, federation(ALIKE), Rng(3))]
    assert counts[-1] == counts[-3] > 0


def refuse_clients(function):
    """The function for the server's test set alone; clients are refused."""

    def refusing(self, given, client, *others):
        assert client.id == HOLDOUT, "a client was taken by itself"
        return function(self, given, client, *others)

    return refusing


def on(network, **settings):
    """FlatLand, or FedAvg for a network without time coordinates."""
    sharing = {"*": "shared"} if isinstance(network, GCN) else SHARING
    return FlatLand(network, sharing=sharing, **settings)


@pytest.mark.parametrize("network", [GCN((6,)), LorentzGCN((6,))])
def test_cohorts_small_batches_and_fine_tuning_are_the_same(network, caplog):
    method = on(network, rounds=4, proximal=0.1, local=LocalTraining(2, batch_size=2))
    settings = {"cohort": Cohort(0.5), "evaluation": Evaluation(fine_tuning=FineTune(1))}
    agree(method, federation(ALIKE), caplog, **settings)


@pytest.mark.processes
def test_worker_processes_give_the_same():
    data = federation(ALIKE, sparse=True)
    method = on(LorentzGCN((4,)), rounds=2, proximal=0.1)
    ends = [list(Trainer(e).run(method, data, Rng(3)))[-1] for e in (Sequential(), Workers(2))]
    (plain, rows), (spread, new) = ends
    assert_near(spread.server_state, plain.server_state, TOLERANCE)
    for i, client_state in plain.client_states.items():
        assert_near(spread.client_states[i], client_state, TOLERANCE)
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=TOLERANCE)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_engines_are_timed_on_graphs_and_the_chosen_one_gives_the_same(batch_size, monkeypatch):
    monkeypatch.setattr(trying, "TRIALS", 1)
    monkeypatch.setattr(trying, "SHARE", float("inf"))
    data = federation(ALIKE, sparse=True)
    method = FlatLand(LorentzGCN((4,)), rounds=2, local=LocalTraining(2, batch_size))
    auto = Auto((Sequential(), Batched()))
    state = Trainer(auto).begin(method, data, Rng(3))
    _, seconds = Trainer(auto).settle(method, data, Rng(3), state)
    assert len(seconds) == 2
    assert all(0 < s < float("inf") for s in seconds.values())
    found, plain = (
        list(Trainer(engine).run(method, data, Rng(3), state))[-1][0]
        for engine in (auto, Sequential())
    )
    assert_near(found.server_state, plain.server_state, TOLERANCE)


def test_every_client_of_a_block_has_its_own_curvature(caplog):
    data = federation(ALIKE)
    method = FlatLand(LorentzGCN((6,)), rounds=2, curvature_rate=5.0)
    *_, (state, _) = Trainer(Batched()).run(method, data, Rng(3))
    raws = {
        float(client_state["parameters"]["curvature.raw"])
        for client_state in state.client_states.values()
    }
    assert len(raws) == len(data.clients)


@dataclass(frozen=True)
class OwnScores(GraphMethod):
    """An heir that is scored in its own way, under the ``evaluate`` of its base."""

    def scores(self, local, client, context):
        return {f"twice/{n}": 2 * x for n, x in super().scores(local, client, context).items()}


@dataclass(frozen=True)
class OwnPredictions(GraphMethod):
    """An heir that predicts the class after the one of its base, as its fine-tuning shows."""

    def predict(self, model, local, batch, context):
        return super().predict(model, local, batch, context).roll(1, dims=-1)


@dataclass(frozen=True)
class OwnPenalty(GraphMethod):
    """An heir whose penalty mixes all numbers of a gradient."""

    def regularised(self, gradients, parameters, context):
        return {name: g / (1 + g.norm()) for name, g in gradients.items()}


@dataclass(frozen=True)
class Normed(SGD):
    """Descent by steps of length ``lr``, which mix all numbers of a gradient."""

    def step(self, parameters, gradients, state, **settings):
        return super().step(
            parameters, {n: g / (1 + g.norm()) for n, g in gradients.items()}, state, **settings
        )


HEIRS = {
    "scores": OwnScores(GCN((6,))),
    "predict": OwnPredictions(GCN((6,))),
    "regularised": OwnPenalty(GCN((6,)), optimizer=SGD()),
    "optimiser": GraphMethod(GCN((6,)), optimizer=Normed()),
    "optimiser of FlatLand": FlatLand(LorentzGCN((6,)), optimizer=Normed()),
    "optimiser of GCFL+": Gcfl(
        GCN((6,)), optimizer=Normed(), affinity=GradientNorms(window=2), warmup=0
    ),
}


@pytest.mark.parametrize("engine", [Batched(), Graphed()], ids=["batched", "graphed"])
@pytest.mark.parametrize("method", HEIRS.values(), ids=HEIRS)
def test_an_heir_that_overrides_what_a_form_relies_on_is_computed_as_it_says(method, engine):
    method, data = dataclasses.replace(method, rounds=2), federation(ALIKE)
    evaluation = Evaluation(fine_tuning=FineTune(1))
    plain, fast = (
        list(Trainer(e, evaluation=evaluation).run(method, data, Rng(3)))
        for e in (Sequential(), engine)
    )
    assert_near(fast[-1][0].server_state, plain[-1][0].server_state, TOLERANCE)
    for (_, new), (_, rows) in zip(fast, plain, strict=True):
        assert [row[:3] for row in new] == [row[:3] for row in rows]
        values = [row.value for row in rows]
        assert [row.value for row in new] == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE)


def dense(matrix):
    full = torch.zeros(len(matrix.start) - 1, matrix.width, dtype=matrix.value.dtype)
    for row, (start, end) in enumerate(itertools.pairwise(matrix.start.tolist())):
        own = slice(start, end)
        full[row].index_add_(0, matrix.column[own], matrix.value[own])
    return full


def test_a_block_has_its_clients_along_the_diagonal():
    graphs = tuple(graph_of(pairs, n, seed=n, sparse=True) for pairs, n in ALIKE)
    joint, n, width = graph_block(graphs), 9, 5
    for of in ("features", "neighbours", "symmetric"):
        k = width if of == "features" else n
        expected = torch.zeros(4 * n, 4 * k, dtype=torch.float64)
        for i, graph in enumerate(graphs):
            alone = dense(getattr(graph_block((graph,)), of))
            expected[i * n : i * n + alone.shape[0], i * k : i * k + alone.shape[1]] = alone
        assert torch.equal(dense(getattr(joint, of)), expected)
        assert torch.equal(dense(getattr(joint, of).transposed), expected.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sparse_product_and_its_way_back_are_the_dense_ones(dtype):
    generator = torch.Generator().manual_seed(0)
    full = torch.rand(7, 5, generator=generator, dtype=dtype)
    full = torch.where(torch.rand(7, 5, generator=generator) < 0.4, full, 0.0)
    row, column = full.nonzero().T
    counts = torch.bincount(row, minlength=7)
    matrix = Sparse.of(counts, column, full[row, column], 5)
    x = torch.rand(5, 3, generator=generator, dtype=dtype, requires_grad=True)
    torch.testing.assert_close(matrix.times(x), full @ x)
    grad = torch.rand(7, 3, generator=generator, dtype=dtype)
    found = torch.autograd.grad(matrix.times(x), x, grad)[0]
    torch.testing.assert_close(found, full.T @ grad)


def test_very_unequal_clients_are_not_filled_up_to_the_largest(monkeypatch):
    shapes = []
    forward = LorentzGCN((4,)).build(federation().meta).__class__.forward

    def noted(network, joint):
        shapes.append(joint.shape)
        return forward(network, joint)

    monkeypatch.setattr("flatland.graphs.model.LorentzNetwork.forward", noted)
    data = federation([(path(20), 20), (path(19), 19), (path(3), 3), (path(3), 3)])
    method = FlatLand(LorentzGCN((4,), dropout=0.0), rounds=1, curvature=Constant())
    list(Trainer(Batched()).run(method, data, Rng(0)))
    assert {(2, 20), (2, 3)} <= set(shapes)
    assert (4, 20) not in shapes


def test_a_graph_that_nobody_holds_is_forgotten():
    graph = graph_of(path(3), 3)
    block = weakref.ref(graph_block((graph,)))
    assert graph_block((graph,)) is block()
    del graph
    assert block() is None


def test_what_is_derived_from_a_graph_is_not_stored_with_it():
    graph = graph_of(path(3), 3)
    graph_block((graph,))
    other = graph.to("cpu", torch.float16)
    loaded = pickle.loads(pickle.dumps(graph))
    assert {"features", "edges", "labels"} <= vars(loaded).keys() < vars(graph).keys()
    assert not [name for name in vars(loaded) if name.startswith("_")]
    assert other is graph.to("cpu", torch.float16)


@pytest.mark.parametrize("network", [GCN((4, 4)), LorentzGCN((4, 4))])
def test_nothing_is_left_of_an_exchange(network):
    def live():
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    data, method = federation(ALIKE), on(network, rounds=1)
    server_state = method.init(data.meta, Rng(0))
    messages = {client.id: method.broadcast(server_state, client.id) for client in data.clients}
    counts = []
    gc.collect()
    gc.freeze()  # what earlier tests left is neither searched nor counted
    for _ in range(4):
        list(Batched().run(Exchange(method, messages, data.clients, {}, Rng(0))))
        counts.append(live())
    assert max(counts[1:]) == counts[1]
