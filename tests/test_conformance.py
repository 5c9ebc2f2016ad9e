"""Every method against the algorithm of its paper, written out in plain PyTorch."""

import pytest

from tests.conformance.loop import BOUND
from tests.conformance.table import LOOPS


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("name", LOOPS)
def test_four_rounds_are_those_of_the_paper(name, rate):
    gaps = LOOPS[name].gaps(rate)
    assert max(gaps.values()) <= BOUND, gaps


@pytest.mark.parametrize("name", LOOPS)
def test_every_other_setting_is_another_algorithm(name):
    assert LOOPS[name].without_effect() == list(LOOPS[name].inert)
