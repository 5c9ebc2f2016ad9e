"""APFL against Algorithm 1 of Deng et al. (2020), written with plain networks."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import Apfl, FedAvg
from fedbolic.nn.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    average,
    batches,
    federation,
    plain_network,
    train,
)

METHOD = Apfl(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.3, mixing=0.4)
SIZES = (7, 4, 12, 5)


def start(data):
    parameters = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    return {name: value.double() for name, value in parameters.items()}


def mixture(alpha, v, w):
    return {n: alpha * v[n] + (1 - alpha) * w[n] for n in w}


def gradients(parameters, x, y):
    network = plain_network(parameters)
    cross_entropy(network(x), y).backward()
    return {n: p.grad for n, p in network.named_parameters()}


def local_training(w, v, alpha, client, round, adaptive):
    """The local lines of the box, with the chain rule of the mixture by hand."""
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        of_common, of_mixture = gradients(w, x, y), gradients(mixture(alpha, v, w), x, y)
        slope = sum(((v[n] - w[n]) * of_mixture[n]).sum() for n in w).item()
        w, v = (
            {n: w[n] - METHOD.lr * of_common[n] for n in w},
            {n: v[n] - METHOD.lr * alpha * of_mixture[n] for n in w},
        )
        alpha = min(1.0, max(0.0, alpha - METHOD.lr * slope)) if adaptive else alpha
    return w, v, alpha


def box(data, cohorts, method):
    w, own = start(data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            v, alpha = own.get(i, (w, method.mixing))
            end, v, alpha = local_training(w, v, alpha, data.clients[i], r, method.adaptive)
            ends.append(end)
            own[i] = v, alpha
        w = average(ends, [1.0] * len(ends))
    return w, own


def accuracy(parameters, client):
    hits = plain_network(parameters)(client.test.tensors["x"]).argmax(1)
    return float((hits == client.test.tensors["y"]).double().mean())


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_and_scores_are_those_of_the_box(rate, adaptive):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, adaptive=adaptive)
    states, rows = train(method, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    w, own = box(data, cohorts, method)
    assert_near(states[-1].server_state["parameters"], w, 1e-12)
    scores = {(row.client, row.name): row.value for row in rows if row.round == 4}
    assert scores[None, "holdout/accuracy"] == accuracy(w, data.holdout)
    for client in data.clients:
        v, alpha = own.get(client.id, (w, method.mixing))
        assert scores[client.id, "test/accuracy"] == accuracy(mixture(alpha, v, w), client)
        if client.id in own:
            kept = states[-1].client_states[client.id]
            assert_near(kept["local_parameters"], v, 1e-12)
            assert adaptive == ("mixing" in kept)
            if adaptive:
                assert_near(kept["mixing"], torch.tensor([alpha]).double(), 1e-7)


@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
def test_the_common_part_is_fedavg_whatever_the_mixture(mixing, backbone):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, mixing=mixing, backbone=backbone)
    fedavg = FedAvg(backbone, METHOD.rounds, METHOD.local, METHOD.lr, weights="uniform")
    ours, theirs = (train(m, data)[0][-1].server_state for m in (method, fedavg))
    for kind in ("parameters", "buffers"):
        assert_same(ours[kind], theirs[kind])


def test_a_mixture_of_the_local_model_alone_is_trained_in_isolation():
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, mixing=1.0, adaptive=False, backbone=NormNet())
    alone = FedAvg(
        method.backbone, method.rounds, method.local, method.lr, sharing={"*": "personal"}
    )
    ours, theirs = (train(m, data)[0][-1].client_states for m in (method, alone))
    for i in range(len(SIZES)):
        for kind in ("parameters", "buffers"):
            assert_near(ours[i][f"local_{kind}"], theirs[i][kind], 1e-12)


@pytest.mark.parametrize("changes", [{"mixing": -0.1}, {"mixing": 1.1}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
