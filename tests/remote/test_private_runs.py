"""Private runs between machines: equal to the simulation, and nothing else leaves a node."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedbolic.federated import (
    AdaptiveClipping,
    ClientPrivacy,
    Cohort,
    DistributedNoise,
    Evaluation,
    FineTune,
    RunStoppedError,
    SumPrivacy,
    Trainer,
    TrainerState,
)
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.noise.integers import IntegerDraws
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import PrivateSteps
from fedbolic.nn.network.backbone import MLP
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.node import make_request
from tests.federated.simple_method import (
    RNG,
    SMALL,
    Averaged,
    assert_near,
    federation,
    rows_of,
    saved_and_loaded,
    train,
)
from tests.remote.transports import away, identified
from tests.seeded import SeededKeys

DATA = federation((7, 4, 12, 5, 9))
CENTRAL = ClientPrivacy(dp_delta=1e-2, noise_multiplier=1.0, clip_norm=0.1, noise=SeededKeys())
POISSON, ONCE = Cohort(0.6, sampling="poisson"), Cohort(0.4, sampling="once")
SUMS = SumPrivacy(
    4, 1e-2, noise_multiplier=2.0, clip_norm=0.1, bits=24, adaptive=AdaptiveClipping()
)
OTHER = "privacy/epsilon_without_sampling"


@pytest.mark.parametrize(
    ("cohort", "settings"),
    [
        (Cohort(), {}),
        (Cohort(), {"adaptive": AdaptiveClipping()}),
        (POISSON, {"adaptive": AdaptiveClipping()}),
        (Cohort(0.4), {}),
        (ONCE, {}),
        (ONCE, {"correlation": "tree"}),
        (Cohort(0.4, sampling="cyclic"), {"correlation": "banded"}),
    ],
    ids=["all", "adaptive", "poisson", "fixed", "once", "tree", "banded"],
)
def test_nodes_do_what_a_simulation_does(cohort, settings, tmp_path):
    """Server state and rows, the noise included, and one epsilon more where cohorts are samples."""
    privacy = dataclasses.replace(CENTRAL, **settings)
    (*_, plain), rows = train(SMALL, DATA, cohort=cohort, privacy=privacy)
    nodes, seen = away(SMALL, DATA, tmp_path, private=True)
    (*_, far), new = train(SMALL, seen, engine=nodes, cohort=cohort, privacy=privacy)
    assert_near(far.server_state, plain.server_state, 1e-12)
    assert far.privacy["clip_norm"] == pytest.approx(plain.privacy["clip_norm"], rel=1e-12)
    common = [row for row in new if row.name != OTHER]
    assert [row[:3] for row in common] == [row[:3] for row in rows]
    assert [row.value for row in common] == pytest.approx([row.value for row in rows], abs=1e-12)
    sampled = cohort.sampling == "poisson" or cohort == Cohort(0.4)
    assert len(rows_of(new, OTHER)) == (3 if sampled else 0)


@pytest.mark.parametrize(
    ("cohort", "neighbours"), [(POISSON, "add/remove"), (Cohort(0.4), "replace")]
)
def test_whoever_sees_the_cohort_gets_the_epsilon_of_all(cohort, neighbours, tmp_path, caplog):
    nodes, seen = away(SMALL, DATA, tmp_path, private=True)
    with caplog.at_level("INFO"):
        _, rows = train(SMALL, seen, engine=nodes, cohort=cohort, privacy=CENTRAL)
    ledger = PrivacyLedger("everyone", neighbours, 1.0, 1.0, 1e-2, 3)
    assert rows_of(rows, OTHER) == [ledger.epsilon(k) for k in (1, 2, 3)]
    assert rows_of(rows, "privacy/epsilon")[-1] < ledger.epsilon(3)
    (said,) = [text for text in caplog.messages if "whoever sees who takes part" in text]
    assert str(ledger) in said


def test_a_node_sends_its_payload_alone_and_no_scores(tmp_path):
    nodes, seen = away(SMALL, DATA, tmp_path, private=True, evaluation=Evaluation())
    train(SMALL, seen, engine=nodes, privacy=CENTRAL)
    assert {request["task"] for _, _, request in nodes.transport.requests} == {
        "handshake", "update"
    }  # fmt: skip
    node = nodes.transport.nodes[1000]
    reply = node.store.reply(node.store._load()["last"])
    assert reply.keys() == {"payload", "weight", "metrics", "name"}
    assert (reply["weight"], reply["metrics"]) == (1.0, {})
    state = Trainer().begin(SMALL, DATA, RNG).server_state
    message = SMALL.broadcast(state, 0)
    request = make_request(SMALL, message, {}, DATA.meta, RNG, task="scores")
    assert node.reply(request) == {"scores": {}}
    tuned = dataclasses.replace(node, evaluation=Evaluation(fine_tuning=FineTune()))
    request = make_request(SMALL, message, {}, DATA.meta, RNG, task="update")
    asked = {**request, "purpose": "fine_tuning", "phase": "FineTuningPhase"}
    assert tuned.reply(asked) == {"error": "ValueError"}
    assert "payload" in dataclasses.replace(tuned, private=False).reply(asked)


def test_a_node_that_is_lost_counts_as_an_update_of_zero(tmp_path):
    privacy = dataclasses.replace(CENTRAL, noise_multiplier=1e-9, clip_norm=1e6)
    method, ends = Averaged(rounds=1), []
    for lost in (set(), {("train", 999)}):
        nodes, seen = away(method, DATA, tmp_path / str(len(lost)), private=True)
        nodes.transport.lost = lost
        (*_, end), rows = train(method, seen, engine=nodes, privacy=privacy)
        ends.append(end.server_state["x"])
        assert rows_of(rows, "clients/asked") == [5.0]
        assert not rows_of(rows, "clients/failed")
    x = method.init(DATA.meta, RNG.at("init"))["x"].double()
    stream = RNG.at("round", 1, "exchange", 0, "client", 1)
    missing = DATA.clients[1].train.tensors["x"].mean(0) + torch.rand(
        (), generator=stream.generator()
    )
    torch.testing.assert_close(ends[0] - ends[1], (missing - x) / 5, rtol=0, atol=1e-2)


def test_a_resumed_run_of_nodes_has_the_noise_of_the_uninterrupted_one(tmp_path):
    nodes, seen = away(SMALL, DATA, tmp_path, private=True)
    trainer = Trainer(engine=nodes, cohort=POISSON, privacy=CENTRAL)
    whole = list(trainer.run(SMALL, seen, RNG))
    middle = TrainerState.restore(saved_and_loaded(whole[0][0].checkpoint()))
    again = list(trainer.run(SMALL, seen, RNG, middle))
    assert_near(again[-1][0].server_state, whole[-1][0].server_state, 0.0)


def test_fine_tuning_is_refused_here_too(tmp_path):
    nodes, seen = away(SMALL, DATA, tmp_path, private=True)
    evaluation = Evaluation(fine_tuning=FineTune())
    with pytest.raises(ValueError, match="does not cover fine_tuning"):
        Trainer(engine=nodes, privacy=CENTRAL, evaluation=evaluation).begin(SMALL, seen, RNG)


def test_noise_of_single_clients_is_refused_between_machines(tmp_path):
    nodes, seen = away(SMALL, DATA, tmp_path)
    privacy = dataclasses.replace(CENTRAL, placement="clients")
    with pytest.raises(ValueError, match=r"use DistributedNoise in a SecureSum.*all nodes trust"):
        Trainer(engine=nodes, privacy=privacy).begin(SMALL, seen, RNG)


def with_accounts(folder, unit, **budget):
    """Accounts of all clients, by id."""
    found = [PrivacyAccounts(folder, f"client{i}") for i in range(len(DATA.clients))]
    for each in found:
        each.create(unit, **budget)
    return found


def test_adaptive_sums_of_nodes_have_the_ledger_and_the_noise_of_a_simulation(
    tmp_path, monkeypatch
):
    """The noise of all parameters against that of five clients; bounds fail below 1e-9."""
    small = dataclasses.replace(SMALL, rounds=1, backbone=MLP((100,)))
    method = identified(SecureSum(DistributedNoise(small, SUMS), threshold=4), tmp_path, 5)
    folder = tmp_path / "accounts"
    accounts = with_accounts(folder, "client", epsilon=50.0, dp_delta=1e-1, neighbours="replace")
    nodes, seen = away(method, DATA, tmp_path / "far", accounts=folder)
    (*_, far), rows = train(method, seen, engine=nodes)
    (*_, here), plain = train(method, DATA)
    for name in ("privacy/epsilon", "privacy/clip_norm"):
        assert rows_of(rows, name) == rows_of(plain, name)
    (epsilon,) = rows_of(rows, "privacy/epsilon")
    assert {each.balance("client").epsilon for each in accounts} == {epsilon}
    monkeypatch.setattr(IntegerDraws, "gaussian", lambda _, v, n: np.zeros(n, np.int64))
    (*_, quiet), _ = train(method, DATA)
    ends = [parameters(end) for end in (far, here, quiet)]
    size = len(ends[0])
    lattice, _ = SUMS.plan(num_clients=5, size=size, rounds=1)
    std = lattice.granularity * math.sqrt(5 * lattice.variance) / 5
    low, high = stats.chi2(size).ppf([2e-10, 1 - 2e-10])
    for end in ends[:2]:
        assert 0.99 * low < float(((end - ends[2]) / std).square().sum()) < 1.01 * high
    assert not torch.equal(*ends[:2])


def parameters(state):
    """All parameters of a secure sum of noisy deltas as one vector."""
    values = state.server_state["inner"]["inner"]["parameters"].values()
    return torch.cat([x.double().flatten() for x in values])


def test_dp_sgd_of_nodes_has_the_ledger_of_a_simulation_in_accounts_of_their_own(tmp_path):
    method = PrivateSteps(SMALL, steps=2, rate=0.5, noise_multiplier=2.0, dp_delta=1e-3)
    accounts = with_accounts(tmp_path / "accounts", "example", epsilon=50.0, dp_delta=1e-2)
    nodes, seen = away(method, DATA, tmp_path, accounts=tmp_path / "accounts")
    _, rows = train(method, seen, engine=nodes)
    _, plain = train(method, DATA)
    found, expected = (
        [row for row in each if row.name == "privacy/epsilon"] for each in (rows, plain)
    )
    assert found == expected
    assert len(found) == 3 * (5 + 1)  # the last is their mean
    assert {each.balance("example").epsilon for each in accounts} == {found[-1].value}


@pytest.mark.parametrize("num_lost", [1, 2])
def test_nodes_without_an_account_are_lost_and_weaken_no_noise(num_lost, tmp_path):
    """They give no summand; below the threshold, nobody's noise is left alone."""
    method = identified(SecureSum(DistributedNoise(SMALL, SUMS), threshold=4), tmp_path, 5)
    folder = tmp_path / "accounts"
    with_accounts(folder, "client", epsilon=50.0, dp_delta=1e-1, neighbours="replace")
    nodes, seen = away(method, DATA, tmp_path / "far", accounts=folder)
    for number in range(1001 - num_lost, 1001):
        node = nodes.transport.nodes[number]
        nodes.transport.nodes[number] = dataclasses.replace(node, accounts=None)
    if num_lost == 1:
        _, rows = train(method, seen, engine=nodes)
        assert len(rows_of(rows, "privacy/epsilon")) == SMALL.rounds
        return
    with pytest.raises(RunStoppedError, match="the threshold is 4"):
        train(method, seen, engine=nodes)
