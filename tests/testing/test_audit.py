"""Audits of private runs: sound runs pass, near the ideal mechanism, and faults are found."""

import dataclasses
import hashlib
import re

import numpy as np
import pytest
import torch
from scipy import stats

from fedbolic.cli.commands import execute
from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.federated import AdaptiveClipping, ClientPrivacy, Cohort, Trainer
from fedbolic.federated.noise.draws import SecretStream, SystemKeys
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.privacy import aggregation
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.testing.audit import attacked, audit, chance, lower_bound
from fedbolic.testing.audit_checks import _faults_of_noise
from tests.seeded import SeededKeys

PRIVACY = ClientPrivacy(dp_delta=1e-5, noise_multiplier=1.0, clip_norm=0.5)
ALL = Trainer(privacy=PRIVACY)
ADAPTIVE = Trainer(privacy=dataclasses.replace(PRIVACY, adaptive=AdaptiveClipping(count_noise=2.0)))
SAMPLED = Trainer(cohort=Cohort(0.29, sampling="poisson"), privacy=PRIVACY)  # 11.6 of 40 clients
TREE = Trainer(
    cohort=Cohort(0.25, sampling="once"), privacy=dataclasses.replace(PRIVACY, correlation="tree")
)
BANDED = Trainer(
    cohort=Cohort(0.5, sampling="cyclic"),
    privacy=dataclasses.replace(PRIVACY, correlation="banded"),
)


@pytest.mark.parametrize(
    "trainer",
    [
        ALL,
        ADAPTIVE,
        SAMPLED,
        Trainer(cohort=Cohort(0.5), privacy=PRIVACY),
        Trainer(cohort=Cohort(0.25, sampling="once"), privacy=PRIVACY),
        TREE,
        BANDED,
        Trainer(privacy=dataclasses.replace(PRIVACY, placement="clients")),
    ],
    ids=["all", "adaptive", "poisson", "fixed", "once", "tree", "banded", "clients"],
)
def test_a_sound_run_has_no_fault_and_stays_below_its_ledger(trainer):
    found = audit(trainer, 40, 4, planted=400)
    assert found.faults == ()
    assert found.bound <= found.ledger


@pytest.mark.slow
def test_the_attack_reaches_most_of_what_it_reaches_against_the_ideal_mechanism():
    """Mean of 25 attacks; the goal is four fifths."""
    found = [attacked(ALL, 100, 2, seed=seed) for seed in range(25)]
    bounds, ideals = (np.array(each) for each in zip(*found, strict=True))
    assert ideals.mean() > 1
    assert bounds.mean() > 0.8 * ideals.mean()


def test_a_bound_holds_against_guesses_of_exactly_this_epsilon():
    """Randomised response of epsilon 2: at most 5 % of bounds may exceed it; fails below 1e-9."""
    share, draws = 1 / (1 + np.exp(-2.0)), 1000
    right = Rng(0).numpy().binomial(100, share, size=draws)
    wrong = sum(lower_bound(int(r), 100, 1000, 0.0) > 2.0 for r in right)
    assert 0 < wrong < stats.binom.isf(1e-9, draws, 0.05)
    assert chance(100, 100, 1000, 2.0, 0.0) == pytest.approx(share**100)


def realised_divisor(monkeypatch):
    whole = PrivateAggregation.mean

    def mean(self, updates, form, **given):
        updates = list(updates)
        total, state = whole(self, updates, form, **given)
        factor = self.size / max(1, len(updates))
        delta = {"x": total.payload["delta"]["x"] * factor}
        return dataclasses.replace(total, payload={**total.payload, "delta": delta}), state

    monkeypatch.setattr(PrivateAggregation, "mean", mean)


def unclipped_buffers(monkeypatch):
    def form(phase, state):
        return phase.template(phase.broadcast(state, 0))

    monkeypatch.setattr(aggregation, "covered_form", form)


def single_precision(monkeypatch):
    def noise(self, stream):
        return (stream.normal(self.size).float() * (self.std / self.unit)).round().long()

    monkeypatch.setattr(GaussianGrid, "noise", noise)


def short_seed(monkeypatch):
    def stream(self, rng):
        seed = int(torch.empty((), dtype=torch.int64).random_(2**30))  # 32 equal keys in the mean
        return SecretStream(hashlib.sha256(str(seed).encode()).digest())

    monkeypatch.setattr(SystemKeys, "stream", stream)


def seeded(monkeypatch):
    monkeypatch.setattr(SystemKeys, "stream", lambda _, rng: SeededKeys().stream(rng))


def no_clipping(monkeypatch):
    whole = GaussianGrid.rounded_sum

    def rounded_sum(self, rows):
        wide = dataclasses.replace(self, bound=1.5 * self.bound)
        return whole(wide, rows) * int(wide.unit / self.unit)

    monkeypatch.setattr(GaussianGrid, "rounded_sum", rounded_sum)


def little_noise(monkeypatch):
    whole = GaussianGrid.noise
    monkeypatch.setattr(GaussianGrid, "noise", lambda s, r: (whole(s, r) * 0.8).round().long())


def same_noise(monkeypatch):
    monkeypatch.setattr(
        PrivateAggregation, "stream", lambda _, state, round: SecretStream(bytes(state["key"]))
    )


def new_noise_for_a_repeated_round(monkeypatch):
    monkeypatch.setattr(
        PrivateAggregation, "stream", lambda *_, **__: SecretStream.fresh().at("round")
    )


def free_count(monkeypatch):
    monkeypatch.setattr(aggregation, "_noisy_count", lambda half_units, *_: half_units / 2)


def uncharged_count(monkeypatch):
    monkeypatch.setattr(AdaptiveClipping, "split", lambda s, z, size: (z, s.count_noise))


def weighted(monkeypatch):
    whole = aggregation._rounded_sum

    def rounded_sum(updates, form, grid):
        heavy = (each for each in updates for _ in range(1 + (each[1].weight > 5)))
        return whole(heavy, form, grid)

    monkeypatch.setattr(aggregation, "_rounded_sum", rounded_sum)


def public_cohorts(monkeypatch):
    monkeypatch.setattr(
        PrivateAggregation, "order", lambda _, state, rng, round, exchange: rng.at(round)
    )


def counted_failures(monkeypatch):
    whole = Trainer._client_rows

    def rows(self, *given):
        return [*whole(self, *given), Row(1, None, "clients/failed", 1.0)]

    monkeypatch.setattr(Trainer, "_client_rows", rows)


def uniform_noise(monkeypatch):
    def noise(self, stream):
        return ((stream.uniform(self.size) - 0.5) * 12**0.5 * (self.std / self.unit)).long()

    monkeypatch.setattr(GaussianGrid, "noise", noise)


def infinities(monkeypatch):
    whole = GaussianGrid.rounded_sum

    def rounded_sum(self, rows):
        return whole(self, rows.nan_to_num(nan=1e3, posinf=1e3))

    monkeypatch.setattr(GaussianGrid, "rounded_sum", rounded_sum)
    found = "fedbolic.federated.rounds.update_filter.find_update_fault"
    monkeypatch.setattr(found, lambda *_, **__: None)


@pytest.mark.parametrize(
    ("plant", "trainer", "words"),
    [
        (realised_divisor, SAMPLED, "by weights or by the divisor|not the bound over"),
        (unclipped_buffers, ALL, "with the part 'buffers', which gets no noise"),
        (single_precision, ALL, "last digits of the noise are not uniform"),
        (short_seed, ALL, "far fewer than 256 bits"),
        (seeded, ALL, "follows from the seed"),
        (no_clipping, ALL, "not the bound over"),
        (little_noise, ALL, r"the noise is 0\.(7[89]|8)\d* times"),
        (same_noise, ALL, "two rounds is correlated"),
        (new_noise_for_a_repeated_round, ALL, "can be averaged with the first"),
        (free_count, ADAPTIVE, "the noise of the count is 0 times"),
        (uncharged_count, ADAPTIVE, r"the noise is 0\.9[5-8]\d* times"),
        (weighted, ALL, "by weights or by the divisor|not the bound over"),
        (public_cohorts, ALL, "do not follow from the secret key"),
        (counted_failures, ALL, "'clients/failed' is recorded"),
        (uniform_noise, ALL, "not normal"),
        (infinities, ALL, "not finite contributes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_planted_faults_are_found(plant, trainer, words, monkeypatch):
    plant(monkeypatch)
    found = audit(trainer, 40, 2, planted=40)
    assert any(re.search(words, fault) for fault in found.faults), found


@pytest.mark.parametrize("trainer", [TREE, BANDED], ids=["tree", "banded"])
def test_noise_that_takes_nothing_back_is_found(trainer, monkeypatch):
    for name in ("add_leaf", "add_round"):
        whole = getattr(aggregation, name)
        monkeypatch.setattr(aggregation, name, lambda _, *given, whole=whole: whole({}, *given))
    faults = _faults_of_noise(trainer, 40, 1.0, 0)
    assert "the noise of two rounds is correlated otherwise than the ledger assumes" in faults


def test_a_run_is_audited_by_one_command_and_a_fault_is_its_exit_code(
    tmp_path, monkeypatch, capsys, caplog
):
    words = ["run", "--config", "private/digits", "--data.partition.num_clients", "40"]
    words += ["--privacy.noise_multiplier", "2.0", "--privacy.epsilon", "null"]
    words += ["--method.rounds", "2", "--cohort.rate", "1.0", "--name", "r"]
    assert execute([*words, "--runs", str(tmp_path)]) == 0
    run = tmp_path / "r" / "seed0"
    capsys.readouterr()
    caplog.clear()
    with caplog.at_level("INFO", "fedbolic"):
        assert execute(["audit", str(run)]) == 0
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == len(set(logged)) > 0  # many runs, all alike
    said = capsys.readouterr().out
    assert re.search(
        r"ledger: epsilon [\d.]+; attack: at least [\d.]+ .*\nno fault was found", said
    )
    metrics = run / "metrics.csv"
    rows = metrics.read_text()
    metrics.write_text(re.sub(r"(?m)^2,,privacy/epsilon,.*$", "2,,privacy/epsilon,0.5", rows))
    assert execute(["audit", str(run)]) == 1
    assert "metrics.csv states epsilon 0.5" in capsys.readouterr().out
    little_noise(monkeypatch)
    assert execute(["audit", str(run)]) == 1
    assert "FAULT: the noise is" in capsys.readouterr().out


def test_a_run_without_privacy_is_not_audited(tmp_path, capsys):
    words = ["run", "--config", "fedavg/quick", "--method.rounds", "1", "--name", "r"]
    assert execute([*words, "--runs", str(tmp_path)]) == 0
    assert execute(["audit", str(tmp_path / "r" / "seed0")]) == 2
    assert "only a run with privacy is audited" in capsys.readouterr().err
