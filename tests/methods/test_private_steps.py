"""DP-SGD against a literal loop over examples, its noise, its ledger and what it refuses."""

import dataclasses
import math

import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, Trainer, TrainerState
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.methods import PrivateSteps, private_steps
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    SMALL,
    NormNet,
    assert_same,
    federation,
    plain_network,
    rows_of,
    saved_and_loaded,
    train,
    values,
)

DATA = federation((7, 4, 12))
METHOD = PrivateSteps(SMALL, steps=4, rate=0.5, noise_multiplier=1e-6, clip_norm=0.3, dp_delta=1e-2)


def loop(start, client, key, rng, method):
    """DP-SGD of Abadi et al., Algorithm 1, example by example in a plain torch network."""
    network = plain_network(start)
    parameters = list(network.parameters())
    x, y = client.train.tensors["x"], client.train.tensors["y"]
    for step in range(method.steps):
        stream = SecretStream(key).at(*rng.path, "round", 0, "step", step)
        chosen = stream.at("batch").uniform(len(y)) < method.rate
        total = [torch.zeros_like(p) for p in parameters]
        for i in torch.nonzero(chosen).flatten().tolist():
            gradients = torch.autograd.grad(cross_entropy(network(x[[i]]), y[[i]]), parameters)
            norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
            for place, g in zip(total, gradients, strict=True):
                place += g * min(1.0, method.clip_norm / norm)
        with torch.no_grad():
            for p, g in zip(parameters, total, strict=True):
                p -= method.method.lr * g / (method.rate * len(y))
    return values(network)


@pytest.mark.parametrize("clip_norm", [0.3, 100.0])
@pytest.mark.parametrize("width", [64, 5])
def test_the_steps_are_those_of_a_loop_over_examples(clip_norm, width, monkeypatch):
    monkeypatch.setattr(private_steps, "BLOCK_NUMBERS", width * 39)  # of 39 parameters
    method = dataclasses.replace(METHOD, clip_norm=clip_norm, noise_multiplier=1e-9)
    message = method.broadcast(Trainer().begin(method, DATA, RNG).server_state, 2)
    client, rng = DATA.clients[2], RNG.at("client", 2)
    update, kept = method.local_update(message, client, {}, rng)
    start = message["method"]["parameters"]
    end = loop(start, client, bytes(kept["key"].tolist()), rng, method)
    for name, value in end.items():
        torch.testing.assert_close(
            start[name] + update.payload["delta"][name], value, rtol=0, atol=1e-7 * clip_norm + 1e-7
        )


def test_noise_has_the_size_that_the_ledger_assumes():
    """One step of a client whose gradients are clipped to almost nothing; fails below 1e-9."""
    wide = dataclasses.replace(SMALL, backbone=MLP((300,)), lr=1.0)
    method = PrivateSteps(wide, steps=1, rate=0.5, noise_multiplier=1e5, dp_delta=1e-2)
    message = method.broadcast(Trainer().begin(method, DATA, RNG).server_state, 2)
    update, _ = method.local_update(message, DATA.clients[2], {}, RNG)
    noise = torch.cat([x.flatten() for x in update.payload["delta"].values()])
    z = (noise * 0.5 * 12 / 1e5).numpy()  # the gradients add up to at most 1e-4
    low, high = stats.chi2(len(z)).ppf([2e-10, 1 - 2e-10])
    assert low * 0.999 < (z**2).sum() < high * 1.001


def test_a_step_without_examples_is_noise_alone():
    method = dataclasses.replace(METHOD, rate=1e-9, noise_multiplier=1e-12)
    message = method.broadcast(Trainer().begin(method, DATA, RNG).server_state, 0)
    update, _ = method.local_update(message, DATA.clients[0], {}, RNG)
    assert all(bool(x.isfinite().all()) for x in update.payload["delta"].values())


def test_epsilon_is_that_of_all_steps_of_a_client_in_every_round():
    method = dataclasses.replace(METHOD, noise_multiplier=1.5)
    _, rows = train(method, DATA, cohort=Cohort(0.5))
    ledger = PrivacyLedger("poisson", "add/remove", 0.5, 1.5, 1e-2, 12)
    expected = [ledger.epsilon(4 * k) for k in (1, 2, 3)]
    assert rows_of(rows, "privacy/epsilon") == pytest.approx(expected, rel=1e-12)
    assert not [row for row in rows if row.name.startswith("train/")]


def test_clients_have_equal_weights():
    message = METHOD.broadcast(Trainer().begin(METHOD, DATA, RNG).server_state, 0)
    assert {METHOD.local_update(message, c, {}, RNG)[0].weight for c in DATA.clients} == {1.0}


def test_a_resumed_run_has_the_noise_of_the_uninterrupted_one():
    method = dataclasses.replace(METHOD, noise_multiplier=2.0)
    whole = list(Trainer().run(method, DATA, RNG))
    middle = TrainerState.restore(saved_and_loaded(whole[0][0].checkpoint()))
    again = list(Trainer().run(method, DATA, RNG, middle))
    assert_same(again[-1][0].server_state, whole[-1][0].server_state)


def test_rounds_clients_and_runs_have_different_noise():
    method = dataclasses.replace(METHOD, noise_multiplier=1e5, steps=1)
    message = method.broadcast(Trainer().begin(method, DATA, RNG).server_state, 0)

    def delta(state, rng, round):
        sent = {**message, "round": round}
        update, kept = method.local_update(sent, DATA.clients[0], state, rng)
        return next(iter(update.payload["delta"].values())), kept

    first, kept = delta({}, RNG, 0)
    assert torch.equal(delta(kept, RNG, 0)[0], first)
    for state, rng, round in (({}, RNG, 0), (kept, RNG.at("client", 1), 0), (kept, RNG, 1)):
        assert not torch.allclose(delta(state, rng, round)[0], first)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"rate": 1.5}, "rate must lie in"),
        ({"clip_norm": 0.0}, "clip_norm must be a positive"),
        ({"dp_delta": 1.0}, "dp_delta must lie in"),
    ],
)
def test_a_value_out_of_range_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(METHOD, **settings)


def test_batch_norm_is_refused():
    method = PrivateSteps(dataclasses.replace(SMALL, backbone=NormNet()), dp_delta=1e-2)
    with pytest.raises(ValueError, match="gradient of every single example"):
        Trainer().begin(method, DATA, RNG)


@pytest.mark.parametrize("sharing", [{"*": "shared"}, {"*dropout_seed": "personal", "*": "shared"}])
def test_dropout_whose_masks_follow_the_places_of_examples_is_refused(sharing):
    inner = dataclasses.replace(SMALL, backbone=MLP((4,), dropout=0.5), sharing=sharing)
    with pytest.raises(ValueError, match="dropout or other buffers"):
        Trainer().begin(PrivateSteps(inner, dp_delta=1e-4), DATA, RNG)


def test_a_gradient_does_not_depend_on_the_other_examples_by_a_bit():
    """In float32, where matrix products of other sizes or rows round otherwise."""
    data = federation((200,), dtype=torch.float32)
    wide = dataclasses.replace(SMALL, backbone=MLP((51,)))
    method = PrivateSteps(wide, dp_delta=1e-5, rate=0.2)
    message = method.broadcast(Trainer().begin(method, data, RNG).server_state, 0)
    model, client = wide.model(data.meta), data.clients[0]
    local, context = wide.start(message["method"], client, {})
    seen = {}
    for key in range(12):
        chosen = torch.nonzero(SecretStream(bytes([key] * 32)).uniform(200) < 0.2).flatten()
        for rows in private_steps._blocks(chosen, 16):
            given = model, local, client.train.tensors, context, rows
            for i, gradient in zip(rows.tolist(), method._each_gradient(*given), strict=True):
                assert torch.equal(seen.setdefault(i, gradient), gradient)
    assert len(seen) == 1 + sum(i >= 0 for i in seen) > 150
    assert not seen[-1].any()


def test_blocks_hold_every_chosen_example_once_in_its_own_row():
    chosen = torch.tensor([0, 3, 4, 8, 9, 12])
    blocks = list(private_steps._blocks(chosen, 4))
    held = torch.cat(blocks)
    assert sorted(held[held >= 0].tolist()) == chosen.tolist()
    assert all(k % 4 == row for rows in blocks for row, k in enumerate(rows.tolist()) if k >= 0)
    assert not list(private_steps._blocks(chosen[:0], 4))


def test_an_example_whose_gradient_is_not_finite_counts_as_none():
    broken = federation((7, 4, 12))
    broken.clients[2].train.tensors["x"][5] = math.inf
    message = METHOD.broadcast(Trainer().begin(METHOD, DATA, RNG).server_state, 0)
    update, _ = METHOD.local_update(message, broken.clients[2], {}, RNG)
    assert all(bool(x.isfinite().all()) for x in update.payload["delta"].values())


def test_a_delta_that_would_allow_to_publish_one_example_is_refused():
    with pytest.raises(ValueError, match="here up to 12"):
        Trainer().begin(dataclasses.replace(METHOD, dp_delta=0.1), DATA, RNG)
