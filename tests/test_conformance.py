"""Every method against the algorithm of its paper, written out in plain PyTorch."""

import pytest

from tests.conformance.table import LOOPS

BOUND = 1e-10
"""Far above float64's rounding on any processor, far below any other algorithm's difference."""


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("name", LOOPS)
def test_four_rounds_are_those_of_the_paper(name, rate):
    gaps = LOOPS[name].gaps(rate)
    assert max(gaps.values()) <= BOUND, gaps
