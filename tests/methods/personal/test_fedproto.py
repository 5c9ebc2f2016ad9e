"""Limits and refusals of FedProto, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest
import torch

from fedbolic.data import Examples, FederatedData
from fedbolic.federated import Batched, Graphed, LocalTraining, Sequential, Trainer
from fedbolic.federated.batched import stacked_batches
from fedbolic.methods import FedAvg, FedProto
from fedbolic.methods.personal.fedproto import UNKNOWN_DISTANCE
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from fedbolic.testing import check_engine
from tests.conformance.fedproto import skewed
from tests.federated.agreement import replace_alone
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    federation,
    train,
)

METHOD = FedProto(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, prototype_weight=2.0)
SIZES = (7, 4, 12, 5)


def test_only_prototypes_and_the_known_classes_leave_a_client():
    data = federation(SIZES)
    message = METHOD.broadcast(METHOD.init(data.meta, RNG), 0)
    update, _ = METHOD.local_update(message, data.clients[0], {}, RNG)
    assert update.payload.keys() == {"prototypes", "known"}
    assert update.weight == 1


UNEQUAL = (9, 1, 30, 3, 1, 20)


def without_examples(data, client_id):
    """The federation in which one client has no training examples."""
    client = data.clients[client_id]
    none = Examples(client.train.at(torch.arange(0)))
    changed = dataclasses.replace(client, train=none)
    clients = (*data.clients[:client_id], changed, *data.clients[client_id + 1 :])
    return FederatedData(clients, data.meta, data.holdout)


FEDERATIONS = {
    "unequal": lambda: federation(UNEQUAL),
    "skewed": skewed,
    "without examples": lambda: without_examples(federation(SIZES), 2),
}


def refuse(*arguments):
    raise AssertionError("a client was finished alone")


@pytest.mark.parametrize("chunk", [1024, 5])
@pytest.mark.parametrize("make", FEDERATIONS.values(), ids=FEDERATIONS)
@pytest.mark.parametrize("engine", [Batched(), Graphed()], ids=["batched", "graphed"])
def test_prototypes_of_all_clients_are_computed_at_once(engine, make, chunk, monkeypatch):
    data, method = make(), dataclasses.replace(METHOD, optimizer=SGD(0.9))
    plain = list(Trainer(Sequential()).run(method, data, RNG))
    replace_alone(monkeypatch, FedProto, "finish", refuse)
    monkeypatch.setattr(stacked_batches, "CHUNK", chunk)
    fast = list(Trainer(engine).run(method, data, RNG))
    (found, _), (expected, _) = fast[-1], plain[-1]
    assert_near(found.server_state, expected.server_state, 1e-12)
    for i, client_state in expected.client_states.items():
        assert_near(found.client_states[i], client_state, 1e-12)
    for (_, new), (_, rows) in zip(fast, plain, strict=True):
        assert [row[:3] for row in new] == [row[:3] for row in rows]
        assert [row.value for row in new] == pytest.approx([row.value for row in rows], rel=1e-9)


def test_features_that_depend_on_the_batch_are_computed_client_by_client():
    data, method = federation(SIZES), dataclasses.replace(METHOD, backbone=NormNet())
    check_engine(Batched(), method, data, tolerance=1e-12)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9)])
def test_without_the_term_it_is_local_training(optimizer):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, prototype_weight=0.0, optimizer=optimizer)
    alone = FedAvg(
        METHOD.backbone, METHOD.rounds, METHOD.local, METHOD.lr,
        optimizer=optimizer, sharing={"*": "personal"},
    )  # fmt: skip
    ours, theirs = (train(m, data)[0][-1].client_states for m in (method, alone))
    for i in range(len(SIZES)):
        assert_same(ours[i]["parameters"], theirs[i]["parameters"])


def test_a_class_without_a_prototype_is_predicted_last():
    data = federation(SIZES)
    state = METHOD.init(data.meta, RNG)
    state = {**state, "known": torch.tensor([1, 0, 1]), "prototypes": torch.zeros(3, 4).double()}
    client = data.clients[0]
    local, context = METHOD.start(METHOD.broadcast(state, 0), client, {})
    logits = METHOD.predict(METHOD.model(data.meta), local, client.train.all(), context)
    assert (logits[:, 1] == -UNKNOWN_DISTANCE).all()
    assert (logits.argmax(dim=1) != 1).all()


@pytest.mark.parametrize(
    "changes", [{"prototype_weight": -1.0}, {"prediction": "nearest"}, {"lr": 0.0}]
)
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(Exception, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
