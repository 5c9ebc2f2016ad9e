"""Banded noise against dense matrices and the optimum of JAX-Privacy, its ledger, and cohorts."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from fedbolic.federated import ClientPrivacy, Cohort
from fedbolic.federated.accounting.banded_noise import DIGITS, add_round, banded_coefficients
from fedbolic.federated.accounting.gaussian import gaussian_epsilon
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.engines.sequential import Sequential
from tests.federated.simple_method import (
    SMALL,
    federation,
    train,
)

OPTIMA = {
    (30, 5): 2.284169,
    (128, 128): 2.397178,
    (128, 32): 2.565281,
    (128, 8): 3.432825,
    (512, 64): 3.304128,
}
"""Root of the mean squared error of all sums times the norm of a column, by rounds and bands: what
`toeplitz.optimize_banded_toeplitz` of jax-privacy 2.0.0 finds in the strategy `banded-toeplitz` of
its `examples/dpmf_strategy_optimization.py` (whose sensitivity is that of one participation)."""

PAGE = Path(__file__).parents[3] / "fedbolic/federated/PRIVACY.md"
DATA = federation((7, 4, 12, 5, 6))
CYCLIC = Cohort(0.4, sampling="cyclic")  # cohorts of 2, 2 and 1 clients
BANDED = ClientPrivacy(dp_delta=1e-2, noise_multiplier=1.0, clip_norm=0.1, correlation="banded")


def dense(coefficients, rounds):
    return toeplitz(np.pad(coefficients, (0, rounds - len(coefficients))), np.zeros(rounds))


@pytest.mark.parametrize(("rounds", "bands"), OPTIMA)
def test_the_error_is_that_of_jax_privacy(rounds, bands):
    coefficients = banded_coefficients(rounds, bands)
    matrix = dense(coefficients, rounds)
    sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
    error = (np.square(sums).sum() / rounds) ** 0.5 * np.linalg.norm(matrix[:, 0])
    assert error == pytest.approx(OPTIMA[rounds, bands], rel=1e-3)  # the goal is 1 %


def test_the_page_states_the_errors_of_30_rounds_in_6_epochs():
    """At equal epsilon the noise grows with the root of the epochs; t rounds have variance t."""
    banded, alone = 6**0.5 * OPTIMA[30, 5], (6 * (30 + 1) / 2) ** 0.5
    stated = f"are wrong by {banded:.1f}, not {alone:.1f} as with independent noise"
    assert stated in " ".join(PAGE.read_text().split())


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_no_client_that_waits_changes_more_than_the_ledger_counts(bands):
    """All choices of rounds that are at least as far apart as there are bands, any directions."""
    rounds = 7
    coefficients = banded_coefficients(rounds, bands)
    matrix, most = dense(coefficients, rounds) / np.linalg.norm(coefficients), 0.0
    for chosen in itertools.product([0, 1], repeat=rounds):
        places = np.flatnonzero(chosen)
        if len(places) and np.diff(places).min(initial=rounds) >= bands:
            columns = matrix[:, places]
            # any vectors of norm 1: the sum of all products, which are those of the columns
            most = max(most, float(np.abs(columns.T @ columns).sum()))
    ledger = PrivacyLedger("once", "add/remove", 1 / bands, 2.0, 1e-5, rounds, correlation="banded")
    counted = -(-rounds // bands)
    assert most <= counted + 1e-12
    assert ledger.epsilon(rounds) == gaussian_epsilon(1e-5, 2.0, counted)
    assert most > counted - 1  # the last column may be cut off


def noise_of(coefficients, own):
    nodes, found = {}, []
    for z in own:
        nodes, noise = add_round(dict(reversed(nodes.items())), z, coefficients)  # by any order
        assert len(nodes) < max(2, len(coefficients))
        found.append(noise)
    return torch.stack(found)


def test_the_noise_is_that_of_the_inverse_matrix():
    coefficients = banded_coefficients(12, 4)
    own = torch.from_numpy(np.random.default_rng(0).integers(-(2**28), 2**28, (12, 3)))
    expected = np.linalg.inv(dense(coefficients, 12)) @ own.numpy() / 2**DIGITS
    np.testing.assert_allclose(noise_of(coefficients, own).numpy(), expected, rtol=0, atol=2)


def test_releases_follow_from_the_noisy_product_alone():
    """Other sums and noise with the same product give the same releases, to the last digit."""
    coefficients = banded_coefficients(12, 4)
    draws = np.random.default_rng(1)
    sums, others = (torch.from_numpy(draws.integers(-999, 999, (12, 3))) for _ in range(2))
    own = torch.from_numpy(draws.integers(-(2**20), 2**20, (12, 3)))
    whole = torch.from_numpy((dense(coefficients, 12) * 2**DIGITS).astype(np.int64))
    moved = own + whole @ (sums - others)
    first = sums + noise_of(coefficients, own)
    assert torch.equal(first, others + noise_of(coefficients, moved))


def test_every_client_waits_for_as_many_rounds_as_there_are_bands(monkeypatch):
    found, run = [], Sequential.run

    def watched(self, exchange):
        found.append(set(exchange.messages))
        return run(self, exchange)

    monkeypatch.setattr(Sequential, "run", watched)
    privacy = dataclasses.replace(BANDED, noise_multiplier=50.0)
    train(dataclasses.replace(SMALL, rounds=8), DATA, privacy=privacy, cohort=CYCLIC)
    assert found[:5] == found[3:]
    assert sorted(itertools.chain(*found[:3])) == [0, 1, 2, 3, 4]


def test_more_bands_than_rounds_are_refused():
    with pytest.raises(ValueError, match="bands must be at most 3"):
        banded_coefficients(3, 4)
