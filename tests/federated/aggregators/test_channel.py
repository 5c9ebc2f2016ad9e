import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.federated import Clip, Update
from tests.federated.simple_method import assert_same, federation

CLIENT = federation().clients[0]
seeds = st.integers(0, 2**31)


def update(seed, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    delta = {
        "a": torch.randn(3, 2, generator=g, dtype=torch.float64).to(dtype),
        "b": {"c": torch.randn(4, generator=g, dtype=torch.float64).to(dtype)},
    }
    buffers = {"count": torch.tensor(7), "mean": 1e3 * torch.randn(2, generator=g)}
    return Update({"delta": delta, "buffers": buffers}, 5.0, {"train/loss": 1.0})


def vector(delta):
    return np.concatenate([delta["a"].numpy().ravel(), delta["b"]["c"].numpy()])


@given(seeds, st.floats(1e-3, 10), st.sampled_from([torch.float32, torch.float64]))
def test_a_long_update_is_scaled_to_the_bound_and_a_short_one_passes(seed, bound, dtype):
    sent = update(seed, dtype)
    arrived = Clip(bound).send(sent, CLIENT, Rng(0))
    old, new = (vector(u.payload["delta"]).astype(np.float64) for u in (sent, arrived))
    norm = np.linalg.norm(old)
    if norm <= bound:
        assert arrived is sent
    else:
        assert np.linalg.norm(new) == pytest.approx(bound, rel=1e-6)
        np.testing.assert_allclose(new, old * bound / norm, rtol=1e-6)
        assert arrived.metrics["clip/factor"] == pytest.approx(bound / norm)
    assert_same(arrived.payload["buffers"], sent.payload["buffers"])
    assert arrived.weight == sent.weight
    assert arrived.metrics["train/loss"] == 1.0
    assert {n: t.dtype for n, t in arrived.payload["delta"].items() if n == "a"} == {"a": dtype}


@given(seeds)
def test_the_update_that_was_sent_is_untouched(seed):
    sent, twin = update(seed), update(seed)
    Clip(0.1).send(sent, CLIENT, Rng(0))
    assert_same(sent.payload, twin.payload)
    assert sent.metrics == twin.metrics


def test_a_part_may_be_a_single_tensor():
    sent = Update({"gram": torch.tensor([[3.0, 0.0], [0.0, 4.0]])})
    arrived = Clip(1.0, part="gram").send(sent, CLIENT, Rng(0))
    torch.testing.assert_close(arrived.payload["gram"], sent.payload["gram"] / 5)


def test_a_payload_without_the_part_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'gram' of a payload.*\['buffers', 'delta'\]"):
        Clip(1.0, part="gram").send(update(0), CLIENT, Rng(0))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bound_that_is_not_positive_is_refused(bound):
    with pytest.raises(ValueError, match="bound must be a positive number"):
        Clip(bound)
