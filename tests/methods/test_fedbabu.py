"""FedBABU and FedBN as sharing tables, against their descriptions with plain networks."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Evaluation, FineTune, LocalTraining
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    average,
    federation,
    plain_network,
    train,
)

LOCAL = LocalTraining(2, None)  # whole batches, whose order does not matter
FEDBABU = FedAvg(
    MLP((4,)), rounds=3, local=LOCAL, lr=0.2,
    sharing={"head.*": "fixed", "*": "shared"}, fine_tune_fixed=True,
)  # fmt: skip


def descend(network, values, client, steps, lr):
    """Gradient steps on all examples of a client, for some of the network's parameters."""
    descent = torch.optim.SGD(values, lr=lr)
    x, y = client.train.tensors["x"], client.train.tensors["y"]
    for _ in range(steps):
        descent.zero_grad()
        cross_entropy(network(x), y).backward()
        descent.step()
    return {n: v.detach().clone() for n, v in network.state_dict().items()}


def test_fedbabu_trains_the_body_and_fine_tunes_the_whole_network():
    data = federation()
    states, rows = train(FEDBABU, data, RNG, evaluation=Evaluation(fine_tuning=FineTune(4, 0.3)))
    theta, _ = FEDBABU.model(data.meta).init(RNG.at("init").at("model").number())
    theta = {n: v.double() for n, v in theta.items()}
    for _ in range(FEDBABU.rounds):
        ends = []
        for client in data.clients:
            network = plain_network(theta)
            ends.append(descend(network, network.body.parameters(), client, 2, FEDBABU.lr))
        theta = average(ends, data.sizes)
    body = {n: v for n, v in theta.items() if n.startswith("body.")}
    assert_near(states[-1].server_state["parameters"], body, 1e-12)
    scores = {(row.client, row.name): row.value for row in rows if row.round == 3}
    for client in data.clients:
        network = plain_network(theta)
        descend(network, network.parameters(), client, 4, 0.3)
        x, y = client.test.tensors["x"], client.test.tensors["y"]
        loss = cross_entropy(network(x), y).item()
        assert scores[client.id, "fine_tuned/loss"] == pytest.approx(loss, rel=1e-6)


def test_fine_tuning_of_fixed_parameters_needs_some():
    with pytest.raises(ValueError, match="fine_tune_fixed has no effect"):
        FedAvg(fine_tune_fixed=True)


def test_fedbn_keeps_batch_norms_at_the_clients():
    data = federation((6, 9, 12))
    sharing = {"body.2.*": "personal", "*": "shared"}
    method = FedAvg(NormNet(), rounds=3, local=LOCAL, lr=0.2, sharing=sharing)
    states, _ = train(method, data, RNG)
    parameters, buffers = method.model(data.meta).init(RNG.at("init").at("model").number())
    initial = {n: v.double() if v.is_floating_point() else v for n, v in buffers.items()}
    theta = {n: v.double() for n, v in parameters.items()}
    norms = {client.id: {**theta, **initial} for client in data.clients}
    names = {n: n.startswith("body.2.") for n in {**theta, **initial}}
    for _ in range(method.rounds):
        ends = []
        for client in data.clients:
            norms[client.id] |= {n: v for n, v in theta.items() if not names[n]}
            network = plain_network(norms[client.id], norm=True)
            norms[client.id] = descend(network, network.parameters(), client, 2, method.lr)
            ends.append({n: norms[client.id][n] for n in theta})
        theta = average(ends, data.sizes)
    shared = {n: v for n, v in theta.items() if not names[n]}
    assert_near(states[-1].server_state["parameters"], shared, 1e-12)
    assert_same(states[-1].server_state["buffers"], {})
    for client in data.clients:
        kept = states[-1].client_states[client.id]
        own = {n: norms[client.id][n] for n, of_norm in names.items() if of_norm}
        assert_near({**kept["parameters"], **kept["buffers"]}, own, 1e-12)
