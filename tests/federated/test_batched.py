"""All clients at once give what one after another give."""

import pytest

from fedbolic.federated import Batched, Schedule, Stepped
from tests.federated.boring import RNG, SIZES, SMALL, assert_near, federation, train

TOLERANCE = 1e-10


def assert_engines_agree(method, data, rounds=3, **settings):
    """The runs of Sequential and Batched hold the same state, memories and rows."""
    (*_, plain), rows = train(method, data, RNG, **settings)
    (*_, fast), new = train(method, data, RNG, engine=Batched(), **settings)
    assert plain.round == fast.round
    assert_near(fast.state, plain.state, TOLERANCE)
    assert_near(fast.memories, plain.memories, TOLERANCE)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=TOLERANCE)


def test_fedavg_is_the_same():
    assert isinstance(SMALL, Stepped)
    assert SMALL.schedule == Schedule(1, 4)
    assert_engines_agree(SMALL, federation(SIZES))
