from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.federated import Cohort

decimals = st.integers(1, 1000).map(lambda n: n / 1000)


@given(decimals, st.integers(1, 300), st.integers(0, 2**31))
@example(0.07, 100, 0)  # 0.07 * 100 is 7.000000000000001
def test_a_sample_is_a_sorted_set_of_the_rounded_up_share(rate, n, seed):
    ids = range(10, 10 + n)
    sample = Cohort(rate).sample(ids, Rng(seed))
    assert len(sample) == ceil(Fraction(str(rate)) * n)
    assert list(sample) == sorted(set(sample))
    assert set(sample) <= set(ids)
    assert sample == Cohort(rate).sample(ids, Rng(seed))


@pytest.mark.parametrize("rate", [1e-3, 1e-9, 1e-12])
def test_a_sample_is_never_empty(rate):
    assert len(Cohort(rate).sample(range(20), Rng(0))) == 1


def test_every_client_is_drawn_equally_often():
    hits = [0] * 10
    for seed in range(2000):
        for i in Cohort(0.3).sample(range(10), Rng(seed)):
            hits[i] += 1
    assert all(abs(h / 2000 - 0.3) < 5 * (0.3 * 0.7 / 2000) ** 0.5 for h in hits)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(ValueError, match="rate must"):
        Cohort(rate)


@given(decimals, st.integers(1, 60), st.integers(0, 2**31))
def test_each_client_takes_part_once_in_an_epoch(rate, n, seed):
    cohort, rng = Cohort(rate, sampling="once"), Rng(seed)
    rounds = [cohort.sample(range(n), rng, place=i) for i in range(cohort.period(n))]
    assert sorted(sum(rounds, ())) == list(range(n))
    assert all(list(members) == sorted(members) for members in rounds)
    sizes = [len(members) for members in rounds]
    assert set(sizes[:-1]) <= {cohort.expected_size(n)}
    assert 0 < sizes[-1] <= cohort.expected_size(n)


def test_epochs_have_different_orders_and_other_samplings_have_none():
    cohort = Cohort(0.1, sampling="once")
    assert cohort.sample(range(50), Rng(0)) != cohort.sample(range(50), Rng(1))
    assert Cohort(0.1).period(50) == Cohort(0.1, sampling="poisson").period(50) == 1
