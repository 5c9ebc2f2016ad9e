"""FedProto against Algorithm 1 of Tan et al. (2022), written with plain networks."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from fedbolic.data import Examples, FederatedData
from fedbolic.federated import Batched, Cohort, Graphed, LocalTraining, Sequential, Trainer
from fedbolic.federated.engines import stacked_batches
from fedbolic.methods import FedAvg, FedProto
from fedbolic.methods.fedproto import UNKNOWN_DISTANCE
from fedbolic.nn.backbone import MLP
from fedbolic.optim import SGD
from fedbolic.testing import check_engine
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    batches,
    federation,
    plain_network,
    train,
    values,
)

METHOD = FedProto(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, prototype_weight=2.0)
SIZES = (7, 4, 12, 5)


def skewed_federation():
    """Client 0 has class 2 only, and class 2 is nowhere else; clients 1 and 2 share 0 and 1."""
    data = federation(SIZES)
    for client in data.clients:
        labels = client.train.tensors["y"]
        labels.copy_(torch.arange(len(labels)) % 2 if client.id else torch.tensor(2))
    return data


def initial_network(data):
    seed = RNG.at("init").at("model").number()
    parameters, _ = FedAvg(METHOD.backbone).model(data.meta).init(seed)
    return plain_network({name: value.double() for name, value in parameters.items()})


def local_training(network, prototypes, client, round):
    """``LocalUpdate`` of the box: the prototypes of the client's classes."""
    descent = torch.optim.SGD(network.parameters(), lr=METHOD.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        z = network.body(x)
        target = z.detach().clone()
        for i, label in enumerate(y.tolist()):
            target[i] = prototypes.get(label, target[i])
        loss = cross_entropy(network.head(z), y) + METHOD.prototype_weight * mse_loss(z, target)
        descent.zero_grad()
        loss.backward()
        descent.step()
    x, y = client.train.tensors["x"], client.train.tensors["y"]
    z = network.body(x).detach()
    return {c: z[y == c].mean(dim=0) for c in set(y.tolist())}


def box(data, cohorts):
    prototypes, networks = {}, {client.id: initial_network(data) for client in data.clients}
    for r, cohort in enumerate(cohorts, 1):
        found = [local_training(networks[i], prototypes, data.clients[i], r) for i in cohort]
        for c in set().union(*found):
            of_class = [of_client[c] for of_client in found if c in of_client]
            prototypes = {**prototypes, c: torch.stack(of_class).mean(dim=0)}
    return prototypes, networks


def accuracy(network, prototypes, client, prediction):
    x, y = client.test.tensors["x"], client.test.tensors["y"]
    with torch.no_grad():
        z, logits = network.body(x), network(x)
    if prediction == "prototypes":
        far = torch.full((len(x),), torch.inf).double()
        distances = [(z - prototypes[c]).norm(dim=1) if c in prototypes else far for c in range(3)]
        logits = -torch.stack(distances, dim=1)
    return float((logits.argmax(1) == y).double().mean())


@pytest.mark.parametrize("make", [lambda: federation(SIZES), skewed_federation])
@pytest.mark.parametrize("prediction", ["prototypes", "head"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_and_scores_are_those_of_the_box(rate, prediction, make):
    data = make()
    method = dataclasses.replace(METHOD, prediction=prediction)
    states, rows = train(method, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    prototypes, networks = box(data, cohorts)
    state = states[-1].server_state
    assert state["known"].tolist() == [int(c in prototypes) for c in range(3)]
    for c, prototype in prototypes.items():
        assert_near({"p": state["prototypes"][c]}, {"p": prototype}, 1e-12)
    scores = {row.client: row.value for row in rows[-40:] if row.name == "test/accuracy"}
    for client in data.clients:
        network = networks[client.id]
        assert scores[client.id] == accuracy(network, prototypes, client, prediction)
        if client.id in set().union(*cohorts):
            kept = states[-1].client_states[client.id]["parameters"]
            assert_near(kept, values(network), 1e-12)
    assert not any(row.name.startswith("holdout/") for row in rows)


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
    "skewed": skewed_federation,
    "without examples": lambda: without_examples(federation(SIZES), 2),
}


@pytest.mark.parametrize("chunk", [1024, 5])
@pytest.mark.parametrize("make", FEDERATIONS.values(), ids=FEDERATIONS)
@pytest.mark.parametrize("engine", [Batched(), Graphed()], ids=["batched", "graphed"])
def test_prototypes_of_all_clients_are_computed_at_once(engine, make, chunk, monkeypatch):
    data, method = make(), dataclasses.replace(METHOD, optimizer=SGD(0.9))
    plain = list(Trainer(Sequential()).run(method, data, RNG))
    monkeypatch.setattr(FedProto, "finish", None)
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
