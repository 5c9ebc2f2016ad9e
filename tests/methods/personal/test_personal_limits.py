"""Limits and refusals of FedALA, FedAMP, FedCP, FedDBE, FedPAC, GPFL and Per-FedAvg."""

import contextlib
import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Clip, Evaluation, FineTune, LocalTraining
from fedbolic.methods import GPFL, FedALA, FedAMP, FedAvg, FedCP, FedDBE, FedPAC, PerFedAvg
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import initial
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    federation,
    plain_network,
    rows_of,
    train,
)

COMMON = {"backbone": MLP((4,)), "rounds": 2, "local": LocalTraining(2, 3), "lr": 0.2}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (FedALA, {"share_lr": 0.0}),
        (FedALA, {"share_steps": 1.0}),
        (FedAMP, {"alpha": 0.0}),
        (FedAMP, {"sigma": -1.0}),
        (FedAMP, {"coupling": -0.1}),
        (FedCP, {"discrepancy": -1.0}),
        (FedDBE, {"penalty": -1.0}),
        (FedDBE, {"momentum": 0.0}),
        (FedDBE, {"momentum": 1.5}),
        (FedPAC, {"alignment": -1.0}),
        (FedPAC, {"head_share": 0.0}),
        (GPFL, {"magnitude_weight": -1.0}),
        (GPFL, {"decay": -1.0}),
        (PerFedAvg, {"personal_lr": 0.0}),
    ],
)
def test_values_outside_their_range_are_refused(kind, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        kind(**changes)


def test_shares_are_clipped_to_the_unit_interval():
    method = FedALA(**COMMON, share_lr=1e6)
    state = train(method, federation())[0][-1]
    shares = torch.cat([x.flatten() for x in state.client_states[0]["shares"].values()])
    assert {0.0, 1.0} == set(shares.tolist())


def test_without_coupling_fedamp_is_local_training():
    alone = FedAvg(**COMMON, sharing={"*": "personal"})
    near, local = (
        train(m, federation())[0][-1].client_states for m in (FedAMP(**COMMON, coupling=0.0), alone)
    )
    for i, kept in local.items():
        assert_near(near[i]["parameters"], kept["parameters"], 1e-12)


@pytest.mark.parametrize(("sigma", "drawn"), [(1e-9, False), (1.0, True)])
def test_models_far_apart_are_not_drawn_together(sigma, drawn):
    """Of all models, each client receives a mean, which is its own model if no other is near."""
    method = FedAMP(**COMMON, sigma=sigma, alpha=sigma / 10, coupling=sigma / 10)
    state = train(method, federation())[0][-1].server_state
    for name, mean in method.broadcast(state, 0)["mean"].items():
        gap = float((mean - state["models"][name][0]).norm())
        assert gap > 1e-6 if drawn else gap < 1e-12


@pytest.mark.parametrize(
    ("clients", "sigma", "refused"), [(11, 1.0, False), (12, 1.0, True), (8, 0.7, False)]
)
def test_fedamp_refuses_a_step_for_which_equal_models_have_negative_weights(
    clients, sigma, refused
):
    """All models are equal at the start, where attraction is largest: alpha / sigma for each."""
    meta = dataclasses.replace(federation().meta, num_clients=clients)
    with pytest.raises(ValueError, match="alpha") if refused else contextlib.nullcontext():
        FedAMP(**COMMON, alpha=0.1, sigma=sigma).init(meta, RNG)


def test_a_model_that_was_clipped_on_its_way_is_whole_after_the_next_turn():
    """The server then replaces the model that it knows instead of adding to it."""
    first = train(FedAMP(**COMMON), federation(), channels=(Clip(1e-3),))[0][0]
    last = train(FedAMP(**COMMON), federation(), state=first)[0][-1]
    for i, kept in last.client_states.items():
        known = {n: x[i] for n, x in last.server_state["models"].items()}
        assert_near(known, kept["parameters"], 1e-12)


def test_the_number_of_steps_of_batch_norm_is_that_of_every_client():
    """With these sizes, the clients' shares of the examples sum to a little less than 1."""
    method = FedPAC(NormNet(), rounds=1, local=LocalTraining(5, None))
    state = train(method, federation((3, 3, 5)))[0][-1].server_state
    assert int(state["buffers"]["body.2.num_batches_tracked"]) == 5


@pytest.mark.parametrize(
    ("counts", "fault"), [([0, 0, 0], "no examples"), ([2**31, 0, 0], "1e+09")]
)
def test_impossible_counts_of_fedpac_are_refused(counts, fault):
    method, data = FedPAC(**COMMON), federation(dtype=torch.float32)
    message = method.broadcast(method.init(data.meta, RNG), 0)
    update, _ = method.local_update(message, data.clients[0], {}, RNG)
    payload = {**update.payload, "counts": torch.tensor(counts)}
    assert method.find_fault(message, update.payload, math.inf) is None
    assert fault in (method.find_fault(message, payload, math.inf) or "")


def test_the_first_round_of_feddbe_is_fedavg():
    found, expected = (
        train(dataclasses.replace(m, rounds=1), federation())[0][-1].server_state
        for m in (FedDBE(**COMMON), FedAvg(**COMMON))
    )
    assert_near(found["parameters"], expected["parameters"], 1e-12)


def test_the_personal_model_is_a_plain_step_from_the_common_one():
    """One batch a round is half a pair, so the common model stays the initial one."""
    data, whole = federation(), LocalTraining(1, None)
    method = PerFedAvg(MLP((4,)), rounds=1, local=whole, personal_lr=0.3)
    states, rows = train(method, data, evaluation=Evaluation(fine_tuning=FineTune(epochs=1)))
    start = initial(method, data)
    assert_near(states[-1].server_state["parameters"], start, 0.0)
    for client in data.clients:
        network = plain_network(start)
        descent = torch.optim.SGD(network.parameters(), lr=0.3)
        cross_entropy(network(client.train.tensors["x"]), client.train.tensors["y"]).backward()
        descent.step()
        loss = cross_entropy(network(client.test.tensors["x"]), client.test.tensors["y"])
        (scored,) = rows_of(rows, "fine_tuned/loss", client=client.id)
        assert scored == pytest.approx(loss.item(), rel=1e-12)
