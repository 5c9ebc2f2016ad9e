"""Signs and ON-OFF channels compared with numpy's integer sums on hand-made features."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flynn import FlyHash, FlyNNClassifier, kernel
from flynn.channels import channel_signs, width
from flynn.fly_hash import connections, fixed_point, fly_hash
from tests.flynn.test_fly_hash import by_hand, sorted_sums

seeds = st.integers(0, 2**31)
sizes = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 300))
kinds = st.sampled_from(["signed", "on-off"])


def spread(x, kind, seed):
    """The definition: features times their signs, or features followed by their negatives."""
    x = np.asarray(x, dtype=object)
    if kind == "on-off":
        return np.concatenate([x, -x], axis=1)
    return x * channel_signs("signed", x.shape[1], seed).numpy()


@given(sizes, seeds, kinds, st.booleans(), st.data())
def test_bits_are_those_of_the_definition_by_every_path(size, seed, kind, compiled, data):
    n, d, dim = size
    values = width(kind, d)
    fan_in, active = data.draw(st.integers(1, values)), data.draw(st.integers(1, dim))
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))
    rows, signs = connections(dim, values, fan_in, seed), channel_signs(kind, d, seed)
    expected = sorted_sums(spread(by_hand(x, fan_in), kind, seed), rows, active)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "FOUND", compiled and kernel.FOUND)
        assert (fly_hash(x, rows, active, signs=signs).numpy() == expected).all()


@pytest.mark.skipif(not kernel.FOUND, reason="needs numba")
@pytest.mark.parametrize("top", [1, 6553, 6554, 13_107, 2**20, 2**26 - 1])
@pytest.mark.parametrize("n", [1, 64, 130])
def test_rounding_of_negatives_loses_no_winner(top, n):
    # shifting drops different bits of a value and of its negative
    d, fan_in = 9, 5
    x = np.random.default_rng(n).integers(-top, top + 1, (n, d)).astype(np.int32)
    rows, found = connections(700, 2 * d, fan_in, seed=n), np.empty((n, 11), dtype=np.int32)
    signs = np.repeat(np.array([[1], [-1]], dtype=np.int32), d, axis=1)
    kernel.winners(x, kernel.aligned(rows.numpy(), 2 * d), fan_in, found, signs)
    assert (found == sorted_sums(spread(x, "on-off", 0), rows, 11)).all()


def test_bytes_at_the_end_of_their_type_have_negatives():
    x = torch.tensor([[-128, 5, 127, -3]], dtype=torch.int8)
    rows = connections(60, 8, 2, seed=0)
    expected = sorted_sums(spread(fixed_point(x, 2), "on-off", 0), rows, 4)
    found = fly_hash(x, rows, 4, signs=channel_signs("on-off", 4, 0))
    assert (found.numpy() == expected).all()


def test_plain_is_blind_to_what_is_added_to_all_features_and_the_others_are_not():
    x = torch.from_numpy(np.random.default_rng(0).integers(-9, 10, (50, 12))).double()
    for kind, blind in (("plain", True), ("signed", False), ("on-off", False)):
        rows = connections(400, width(kind, 12), 3, seed=1)
        signs = channel_signs(kind, 12, 1)
        one, other = (fly_hash(of, rows, 20, signs=signs) for of in (x, x + 100))
        assert (one == other).all(dim=1).float().mean() == float(blind)


def test_classes_that_differ_by_a_constant_are_one_to_plain_alone():
    X = np.random.default_rng(0).integers(-9, 10, (80, 10)).astype(float)
    X, y = np.concatenate([X, X + 1000]), np.repeat([0, 1], 80)
    for kind, found in (("plain", {0}), ("signed", {0, 1}), ("on-off", {0, 1})):
        assert set(FlyNNClassifier(channels=kind).fit(X, y).predict(X)) == found


def test_signs_are_fair_and_have_a_stream_of_their_own():
    many = channel_signs("signed", 4000, seed=5).flatten()
    assert set(many.tolist()) == {-1, 1}
    assert abs(int(many.sum())) < 4 * 4000**0.5  # four standard deviations
    assert torch.equal(many[:10], channel_signs("signed", 10, seed=5).flatten())
    assert not torch.equal(many, channel_signs("signed", 4000, seed=6).flatten())
    # the words of the hash that draw the connections are different
    words = np.random.Philox(key=5).random_raw(4000)
    for bit in (0, 63):
        signs = (words >> np.uint64(bit) & np.uint64(1)).astype(int) * 2 - 1
        assert 0.4 < (signs == many.numpy()).mean() < 0.6


def test_rows_past_all_channels_are_refused():
    rows, signs = connections(50, 7, 2, seed=0), channel_signs("on-off", 3, 0)
    with pytest.raises(ValueError, match="feature 6, but the examples have 3 features in 2 chan"):
        fly_hash(torch.zeros(2, 3), rows, 3, signs=signs)


@pytest.mark.parametrize("kind", ["signed", "on-off"])
def test_estimators_are_the_plain_ones_on_features_made_by_hand(kind):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 6)), rng.integers(0, 3, 90)
    given = {"dim": 200, "fan_in": 2, "active": 9, "seed": 4}
    made = spread(X, kind, 4).astype(float)
    model = FlyNNClassifier(channels=kind, scaling=None, **given).fit(X[:60], y[:60])
    plain = FlyNNClassifier(channels="plain", scaling=None, **given).fit(made[:60], y[:60])
    assert (model.counts_ == plain.counts_).all()
    assert (model.predict(X[60:]) == plain.predict(made[60:])).all()
    hashes = [
        FlyHash(channels=c, **given).fit_transform(x) for c, x in ((kind, X), ("plain", made))
    ]
    assert (hashes[0] != hashes[1]).nnz == 0


def test_the_estimators_lift_is_over_twice_the_features_with_on_off():
    X = np.random.default_rng(0).normal(size=(20, 15))
    found = {kind: FlyHash(channels=kind).fit(X).rows_ for kind in ("plain", "signed", "on-off")}
    assert {kind: rows.shape for kind, rows in found.items()} == {
        "plain": (256 * 15, 2),
        "signed": (256 * 15, 2),
        "on-off": (256 * 15, 3),
    }
    assert found["on-off"].max() == 29
