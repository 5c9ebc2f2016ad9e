"""The compiled phases where they are hard: nothing but ties, odd sizes, tiles, both widths."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flynn import kernel
from flynn.fly_hash import connections, two_phases
from tests.flynn.test_fly_hash import sorted_sums

pytestmark = pytest.mark.skipif(not kernel.FOUND, reason="needs numba")


def compiled(x, rows, active):
    lines = kernel.aligned(rows.numpy(), x.shape[1])
    found = np.empty((len(x), active), dtype=np.int32)
    kernel.winners(x, lines, rows.shape[1], found)
    return found


@settings(max_examples=60)
@given(
    st.integers(1, 150),
    st.integers(1, 40),
    st.integers(1, 900),
    st.sampled_from([0, 1, 2, 200, 2**20]),
    st.data(),
)
def test_bits_are_those_of_the_definition(n, d, dim, top, data):
    fan_in, active = data.draw(st.integers(1, d)), data.draw(st.integers(1, dim))
    x = np.random.default_rng(n).integers(-top, top + 1, (n, d)).astype(np.int32)
    rows = connections(dim, d, fan_in, seed=dim)
    assert (compiled(x, rows, active) == sorted_sums(x, rows, active)).all()


@pytest.mark.parametrize("n", [63, 64, 65, 511, 512, 513, 1100])
def test_tiles_do_not_matter(n):
    x = np.random.default_rng(0).integers(0, 17, (n, 64)).astype(np.int32)
    rows = connections(2048, 64, 19, seed=0)
    assert (compiled(x, rows, 32) == sorted_sums(x, rows, 32)).all()


@pytest.mark.parametrize("edge", [6528, 6553, 6554, 13_106, 13_107, 2**28 - 1])
def test_sums_at_the_edge_of_a_type_do_not_wrap(edge):
    # five times these, or times what is left of their bits, come close to the ends of the types
    rows = connections(300, 6, 5, seed=0)
    x = np.random.default_rng(0).integers(-edge, edge, (3, 6)).astype(np.int32)
    x[1], x[2] = -edge, edge
    expected = sorted_sums(x, rows, 3)
    assert (expected[0] != [0, 1, 2]).any()
    assert (expected[1:] == [0, 1, 2]).all()
    assert (compiled(x, rows, 3) == expected).all()


def test_examples_with_more_candidates_than_there_is_room_for_are_added_up_whole():
    # of numbers this far apart rounding leaves nothing of the small ones: all blocks are tied
    x = np.random.default_rng(0).integers(-9, 10, (70, 40)).astype(np.int32)
    x[:, 0] = 2**24
    rows = connections(4000, 40, 7, seed=0)
    without = rows[(rows != 0).all(dim=1)][:2000]
    for of in (rows, without):
        assert (compiled(x, of, 5) == sorted_sums(x, of, 5)).all()


def test_pixels_of_many_parties_hash_as_by_torch():
    x = np.random.default_rng(0).integers(0, 256, (100, 784)).astype(np.int32)
    rows = connections(20_000, 784, 19, seed=0)
    expected = two_phases(torch.from_numpy(x), rows, 17).numpy()
    assert (compiled(x, rows, 17) == expected).all()
    assert (expected[:20] == sorted_sums(x[:20], rows, 17)).all()
