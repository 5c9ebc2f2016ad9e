import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core import check

numbers = st.floats() | st.integers(-9, 9).map(float)


def refuses(function, **values):
    try:
        function(**values)
    except ValueError:
        return True
    return False


@given(numbers)
def test_positive_means_finite_and_above_zero(x):
    assert refuses(check.positive, x=x) == (not 0 < x < math.inf)


@given(numbers)
def test_not_negative_means_finite_and_zero_or_more(x):
    assert refuses(check.not_negative, x=x) == (not 0 <= x < math.inf)


@given(numbers)
def test_a_rate_lies_between_zero_and_one(x):
    assert refuses(check.rate, x=x) == (not 0 <= x <= 1)
    assert refuses(lambda x: check.rate(x=x, below_one=True), x=x) == (not 0 <= x < 1)


@given(st.integers(), st.integers())
def test_at_least_is_at_least(bound, x):
    assert refuses(lambda x: check.at_least(bound, x=x), x=x) == (x < bound)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check.positive(a=1.0, lr=0.0), r"^lr must be a positive number, got 0\.0$"),
        (lambda: check.not_negative(mu=-0.5), r"^mu must be 0 or more, got -0\.5$"),
        (lambda: check.at_least(3, rounds=2), r"^rounds must be at least 3, got 2$"),
        (lambda: check.rate(beta=1.5), r"^beta must lie in \[0, 1\], got 1\.5$"),
        (lambda: check.rate(beta=1.0, below_one=True), r"^beta must lie in \[0, 1\), got 1\.0$"),
    ],
)
def test_the_error_names_the_value_and_the_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_every_value_is_checked():
    with pytest.raises(ValueError, match="c must"):
        check.positive(a=1.0, b=2.0, c=-3.0)


@given(st.sampled_from(["hinge", "Hinge", ""]))
def test_one_of_is_one_of(x):
    assert refuses(lambda x: check.one_of(("hinge", "huber"), x=x), x=x) == (x != "hinge")
