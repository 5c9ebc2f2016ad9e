"""Audits of methods whose clients add the noise: sound ones pass, and planted faults are found."""

import dataclasses
import re

import pytest
import torch

from fedbolic.federated import DistributedNoise, Sequential, SumPrivacy
from fedbolic.federated.noise.draws import SecretStream, SystemKeys
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.noise.integers import IntegerDraws
from fedbolic.federated.noise.lattice import NoisyLattice
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, PrivateSteps
from fedbolic.testing import noisy_audit
from fedbolic.testing.noisy_audit import audit_noisy
from tests.seeded import SeededKeys

STEPS = PrivateSteps(FedAvg(rounds=2), steps=2)
BATCHES = dataclasses.replace(STEPS, rate=0.5)
WHOLE = dataclasses.replace(STEPS, rate=1.0)
ONCE = dataclasses.replace(WHOLE, steps=1)
SUM = DistributedNoise(
    FedAvg(rounds=2), SumPrivacy(survivors=4, dp_delta=1e-4, noise_multiplier=1.0)
)


def found_in(method, planted=40):
    return audit_noisy(method, Sequential(), 6, planted=planted)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(noisy_audit, "UNUSED", 1500)


@pytest.mark.parametrize(
    "method", [BATCHES, WHOLE, SUM, SecureSum(SUM, threshold=4)],
    ids=["batches", "whole", "sum", "secure sum"],
)  # fmt: skip
def test_a_sound_method_has_no_fault_and_stays_below_its_ledger(method):
    found = found_in(method, planted=12 if isinstance(method, SecureSum) else 40)
    assert found.faults == ()
    assert 0 <= found.bound <= found.ledger


@pytest.mark.parametrize("rate", [1e-3, 0.1])
def test_few_contributions_are_no_fault(rate):
    """With one canary most batches are empty, in every sound run."""
    method = dataclasses.replace(ONCE, method=FedAvg(rounds=1), rate=rate, dp_delta=0.3)
    assert found_in(method, planted=1).faults == ()


@pytest.mark.slow
def test_the_attack_reaches_most_of_what_it_reaches_against_the_ideal_mechanism(monkeypatch):
    """Mean of attacks on DP-SGD, where the goal is four fifths: 6 deviations below what it is."""
    monkeypatch.setattr(noisy_audit, "_faults", lambda *_: [])
    found = [audit_noisy(ONCE, Sequential(), 1, planted=400, seed=s) for s in range(36)]
    bounds, ideals = (sum(getattr(f, n) for f in found) for n in ("bound", "ideal"))
    assert ideals > 36
    assert bounds > 0.8 * ideals


def little_noise(monkeypatch):
    whole = GaussianGrid.noise
    monkeypatch.setattr(GaussianGrid, "noise", lambda s, r: (whole(s, r) * 0.8).round().long())


def unclipped(monkeypatch):
    whole = GaussianGrid.rounded_sum

    def rounded_sum(self, rows):
        wide = dataclasses.replace(self, bound=1.5 * self.bound)
        return whole(wide, rows) * int(wide.unit / self.unit)

    monkeypatch.setattr(GaussianGrid, "rounded_sum", rounded_sum)


def one_key(monkeypatch):
    monkeypatch.setattr(SecretStream, "fresh", lambda: SecretStream(bytes(32)))


def public_batches(monkeypatch):
    monkeypatch.setattr(SecretStream, "uniform", lambda _, n: torch.linspace(0, 1, n).double())


def too_many_batches(monkeypatch):
    whole = SecretStream.uniform
    monkeypatch.setattr(SecretStream, "uniform", lambda self, n: whole(self, n) / 2)


def wrong_divisor(monkeypatch):
    whole = GaussianGrid.scaled
    monkeypatch.setattr(GaussianGrid, "scaled", lambda self, total: 1.25 * whole(self, total))


def same_noise_in_all_rounds(monkeypatch):
    whole, drawn = GaussianGrid.noise, {}
    monkeypatch.setattr(
        GaussianGrid, "noise", lambda s, r: drawn.setdefault(s, whole(s, r)).clone()
    )


def noise_of_all_clients_counts(monkeypatch):
    whole = IntegerDraws.gaussian
    monkeypatch.setattr(IntegerDraws, "gaussian", lambda s, v, n: whole(s, int(v * 4 / 6), n))


def keys_of_the_seed(monkeypatch):
    monkeypatch.setattr(SystemKeys, "stream", lambda _, rng: SeededKeys().stream(rng))


def longer_deltas(monkeypatch):
    whole = NoisyLattice.rounded
    monkeypatch.setattr(NoisyLattice, "rounded", lambda self, *given: whole(self, *given) * 3 // 2)


@pytest.mark.parametrize(
    ("plant", "method", "words"),
    [
        (little_noise, WHOLE, r"the noise is 0\.(7[3-9]\d*|8([0-6]\d*)?) times"),
        (unclipped, WHOLE, "a contribution is not the bound"),
        (one_key, WHOLE, "follows from the seed"),
        (public_batches, BATCHES, "batches follow from the seed"),
        (too_many_batches, BATCHES, "more or fewer than the ledger's rate"),
        (wrong_divisor, WHOLE, "a contribution is not the bound"),
        (same_noise_in_all_rounds, ONCE, "two rounds is correlated"),
        (noise_of_all_clients_counts, SUM, r"the noise is 0\.(7[5-9]\d*|8([0-8]\d*)?) times"),
        (keys_of_the_seed, SUM, "follows from the seed"),
        (longer_deltas, SUM, "a contribution is not the bound"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_planted_faults_are_found(plant, method, words, monkeypatch):
    plant(monkeypatch)
    found = found_in(method, planted=20 if method is BATCHES else 4)
    assert any(re.search(words, fault) for fault in found.faults), found


def test_a_method_without_noise_is_not_audited():
    for method in (FedAvg(), SecureSum(FedAvg())):
        with pytest.raises(ValueError, match=r"no epsilon to audit|only a run with privacy"):
            found_in(method)
