"""Private runs: what is clipped, added, withheld, refused, accounted and resumed."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedbolic.core.rng import Rng
from fedbolic.federated import (
    AdaptiveClipping,
    ClientPrivacy,
    Cohort,
    Evaluation,
    FineTune,
    Median,
    RidgeHead,
    RunStoppedError,
    Trainer,
    TrainerState,
)
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.noise.draws import SystemKeys
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, FedDyn, FedNova, Scaffold
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    SMALL,
    Averaged,
    NormNet,
    Relay,
    assert_same,
    federation,
    rows_of,
    saved_and_loaded,
    train,
)
from tests.seeded import SeededKeys

POISSON = Cohort(0.6, sampling="poisson")
SEEDED = ClientPrivacy(dp_delta=1e-2, noise_multiplier=1.0, clip_norm=0.1, noise=SeededKeys())
QUIET = dataclasses.replace(SEEDED, noise_multiplier=1e-9)
DATA = federation((7, 4, 12, 5))


def delta_of(before, after):
    return {name: after[name] - value for name, value in before.items()}


def flat(parameters):
    return torch.cat([x.flatten() for x in parameters.values()])


def updates_by_hand(method, data, bound, members, round=1):
    """The clipped deltas of the members in the first round, computed client by client."""
    state = Trainer().begin(method, data, RNG).server_state
    found = []
    for i in members:
        stream = RNG.at("round", round, "exchange", 0, "client", i)
        update, _ = method.local_update(method.broadcast(state, i), data.clients[i], {}, stream)
        delta = flat(update.payload["delta"])
        found.append(delta * min(1, bound / float(delta.norm())))
    return found


def test_without_noise_the_server_takes_the_unweighted_mean_of_the_clipped_deltas():
    first, *_ = train(SMALL, DATA, privacy=QUIET)[0]
    start = Trainer(privacy=QUIET).begin(SMALL, DATA, RNG).server_state["parameters"]
    moved = flat(delta_of(start, first.server_state["parameters"]))
    expected = torch.stack(updates_by_hand(SMALL, DATA, 0.1, range(4))).sum(0) / 4
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-7)  # a grid of 2 ** -25 bounds


def test_a_poisson_cohort_is_divided_by_its_expected_size():
    trainer = Trainer(cohort=POISSON, privacy=QUIET)
    start = trainer.begin(SMALL, DATA, RNG)
    assert POISSON.expected_size(4) == pytest.approx(2.4)
    first, _ = next(trainer.run(SMALL, DATA, RNG, start))
    moved = flat(delta_of(start.server_state["parameters"], first.server_state["parameters"]))
    members = sorted(first.client_states)
    sums = updates_by_hand(SMALL, DATA, 0.1, members)
    torch.testing.assert_close(moved, sum(sums, torch.zeros(())) / 2.4, rtol=0, atol=1e-7)


@pytest.mark.parametrize("placement", ["server", "clients"])
def test_noise_has_the_size_that_the_ledger_assumes(placement):
    """Difference of a noisy and a quiet round, in units of z b / m; bounds fail below 1e-9."""
    method = dataclasses.replace(SMALL, rounds=1, backbone=MLP((400,)))
    settings = {"noise_multiplier": 3.0, "placement": placement}
    loud = dataclasses.replace(SEEDED, **settings, noise=SystemKeys())
    noisy, quiet = (
        train(method, DATA, privacy=privacy)[0][-1].server_state["parameters"]
        for privacy in (loud, QUIET)
    )
    std = 3.0 * 0.1 / 4 * (2 if placement == "clients" else 1)  # the sum of four noises
    z = (flat(delta_of(quiet, noisy)) / std).numpy()
    low, high = stats.chi2(len(z)).ppf([2e-10, 1 - 2e-10])
    assert low < (z**2).sum() < high
    assert abs(z.sum()) < stats.norm.isf(1e-10) * math.sqrt(len(z))


def test_each_round_and_each_run_has_new_noise():
    loud = dataclasses.replace(SEEDED, noise=SystemKeys())
    method = Averaged(rounds=1)
    points = [train(method, DATA, privacy=loud)[0][-1].server_state["x"] for _ in range(2)]
    assert not torch.equal(*points)
    twice = train(Averaged(rounds=2), DATA, privacy=SEEDED)[0]
    quiet = train(Averaged(rounds=2), DATA, privacy=QUIET)[0]
    gaps = [a.server_state["x"] - b.server_state["x"] for a, b in zip(twice, quiet, strict=True)]
    assert not torch.allclose(gaps[1], 2 * gaps[0], atol=1e-3)


@pytest.mark.parametrize("noise", [SystemKeys(), SeededKeys()])
@pytest.mark.parametrize("adaptive", [None, AdaptiveClipping()])
def test_a_resumed_run_has_the_noise_of_the_uninterrupted_one(noise, adaptive):
    privacy = dataclasses.replace(SEEDED, noise=noise, adaptive=adaptive)
    trainer = Trainer(cohort=POISSON, privacy=privacy)
    start = trainer.begin(SMALL, DATA, RNG)
    whole = list(trainer.run(SMALL, DATA, RNG, start))
    middle = TrainerState.restore(saved_and_loaded(whole[0][0].checkpoint()))
    again = list(trainer.run(SMALL, DATA, RNG, middle))
    assert_same(again[-1][0].server_state, whole[-1][0].server_state)
    assert [rows for _, rows in again] == [rows for _, rows in whole[1:]]


def test_epsilon_of_every_round_is_recorded():
    _, rows = train(SMALL, DATA, privacy=SEEDED, cohort=POISSON)
    ledger = PrivacyLedger("poisson", "add/remove", 0.6, 1.0, 1e-2, 3)
    assert rows_of(rows, "privacy/epsilon") == [ledger.epsilon(k) for k in (1, 2, 3)]


@pytest.mark.parametrize(
    ("cohort", "placement", "expected"),
    [
        (Cohort(), "server", ("everyone", "add/remove", 1.0)),
        (Cohort(1.0, sampling="poisson"), "server", ("everyone", "add/remove", 1.0)),
        (Cohort(0.5, sampling="poisson"), "server", ("poisson", "add/remove", 0.5)),
        (Cohort(0.3), "server", ("fixed", "replace", 0.5)),  # two of four, by rounding up
        (Cohort(0.3), "clients", ("everyone", "replace", 1.0)),
    ],
)
def test_the_ledger_is_that_of_the_sampling_that_is_done(cohort, placement, expected):
    privacy = dataclasses.replace(SEEDED, placement=placement)
    ledger = privacy.ledger(cohort, 4, 3)
    assert (ledger.participation, ledger.neighbours, ledger.rate) == expected


def test_a_method_that_asks_all_clients_gets_no_credit_for_sampling():
    ledger = SEEDED.ledger(Cohort(0.5, sampling="poisson"), 4, 3, kind="all")
    assert ledger.participation == "everyone"


def test_a_budget_alone_gives_noise_for_the_whole_run():
    privacy = ClientPrivacy(dp_delta=1e-2, epsilon=2.0)
    _, rows = train(SMALL, DATA, privacy=privacy)
    *_, last = rows_of(rows, "privacy/epsilon")
    assert 1.99 < last <= 2.0


def test_a_budget_stops_the_run_before_the_round_that_would_exceed_it():
    ledger = SEEDED.ledger(Cohort(), 4, 3)
    budget = (ledger.epsilon(1) + ledger.epsilon(2)) / 2
    trainer = Trainer(privacy=dataclasses.replace(SEEDED, epsilon=budget))
    run = trainer.run(SMALL, DATA, RNG)
    state, _ = next(run)
    assert state.round == 1
    with pytest.raises(RunStoppedError, match=r"budget of epsilon .* is spent: round 2"):
        next(run)


def test_nothing_that_clients_measure_is_recorded():
    _, rows = train(SMALL, DATA, privacy=SEEDED, cohort=POISSON)
    names = {row.name for row in rows}
    costs = {"bytes/down", "bytes/up", "clients/asked"}
    assert names - costs == {
        "privacy/epsilon",
        "privacy/clip_norm",
        "holdout/accuracy",
        "holdout/loss",
        "holdout/examples",
    }
    assert all(row.client is None for row in rows)
    assert rows_of(rows, "clients/asked") == [pytest.approx(2.4)] * 3


@pytest.mark.parametrize("fault", ["nan", "error"])
def test_a_client_that_fails_counts_as_an_update_of_zero_and_is_not_reported(fault):
    method = Averaged(rounds=2, faults={1: fault})
    privacy = dataclasses.replace(QUIET, clip_norm=1e6)
    states, rows = train(method, DATA, privacy=privacy)
    healthy, healthy_rows = train(Averaged(rounds=2), DATA, privacy=privacy)
    assert [row.name for row in rows] == [row.name for row in healthy_rows]
    x = states[0].server_state["x"]
    stream = RNG.at("round", 2, "exchange", 0)
    moves = [
        c.train.tensors["x"].mean(0)
        + torch.rand((), generator=stream.at("client", c.id).generator()).double()
        - x
        for c in DATA.clients
        if c.id != 1
    ]
    expected = x + sum(moves, torch.zeros(5).double()) / 4
    torch.testing.assert_close(states[1].server_state["x"], expected, rtol=0, atol=1e-2)
    assert not torch.equal(states[1].server_state["x"], healthy[1].server_state["x"])


def test_a_round_without_clients_is_noise_alone():
    cohort = Cohort(1e-12, sampling="poisson")
    privacy = dataclasses.replace(SEEDED, noise_multiplier=1e-13)
    states, rows = train(SMALL, DATA, privacy=privacy, cohort=cohort)
    assert [state.round for state in states] == [1, 2, 3]
    assert not states[-1].client_states
    assert rows_of(rows, "clients/asked") == [pytest.approx(4e-12)] * 3


def test_sizes_of_clients_have_no_effect():
    """Two federations of the same mean inputs, one with every example twice."""
    twice = federation((7, 4))
    doubled = [
        dataclasses.replace(
            c,
            train=type(c.train)({n: torch.cat([x, x]) for n, x in c.train.tensors.items()}),
        )
        for c in twice.clients[:1]
    ]
    other = dataclasses.replace(twice, clients=(*doubled, twice.clients[1]))
    ends = [
        train(Averaged(rounds=1), data, privacy=SEEDED)[0][-1].server_state["x"]
        for data in (twice, other)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_the_bound_follows_the_quantile_of_the_norms():
    """Andrew et al. (2021), Fig. 1: from far below and above, it reaches the median."""
    method = Averaged(rounds=25, grow=1e-9)
    x = train(Averaged(rounds=1, grow=1e-9), DATA, privacy=QUIET)[0][0].server_state["x"]
    norms = sorted(float((c.train.tensors["x"].mean(0) - x + 0.5).norm()) for c in DATA.clients)
    for start in (1e-3, 1e3):
        adaptive = AdaptiveClipping(lr=1.5, count_noise=0.01)
        privacy = dataclasses.replace(QUIET, clip_norm=start, adaptive=adaptive)
        _, rows = train(method, DATA, privacy=privacy)
        end = rows_of(rows, "privacy/clip_norm")[-1]
        assert norms[0] - 1.5 < end < norms[-1] + 1.5


def test_one_step_of_adaptive_clipping_by_hand():
    adaptive = AdaptiveClipping(quantile=0.25, lr=0.3, count_noise=1e-6)
    privacy = dataclasses.replace(QUIET, clip_norm=1e-3, adaptive=adaptive)  # all are clipped
    _, rows = train(Averaged(rounds=2), DATA, privacy=privacy)
    first, second = rows_of(rows, "privacy/clip_norm")
    assert first == 1e-3
    assert second == pytest.approx(1e-3 * math.exp(-0.3 * (0 - 0.25)), rel=1e-5)


@pytest.mark.parametrize(("z", "count_noise"), [(1.0, 2.0), (0.3, 5.0)])
def test_the_sum_and_the_count_together_cost_what_the_sum_alone_would(z, count_noise):
    """Andrew et al. (2021), Theorem 1: two Gaussian releases, of sensitivities 1 and 1/2."""
    of_sum = (z**-2 - (2 * count_noise) ** -2) ** -0.5
    together = (of_sum**-2 + (count_noise / 0.5) ** -2) ** -0.5
    assert together == pytest.approx(z)
    adaptive = AdaptiveClipping(count_noise=count_noise)
    privacy = dataclasses.replace(SEEDED, noise_multiplier=z, adaptive=adaptive)
    plain = dataclasses.replace(SEEDED, noise_multiplier=of_sum)
    method = Averaged(rounds=1)
    ends = [train(method, DATA, privacy=p)[0][-1].server_state["x"] for p in (privacy, plain)]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


def test_too_little_noise_on_the_count_stops_the_run():
    privacy = dataclasses.replace(SEEDED, adaptive=AdaptiveClipping(count_noise=0.5))
    with pytest.raises(RunStoppedError, match="count_noise must be above half"):
        train(SMALL, DATA, privacy=privacy)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (dataclasses.replace(SMALL, backbone=NormNet()), "does not cover buffers"),
        (Scaffold(MLP((4,)), rounds=1), "Scaffold sends"),
        (FedNova(MLP((4,)), rounds=1), "FedNova"),
        (dataclasses.replace(SMALL, aggregator=Median()), "FedAvg uses Median"),
        (SecureSum(SMALL), "one exchange in a round"),
        (Relay(), "one exchange in a round"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_method_of_which_more_would_leave_the_clients_is_refused(method, words):
    with pytest.raises(ValueError, match=words):
        Trainer(privacy=SEEDED).begin(method, DATA, RNG)


def test_feddyn_needs_no_more_than_the_expected_number_of_clients():
    states, _ = train(FedDyn(MLP((4,)), rounds=2), DATA, privacy=SEEDED, cohort=POISSON)
    assert states[-1].round == 2


@pytest.mark.parametrize(
    "evaluation", [Evaluation(fine_tuning=FineTune()), Evaluation(ridge_head=RidgeHead())]
)
def test_scores_that_need_other_numbers_of_the_clients_are_refused(evaluation):
    with pytest.raises(ValueError, match="does not cover fine_tuning and ridge_head"):
        Trainer(privacy=SEEDED, evaluation=evaluation).begin(SMALL, DATA, RNG)


def test_a_poisson_cohort_without_privacy_is_refused():
    with pytest.raises(ValueError, match="Poisson cohort may be empty"):
        Trainer(cohort=POISSON).begin(SMALL, DATA, RNG)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_multiplier": None}, "epsilon, a budget, or noise_multiplier"),
        ({"dp_delta": 0.0}, "dp_delta must lie in"),
        ({"clip_norm": 0.0}, "clip_norm must be a positive"),
        ({"epsilon": -1.0}, "epsilon must be a positive"),
        ({"placement": "clients", "adaptive": AdaptiveClipping()}, "adaptive clipping needs"),
    ],
)
def test_settings_that_protect_nobody_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(SEEDED, **settings)


def test_a_delta_that_would_allow_to_publish_one_client_is_refused():
    with pytest.raises(ValueError, match=r"below one over the number of clients, 0\.25"):
        Trainer(privacy=dataclasses.replace(SEEDED, dp_delta=0.25)).begin(SMALL, DATA, RNG)


def test_poisson_cohorts_choose_every_client_independently():
    """Counts of pairs and of sizes against the binomial law, with bounds of six deviations."""
    n, rate, draws = 10, 0.3, 4000
    cohort = Cohort(rate, sampling="poisson")
    found = np.zeros((draws, n))
    for seed in range(draws):
        found[seed, list(cohort.sample(range(n), Rng(seed)))] = 1
    pairs = found.T @ found / draws
    for (i, j), share in np.ndenumerate(pairs):
        p = rate if i == j else rate**2
        assert abs(share - p) < 6.5 * math.sqrt(p * (1 - p) / draws)
    empty = (found.sum(1) == 0).mean()
    p = (1 - rate) ** n
    assert abs(empty - p) < 6.5 * math.sqrt(p * (1 - p) / draws)


def test_fedavg_on_many_engines_gives_the_same_private_run():
    from fedbolic.federated import Batched

    one, two = (
        train(FedAvg(MLP((4,)), rounds=2), DATA, privacy=SEEDED, cohort=POISSON, engine=engine)[0]
        for engine in (Trainer().engine, Batched())
    )
    a, b = (flat(states[-1].server_state["parameters"]) for states in (one, two))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
