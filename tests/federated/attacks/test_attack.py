import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from fedbolic.core.rng import Rng
from fedbolic.federated import ALIE, GaussianNoise, SignFlip
from fedbolic.federated.attacks.alie import alie_deviations
from tests.federated.simple_method import assert_same

seeds = st.integers(0, 2**31)
ATTACKS = [SignFlip(2.0), GaussianNoise(0.5), ALIE(z=1.0), ALIE()]


def parts(num, seed, dtype=torch.float64):
    """Honest parts of some clients, with an integer among their leaves."""
    rng = np.random.default_rng(seed)
    return {
        3 * i: {
            "w": torch.as_tensor(rng.standard_normal((2, 3)), dtype=dtype),
            "b": {"c": torch.as_tensor(rng.standard_normal(()), dtype=dtype)},
            "count": torch.tensor(7),
        }
        for i in range(num)
    }


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_attack_keeps_ids_forms_integers_and_arguments(attack, dtype):
    honest = parts(3, 0, dtype)
    before = copy.deepcopy(honest)
    sent = attack.craft(honest, 10, Rng(0))
    for i, part in before.items():
        assert_same(honest[i], part)
    assert sent.keys() == honest.keys()
    for part in sent.values():
        assert part["count"] == 7
        assert part["w"].shape == (2, 3)
        assert part["w"].dtype == part["b"]["c"].dtype == dtype


@given(seeds, st.floats(0.1, 10))
def test_sign_flip_sends_the_scaled_negative(seed, scale):
    honest = parts(2, seed)
    sent = SignFlip(scale).craft(honest, 10, Rng(0))
    for i in honest:
        np.testing.assert_allclose(sent[i]["w"].numpy(), -scale * honest[i]["w"].numpy())


def test_noise_is_normal_and_independent_between_clients_and_exchanges():
    honest = {i: {"w": torch.full((4000,), 3.0, dtype=torch.float64)} for i in (0, 5)}
    now, later = (GaussianNoise(0.5).craft(honest, 10, Rng(0).at(r)) for r in (1, 2))
    noises = [(sent[i]["w"].numpy() - 3) / 0.5 for sent in (now, later) for i in (0, 5)]
    assert kstest(np.concatenate(noises), "norm").pvalue > 1e-3
    correlations = np.corrcoef(noises)[np.triu_indices(4, k=1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
    again = GaussianNoise(0.5).craft(honest, 10, Rng(0).at(1))
    assert_same(again[5], now[5])


@given(seeds, st.integers(2, 6), st.floats(0, 3))
def test_alie_sends_the_mean_minus_z_deviations_of_the_attackers(seed, num, z):
    honest = parts(num, seed)
    sent = ALIE(z).craft(honest, 20, Rng(0))
    for path in (("w",), ("b", "c")):
        leaves = [part[path[0]] if len(path) == 1 else part["b"]["c"] for part in honest.values()]
        values = np.stack([leaf.numpy() for leaf in leaves])
        expected = values.mean(axis=0) - z * values.std(axis=0)
        for part in sent.values():
            ours = part["w"] if len(path) == 1 else part["b"]["c"]
            np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_a_single_attacker_of_alie_sends_its_honest_part():
    honest = parts(1, 0)
    assert_same(ALIE(z=2.0).craft(honest, 10, Rng(0))[0], honest[0])


@pytest.mark.parametrize(("n", "m", "s"), [(50, 24, 2), (20, 6, 5), (20, 2, 9), (51, 12, 14)])
def test_deviations_of_alie_are_those_of_scipy(n, m, s):
    """With the s supporters that the attackers need, counted by hand."""
    assert alie_deviations(n, m) == pytest.approx(norm.ppf((n - m - s) / (n - m)), abs=1e-12)


def test_alie_without_z_takes_the_formula():
    honest = parts(6, 0)
    given_z = ALIE(z=alie_deviations(20, 6)).craft(honest, 20, Rng(0))
    assert_same(ALIE().craft(honest, 20, Rng(0))[3], given_z[3])


@pytest.mark.parametrize(("n", "m"), [(10, 6), (10, 10), (2, 1), (1, 1)])
def test_the_formula_of_alie_without_a_finite_value_is_refused(n, m):
    with pytest.raises(ValueError, match=f"no finite z for {m} attackers among {n} clients"):
        ALIE().craft(parts(m, 0), n, Rng(0))


@pytest.mark.parametrize(
    ("attack", "settings"),
    [(SignFlip, {"scale": 0.0}), (GaussianNoise, {"std": -1.0}), (ALIE, {"z": -0.1})],
)
def test_a_value_out_of_range_is_refused(attack, settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
        attack(**settings)
