"""Noise of the clients in a secure sum: equal to the mean, enough for survivors, accounted."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from typing_extensions import override

from fedbolic.federated import (
    AdaptiveClipping,
    ClientPrivacy,
    Cohort,
    DistributedNoise,
    RunStoppedError,
    Sequential,
    SumPrivacy,
    Trainer,
    TrainerState,
)
from fedbolic.federated.noise.draws import SystemKeys
from fedbolic.federated.noise.integers import IntegerDraws
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedNova
from fedbolic.nn.network.backbone import MLP
from tests.federated.secure.parties import Losing
from tests.federated.simple_method import (
    RNG,
    SMALL,
    NormNet,
    assert_same,
    federation,
    rows_of,
    saved_and_loaded,
    train,
)
from tests.seeded import SeededKeys

DATA = federation((7, 4, 12, 5))
PRIVACY = SumPrivacy(survivors=3, dp_delta=1e-2, noise_multiplier=2.0, clip_norm=0.1, bits=24)
NOISY = DistributedNoise(SMALL, PRIVACY, noise=SeededKeys())
SECURE = SecureSum(NOISY, threshold=3)
ADAPTIVE = dataclasses.replace(
    NOISY, privacy=dataclasses.replace(PRIVACY, adaptive=AdaptiveClipping())
)


def flat(parameters):
    return torch.cat([x.flatten() for x in parameters.values()])


def size_of(method):
    state = Trainer().begin(method, DATA, RNG).server_state
    return len(flat(state["inner"]["parameters"]))


def plan(method):
    return method.privacy.plan(num_clients=4, size=size_of(method), rounds=method.rounds)


@pytest.mark.parametrize("bits", [12, 24])
def test_without_noise_the_server_takes_the_plain_mean_up_to_rounding(monkeypatch, bits):
    """Every number is rounded by less than the grid's unit, so a vector by less than its root."""
    monkeypatch.setattr(IntegerDraws, "gaussian", lambda _, v, size: np.zeros(size, np.int64))
    privacy = dataclasses.replace(PRIVACY, bits=bits)
    method = DistributedNoise(dataclasses.replace(SMALL, rounds=1), privacy)
    quiet = ClientPrivacy(dp_delta=1e-2, noise_multiplier=1e-12, clip_norm=0.1, noise=SeededKeys())
    ours = train(method, DATA)[0][-1].server_state["inner"]["parameters"]
    plain = train(method.method, DATA, privacy=quiet)[0][-1].server_state["parameters"]
    lattice, _ = plan(method)
    error = float((flat(ours) - flat(plain)).norm())
    assert 0 < error < math.sqrt(lattice.dim) * lattice.granularity


def test_under_masks_the_sum_is_exactly_that_in_the_clear():
    clear, secret = (train(method, DATA)[0][-1].server_state for method in (NOISY, SECURE))
    assert_same(secret["inner"], clear)


def test_noise_has_the_size_of_all_clients_in_the_sum(monkeypatch):
    """Difference from a run without noise, in units of the exact deviation; fails below 1e-9."""
    wide = dataclasses.replace(SMALL, rounds=1, backbone=MLP((300,)))
    method = DistributedNoise(wide, PRIVACY)
    loud = train(method, DATA)[0][-1].server_state["inner"]["parameters"]
    lattice, _ = plan(method)
    monkeypatch.setattr(IntegerDraws, "gaussian", lambda _, v, size: np.zeros(size, np.int64))
    quiet = train(method, DATA)[0][-1].server_state["inner"]["parameters"]
    std = lattice.granularity * math.sqrt(4 * lattice.variance) / 4
    z = (flat(loud) - flat(quiet)).double().numpy() / std
    low, high = stats.chi2(len(z)).ppf([2e-10, 1 - 2e-10])
    assert 0.99 * low < (z**2).sum() < 1.01 * high


@pytest.mark.parametrize("lost", [(("sums", 1),), (("shares", 0),)])
def test_clients_down_to_the_threshold_may_drop_out_at_the_stated_epsilon(lost):
    """The noise of the survivors alone reaches the multiplier of the ledger."""
    states, rows = train(SECURE, DATA, engine=Losing(lost=lost))
    assert states[-1].round == SMALL.rounds
    lattice, ledger = plan(NOISY)
    assert rows_of(rows, "privacy/epsilon") == [ledger.epsilon(k) for k in (1, 2, 3)]
    remaining = 4 - len(lost)
    assert lattice.variance * remaining >= ledger.noise_multiplier**2 * lattice.largest * (
        1 - 1e-12
    )
    assert ledger.noise_multiplier >= 2.0


def test_fewer_clients_than_the_noise_needs_stop_the_run():
    with pytest.raises(RunStoppedError, match="the threshold is 3"):
        train(SECURE, DATA, engine=Losing(lost=(("sums", 0), ("sums", 2))))

    @dataclass(frozen=True)
    class Two(Sequential):
        @override
        def run(self, exchange):
            yield from list(super().run(exchange))[:2]

    with pytest.raises(RunStoppedError, match="2 clients are in the sum, and the noise of 3"):
        train(NOISY, DATA, engine=Two())


def test_a_threshold_below_the_number_of_noisy_clients_is_refused():
    few = dataclasses.replace(PRIVACY, survivors=4)
    with pytest.raises(ValueError, match=r"noise of 4 clients is counted.*threshold of 3"):
        Trainer().begin(SecureSum(DistributedNoise(SMALL, few), threshold=3), DATA, RNG)


def test_fewer_noisy_clients_need_more_noise_each():
    """A colluding client's noise is not counted, so the others add as much more."""
    of = {t: plan(DistributedNoise(SMALL, dataclasses.replace(PRIVACY, survivors=t)))[0]
          for t in (2, 4)}  # fmt: skip
    ratio = of[2].variance * of[2].granularity ** 2 / (of[4].variance * of[4].granularity ** 2)
    assert ratio == pytest.approx(2, rel=1e-2)


@pytest.mark.parametrize(("method", "place"), [(NOISY, 0), (SECURE, 2)])
def test_a_resumed_run_has_the_noise_of_the_uninterrupted_one(method, place):
    """Resumed after the first round in the clear, and in the middle of the first secure sum."""
    twice = dataclasses.replace(SMALL, rounds=2)
    system = dataclasses.replace(NOISY, method=twice, noise=SystemKeys())
    method = system if method is NOISY else dataclasses.replace(SECURE, method=system)
    whole = list(Trainer().run(method, DATA, RNG))
    middle = TrainerState.restore(saved_and_loaded(whole[place][0].checkpoint()))
    again = list(Trainer().run(method, DATA, RNG, middle))
    ends = [run[-1][0].server_state for run in (again, whole)]
    assert_same(*[end if method is system else end["inner"] for end in ends])


def test_rounds_and_clients_have_different_noise_and_a_repeated_round_the_same():
    state = Trainer().begin(NOISY, DATA, RNG).server_state
    message = NOISY.broadcast(state, 0)
    sent = [NOISY.local_update(message, c, {}, RNG)[0].payload["numbers"] for c in DATA.clients]
    assert not any(torch.equal(sent[0], other) for other in sent[1:])
    again, kept = NOISY.local_update(message, DATA.clients[0], {}, RNG)
    assert torch.equal(again.payload["numbers"], sent[0])
    later, _ = NOISY.local_update(message, DATA.clients[0], kept, RNG)
    assert not torch.equal(later.payload["numbers"], sent[0])


def test_a_client_refuses_more_sums_than_its_budget_is_for():
    message = NOISY.broadcast(Trainer().begin(NOISY, DATA, RNG).server_state, 0)
    kept = {}
    for _ in range(NOISY.rounds):  # the server says each time that it is the first round
        _, kept = NOISY.local_update(message, DATA.clients[0], kept, RNG)
    with pytest.raises(ValueError, match="all that its privacy budget is for"):
        NOISY.local_update(message, DATA.clients[0], kept, RNG)


def test_nothing_but_noisy_numbers_leaves_a_client():
    message = NOISY.broadcast(Trainer().begin(NOISY, DATA, RNG).server_state, 2)
    update, _ = NOISY.local_update(message, DATA.clients[2], {}, RNG)
    assert update.payload.keys() == {"numbers"}
    assert (update.weight, dict(update.metrics)) == (1.0, {})
    _, rows = train(NOISY, DATA)
    assert not [row for row in rows if row.name.startswith("train/")]


def test_a_cohort_gets_no_credit_for_sampling():
    _, rows = train(NOISY, DATA, cohort=Cohort(0.75))
    _, ledger = plan(NOISY)
    assert rows_of(rows, "privacy/epsilon") == [ledger.epsilon(k) for k in (1, 2, 3)]
    assert ledger.participation == "everyone"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (dataclasses.replace(SMALL, backbone=NormNet()), "does not cover buffers"),
        (FedNova(rounds=1), "privacy covers the part 'delta'|privacy makes means private"),
        (dataclasses.replace(SMALL, backbone=MLP((4,))), None),
    ],
)
def test_what_is_not_covered_is_refused(method, words):
    if words is None:
        Trainer().begin(DistributedNoise(method, PRIVACY), DATA, RNG)
        return
    with pytest.raises(ValueError, match=words):
        Trainer().begin(DistributedNoise(method, PRIVACY), DATA, RNG)


def test_a_modulus_that_is_too_small_is_refused_at_the_start():
    narrow = dataclasses.replace(PRIVACY, bits=3)
    with pytest.raises(ValueError, match="use bits of"):
        Trainer().begin(DistributedNoise(SMALL, narrow), DATA, RNG)


def test_a_deployment_needs_masks():
    with pytest.raises(ValueError, match="put DistributedNoise into a SecureSum"):
        NOISY.check_deployed()
    keys = Path("keys")
    unseeded = dataclasses.replace(NOISY, noise=SystemKeys())
    dataclasses.replace(SECURE, method=unseeded, keys=keys).check_deployed()
    few = dataclasses.replace(PRIVACY, survivors=4)
    with pytest.raises(ValueError, match="noise of 4 clients is counted"):
        SecureSum(DistributedNoise(SMALL, few), threshold=3, keys=keys).check_deployed()


@pytest.mark.parametrize(("start", "share"), [(1e-3, 0.0), (1e3, 1.0)])
def test_the_bound_follows_the_count_by_the_published_rule(monkeypatch, start, share):
    """Andrew et al. (2021), Algorithm 1, without noise: all or none of the updates are within."""
    monkeypatch.setattr(IntegerDraws, "gaussian", lambda _, v, size: np.zeros(size, np.int64))
    clipping = AdaptiveClipping(quantile=0.25, lr=0.3)
    privacy = dataclasses.replace(PRIVACY, clip_norm=start, adaptive=clipping)
    method = DistributedNoise(SMALL, privacy, noise=SeededKeys())
    states, rows = train(method, DATA)
    expected = [start * math.exp(-0.3 * (share - 0.25)) ** k for k in range(4)]
    assert rows_of(rows, "privacy/clip_norm") == pytest.approx(expected[:3], rel=1e-12)
    assert states[-1].server_state["clip_norm"] == pytest.approx(expected[3], rel=1e-12)


def test_under_another_bound_the_sum_is_that_of_a_run_with_this_bound():
    """Grid and noise scale with the bound that the server names, up to the rounding of floats."""
    ends = []
    for grid, named in ((0.125, 0.5), (0.5, 0.5)):
        privacy = dataclasses.replace(ADAPTIVE.privacy, clip_norm=grid)
        method = dataclasses.replace(ADAPTIVE, privacy=privacy)
        start = Trainer().begin(method, DATA, RNG)
        state = {**start.server_state, "clip_norm": named}
        start = dataclasses.replace(start, server_state=state)
        ends.append(next(Trainer().run(method, DATA, RNG, start))[0].server_state["inner"])
    for name, value in ends[0]["parameters"].items():
        torch.testing.assert_close(value, ends[1]["parameters"][name], rtol=0, atol=1e-6)


def test_under_masks_the_count_is_that_in_the_clear():
    secure = dataclasses.replace(SECURE, method=ADAPTIVE)
    clear, secret = (train(method, DATA)[0][-1].server_state for method in (ADAPTIVE, secure))
    assert_same(secret["inner"], clear)
    assert clear["clip_norm"] != PRIVACY.clip_norm


@pytest.mark.parametrize("named", [1e-320, 1e-9, 0.1, 1e9, 1e300])
def test_no_bound_that_a_server_names_makes_a_contribution_larger(monkeypatch, named):
    monkeypatch.setattr(IntegerDraws, "gaussian", lambda _, v, size: np.zeros(size, np.int64))
    state = {**Trainer().begin(ADAPTIVE, DATA, RNG).server_state, "clip_norm": named}
    update, _ = ADAPTIVE.local_update(ADAPTIVE.broadcast(state, 0), DATA.clients[0], {}, RNG)
    lattice, _ = plan(ADAPTIVE)
    half = 2 ** (PRIVACY.bits - 1)
    *sent, count = ((update.payload["numbers"][:, 0] + half) % (2 * half) - half).tolist()
    assert sum(x * x for x in sent) <= lattice.largest
    assert abs(count) == lattice.count.units


@pytest.mark.parametrize("named", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_is_none_is_refused(named):
    state = {**Trainer().begin(ADAPTIVE, DATA, RNG).server_state, "clip_norm": named}
    with pytest.raises(ValueError, match="clip_norm must be a positive"):
        ADAPTIVE.local_update(ADAPTIVE.broadcast(state, 0), DATA.clients[0], {}, RNG)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf, 1e308])
def test_a_delta_that_is_not_finite_contributes_nothing(spoilt):
    """A server may send a model that overflows at some clients, who must not tell."""
    form = {"a": torch.zeros(3, dtype=torch.float64)}
    delta = {"a": torch.tensor([spoilt, 1e308, -3.0], dtype=torch.float64)}
    vector, _ = NOISY._clipped(delta, form, 0.1)
    assert torch.equal(vector, torch.zeros(4, dtype=torch.float64))
