"""Rounded normal draws against their exact distribution, word by word, and mpmath."""

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

from fedbolic.federated.noise import rounded_gaussian as code
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.rounded_gaussian import rounded_gaussian

SCALES = [1e-3, 0.3, 1.0, 7.5, 1000.1, 2.0**20 / 3, 2.0**28]


class Given(SecretStream):
    """A stream of given words, each of which is extended by the same words."""

    def __init__(self, words, more=0):
        super().__init__(bytes(32))
        object.__setattr__(self, "given", words)  # the base is frozen
        object.__setattr__(self, "more", more)

    def words(self, size):
        return np.array(self.given, dtype=np.uint64)

    def at(self, *names):
        return Given([self.more] * 4)


def drawn(tails, scale, *, more=0, negative=False):
    words = [2 * tail + negative for tail in tails]
    return rounded_gaussian(Given(words, more), len(words), scale=scale).tolist()


def tail_of(k, scale):
    """2 ** 64 times the probability that a normal number is above k + 1/2 over the scale."""
    return mpmath.mpf(2) ** 64 * mpmath.erfc((k + mpmath.mpf(0.5)) / scale / mpmath.sqrt(2)) / 2


@pytest.mark.parametrize("scale", SCALES)
def test_every_integer_has_its_exact_number_of_words(scale):
    """The words of 63 bits that give more than k are those below the tail of k + 1/2.

    Around every bound: the word below gives more, the word above does not, and the word that holds
    the bound gives both, depending on its further bits. So no probability is wrong by 2 ** -64.
    """
    with mpmath.workdps(60):
        for k in sorted({int(x * scale) for x in (0, 0.01, 0.5, 1, 2, 3, 5, 8.5)}):
            bound = tail_of(k, scale)
            whole = int(bound)
            if whole > 0:
                assert drawn([whole - 1], scale)[0] > k
            assert drawn([whole + 1], scale)[0] <= k
            assert drawn([whole], scale, more=0)[0] > k or bound < 1e-60
            assert drawn([whole], scale, more=2**64 - 1)[0] <= k


@pytest.mark.parametrize("scale", SCALES)
def test_a_draw_is_the_rounded_quantile(scale):
    tails = (np.random.default_rng(0).integers(1, 2**63, 50) >> np.arange(50)).tolist()
    with mpmath.workdps(60):
        for tail, found in zip(tails, drawn(tails, scale, more=2**63), strict=True):
            assert tail_of(found, scale) <= tail + 1
            assert found == 0 or tail_of(found - 1, scale) >= tail


def test_the_smallest_tail_is_extended():
    """A tail of zero has no bound of its quantile: its further bits decide."""
    for more in (0, 1, 2**63, 2**64 - 1):
        (found,) = drawn([0], 1000.0, more=more)
        whole = int.from_bytes(more.to_bytes(8, "little") * 4, "big")
        with mpmath.workdps(200):
            for k, beyond in ((found, True), (found - 1, False)):
                assert (whole + 0.5 >= tail_of(k, 1000.0) * 2**256) is beyond
            assert 9000 < found < 40_000


def test_the_last_bit_is_the_sign():
    tails = np.random.default_rng(1).integers(0, 2**63, 100).tolist()
    positive, negative = (drawn(tails, 30.5, negative=sign) for sign in (False, True))
    assert [-x for x in positive] == negative
    assert min(positive) >= 0


def test_quantiles_of_scipy_are_within_the_assumed_error():
    tails = 2.0 ** -np.linspace(1, 64, 2000)
    with mpmath.workdps(40):
        for tail, found in zip(tails.tolist(), ndtri(tails).tolist(), strict=True):
            slope = mpmath.npdf(found)
            gap = (mpmath.erfc(-mpmath.mpf(found) / mpmath.sqrt(2)) / 2 - tail) / slope
            assert abs(gap) < code._ERROR / 8 * (1 - found)


def test_small_distributions_are_exact():
    """Probabilities of a scale of 1, counted over all prefixes of 12 bits of a tail."""
    heads = np.arange(2**12)
    found = np.array(drawn((heads << 51).tolist(), 1.0))
    with mpmath.workdps(30):
        for k in range(5):
            exact = (tail_of(k - 1, 1.0) if k else mpmath.mpf(2) ** 63) - tail_of(k, 1.0)
            assert abs((found == k).sum() - float(exact / 2**51)) <= 1


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**28 + 1, float("nan")])
def test_a_scale_out_of_range_is_refused(scale):
    with pytest.raises(ValueError, match="scale must lie in"):
        rounded_gaussian(SecretStream(bytes(32)), 1, scale=scale)


def test_draws_repeat_and_their_number_is_that_asked_for():
    stream = SecretStream(bytes(range(32)))
    first = rounded_gaussian(stream, 1000, scale=12345.6)
    assert first.tolist() == rounded_gaussian(stream, 1000, scale=12345.6).tolist()
    assert len(set(first.tolist())) > 900
    assert rounded_gaussian(stream, 0, scale=1.0).tolist() == []
