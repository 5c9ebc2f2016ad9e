"""Draws of a private run: cohorts from all bits of the key, each byte once, whole numbers."""

import dataclasses
import hashlib
import math

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.federated import (
    AdaptiveClipping,
    ClientPrivacy,
    Cohort,
    DistributedNoise,
    RunStoppedError,
    Sequential,
    SumPrivacy,
    Trainer,
)
from fedbolic.federated.accounting.banded_noise import DIGITS
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.noise import draws
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import PrivateSteps
from tests.federated.simple_method import RNG, SMALL, federation

DATA = federation((7, 4, 12, 5, 6, 3, 8, 9, 4, 7))
POISSON, FIXED, ONCE, CYCLIC = (
    Cohort(0.4, sampling=kind) for kind in ("poisson", "fixed", "once", "cyclic")
)
PLAIN = ClientPrivacy(dp_delta=1e-3, noise_multiplier=1.0, clip_norm=0.1)
KINDS = {
    "server": (PLAIN, POISSON),
    "fixed": (PLAIN, FIXED),
    "once": (PLAIN, ONCE),
    "adaptive": (dataclasses.replace(PLAIN, adaptive=AdaptiveClipping()), POISSON),
    "clients": (dataclasses.replace(PLAIN, placement="clients"), FIXED),
    "tree": (dataclasses.replace(PLAIN, correlation="tree"), ONCE),
    "banded": (dataclasses.replace(PLAIN, correlation="banded"), CYCLIC),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
STEPS = PrivateSteps(SMALL, steps=3, rate=0.5, dp_delta=1e-4)
NOISY = DistributedNoise(SMALL, SumPrivacy(survivors=6, dp_delta=1e-3, noise_multiplier=1.0))


def uniform(key, path, size):
    """Numbers of 53 bits from SHAKE-256 of the key and the name of the stream, without our code."""
    digest = hashlib.shake_256(key + repr(path).encode()).digest(8 * size)
    words = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") >> 11 for i in range(size)]
    return [(word + 0.5) / 2**53 for word in words]


@pytest.mark.parametrize("kind", ["server", "fixed", "once"])
def test_cohorts_follow_from_all_bits_of_the_key(kind, monkeypatch):
    """A generator of torch keeps 32 bits of its seed, which colluding members find by trying."""
    privacy, cohort = KINDS[kind]
    trainer = Trainer(cohort=cohort, privacy=privacy)
    start = trainer.begin(SMALL, DATA, RNG)
    key, found = bytes(start.privacy["key"].tolist()), []
    run = Sequential.run

    def watched(self, exchange):
        found.append(sorted(exchange.messages))
        return run(self, exchange)

    monkeypatch.setattr(Sequential, "run", watched)
    list(trainer.run(SMALL, DATA, RNG, start))
    expected = []
    for round in (1, 2, 3):
        place = (round - 1) % 3 if kind == "once" else 0
        drawn = uniform(key, ("round", round - place, "cohort"), 10)
        order = sorted(range(10), key=drawn.__getitem__)[4 * place : 4 * place + 4]
        expected.append([i for i in range(10) if drawn[i] < 0.4] if kind == "server" else order)
    assert found == [sorted(members) for members in expected if members]


def test_no_stream_of_few_bits_comes_from_a_secret_one():
    public = [name for name in dir(draws.SecretStream) if not name.startswith("_")]
    stream = draws.SecretStream.fresh()
    assert not any(isinstance(getattr(stream, name), Rng) for name in public)
    assert "rng" not in public
    assert "32 bits" in Rng.__doc__


@pytest.mark.parametrize("method", [*KINDS, STEPS, NOISY, SecureSum(NOISY, threshold=6)])
def test_no_secret_bytes_serve_two_purposes(method, monkeypatch):
    """Only the order of an epoch is read in each of its rounds."""
    privacy, cohort = KINDS[method] if isinstance(method, str) else (None, Cohort())
    trainer, method = Trainer(cohort=cohort, privacy=privacy), SMALL if privacy else method
    hashed, shake = [], hashlib.shake_256
    monkeypatch.setattr(hashlib, "shake_256", lambda text: hashed.append(text) or shake(text))
    list(trainer.run(method, DATA, RNG))
    assert len(set(hashed)) > 3
    repeated = {text for text in hashed if hashed.count(text) > 1}
    assert repeated <= {
        text for text in hashed if cohort in (ONCE, CYCLIC) and text.endswith(b"'cohort')")
    }


@every_kind
@pytest.mark.parametrize("level", [0.0, 1e-9, 0.1 / 50**0.5, 3.0])
def test_the_noisy_sum_is_a_vector_of_whole_units_whatever_the_clients_sent(kind, level):
    """Mironov (2012): in floating point the last digits of a noisy sum say what was summed.

    Here the numbers that can be released are the same whatever was summed: multiples of a public
    unit.
    """
    privacy, cohort = KINDS[kind]
    private = PrivateAggregation.of_run(privacy, dataclasses.replace(SMALL, rounds=6), cohort, 10)
    state, form = private.begin(RNG, 10), {"delta": {"x": torch.zeros(50).double()}}
    updates = [(i, Update({"delta": {"x": torch.full((50,), level).double()}})) for i in range(3)]
    for round in (1, 2, 3, 4):
        given = {"members": range(3), "state": state, "round": round}
        bound = state["clip_norm"]
        total, state = private.mean(updates, form, **given)
        noise = private.ledger.noise_multiplier * bound * math.hypot(*private.bands or (1,))
        digits = DIGITS if private.bands else 0
        unit = GaussianGrid(50, bound, noise, digits).unit
        units = total.payload["delta"]["x"] * private.size / unit
        off = (units - units.round()).abs() / units.abs().clamp_min(1)
        assert off.max() < 1e-12  # of the division by the number of clients
        assert units.std() * 2**digits > 2**20


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_step_of_dp_sgd_is_a_vector_of_whole_units(level):
    data = federation((1,))
    method = PrivateSteps(SMALL, rate=1.0, dp_delta=1e-4)
    message = method.broadcast(Trainer().begin(method, data, RNG).server_state, 0)
    model, client = SMALL.model(data.meta), data.clients[0]
    local, context = SMALL.start(message["method"], client, {})
    examples = {**client.train.tensors, "x": level * client.train.tensors["x"]}
    stream = draws.SecretStream.fresh()
    found = method._gradients(model, local, examples, context, stream)
    flat = torch.cat([x.flatten() for x in found.values()])
    units = flat / GaussianGrid(len(flat), 1.0, 1.0).unit
    assert torch.equal(units, units.round())
    assert units.abs().max() > 2**20


@pytest.mark.parametrize("private", [True, False])
def test_a_run_of_an_earlier_version_is_not_continued(private):
    trainer = Trainer(privacy=PLAIN if private else None)
    method = SMALL if private else STEPS
    state = trainer.begin(method, DATA, RNG)
    old = {name: x for name, x in (state.privacy or state.server_state).items() if name != "draws"}
    part = "privacy" if private else "server_state"
    with pytest.raises(RunStoppedError, match="earlier version, which drew its cohorts from 32"):
        next(trainer.run(method, DATA, RNG, dataclasses.replace(state, **{part: old})))
