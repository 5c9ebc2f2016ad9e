"""Exchanges and mended graphs of FedSage+, whose algorithm is in ``tests/conformance``."""

import dataclasses
import logging

import pytest
import torch
from torch.testing import assert_close

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import Client
from fedbolic.federated import Batched, Cohort, Sequential, Trainer
from fedbolic.optim import Adam
from flatland import GCN, FedSagePlus, FlatLand, NeighbourGenerator
from flatland.rivals.mending import mend, neighbours_of
from flatland.rivals.neighbour_exchanges import CrossGradients, GeneratorTraining
from tests.federated.simple_method import assert_near
from tests.federated.simple_method import federation as vectors
from tests.flatland.cases import ODD, federation, graph_of
from tests.flatland.test_joint import ALIKE, TOLERANCE

NET = GCN((6, 4), dropout=0.0)
GENERATOR = NeighbourGenerator(4, most=2, rounds=3, num_codes=5, hidden_share=0.4, epochs=1, lr=0.1)
METHOD = FedSagePlus(NET, rounds=3, generator=GENERATOR)
LONGER = dataclasses.replace(
    METHOD, generator=dataclasses.replace(GENERATOR, rounds=2, epochs=15, class_weight=0.0)
)
"""A method whose clients are sure to generate neighbours."""

RNG = Rng(7)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_graph_is_mended_with_the_rounded_number_of_neighbours():
    counts = torch.tensor([0.4, 0.6, 9.0], dtype=torch.float64)
    generated = random(3, 2, 5)
    features, owner = neighbours_of(counts, generated)
    assert owner.tolist() == [1, 2, 2]
    assert_close(features, generated[[1, 2, 2], [0, 0, 1]])
    graph = graph_of([(0, 1)], 3, sparse=True)
    found = mend(graph, features, owner)
    assert_close(found.features, torch.cat((graph.features.to_dense(), features)))
    edges = {(0, 1), (1, 3), (2, 4), (2, 5)}
    assert set(zip(*found.edges.tolist(), strict=True)) == edges | {(b, a) for a, b in edges}


def stages(method, data):
    """Server states, phases and results of the exchanges before the first round."""
    server_state = tree.to(method.init(data.meta, RNG), "cpu", torch.float64)
    states, log = {}, []
    while (phase := method.phase(server_state)) is not method:
        results = {}
        for client in data.clients:
            message = phase.broadcast(server_state, client.id)
            stream = RNG.at(server_state["stage"], client.id)
            results[client.id] = phase.local_update(
                message, client, states.get(client.id, {}), stream
            )
        log.append((server_state, phase, dict(states), results))
        states = {i: kept for i, (_, kept) in results.items()}
        total = phase.aggregator.aggregate([(i, update) for i, (update, _) in results.items()])
        server_state = phase.server_update(server_state, total)
    return log, server_state, states


def test_exchanges_alternate_and_what_they_send_is_declared():
    data = federation(ALIKE)
    log, end, states = stages(METHOD, data)
    assert [type(phase) for _, phase, _, _ in log] == [
        *(GeneratorTraining, CrossGradients) * 2,
        GeneratorTraining,
    ]
    assert METHOD.num_stages == len(log) == end["stage"]
    assert all(set(kept) == {"neighbours"} for kept in states.values())
    for server_state, phase, _, results in log:
        template = phase.template(phase.broadcast(server_state, 0))
        for update, _ in results.values():
            if template is not None:
                assert tree.signature(update.payload) == tree.signature(template)
    assert all(update.payload == {} for update, _ in log[-1][3].values())


def test_alone_a_generator_sends_nothing():
    method = dataclasses.replace(METHOD, generator=dataclasses.replace(GENERATOR, cross_weight=0.0))
    log, _, _ = stages(method, federation(ALIKE))
    assert len(log) == 3
    assert all(update.payload == {} for *_, results in log for update, _ in results.values())


def test_without_generator_rounds_it_is_fedavg():
    data = federation(ALIKE)
    ours = dataclasses.replace(METHOD, generator=dataclasses.replace(GENERATOR, rounds=0))
    theirs = FlatLand(NET, rounds=3, sharing={"*": "shared"})
    ends = [
        list(Trainer(Sequential()).run(m, data, Rng(3)))[-1][0].server_state for m in (ours, theirs)
    ]
    assert_close(ends[0]["parameters"], ends[1]["parameters"])


@pytest.mark.parametrize(
    ("graphs", "sparse"),
    [(ALIKE, True), (list(ODD.values()), False)],
    ids=["alike and sparse", "odd and dense"],
)
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, caplog):
    method = dataclasses.replace(LONGER, network=dataclasses.replace(NET, dropout=0.5))
    data, ends = federation(graphs, sparse=sparse), []
    with caplog.at_level(logging.INFO, "fedbolic"):
        for engine in (Sequential(), Batched()):
            trainer = Trainer(engine, cohort=Cohort(0.6))
            exchanges = list(trainer.run(method, data, Rng(3)))
            ends.append((exchanges[-1][0], [row for _, new in exchanges for row in new]))
    assert "FedSagePlus are run one by one" not in caplog.text
    (plain, rows), (fast, new) = ends
    assert_near(fast.server_state, plain.server_state, TOLERANCE)
    for i, kept in plain.client_states.items():
        assert_near(fast.client_states[i], kept, TOLERANCE)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=TOLERANCE)


def test_examples_without_a_graph_are_refused():
    client = vectors().clients[0]
    assert isinstance(client, Client)
    phase = GeneratorTraining(GENERATOR, NET, Adam(), is_last=False)
    with pytest.raises(ValueError, match="learns from GraphSplit"):
        phase.local_update({"seed": 0, "gradients": {}}, client, {}, RNG)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"width": 0},
            {"most": 0},
            {"rounds": -1},
            {"epochs": 0},
            {"lr": 0.0},
            {"hidden_share": 1.0},
        ),
        *({"count_weight": -1.0}, {"cross_weight": -1.0}, {"num_codes": 0}),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NeighbourGenerator(**wrong)
