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


def compiled(x, rows, active, block):
    lines = kernel.aligned(rows.numpy(), x.shape[1])
    found = np.empty((len(x), active), dtype=np.int32)
    kernel.winners(x, lines, rows.shape[1], block, found)
    return found


@settings(max_examples=60)
@given(
    st.integers(1, 150),
    st.integers(1, 40),
    st.integers(1, 900),
    st.sampled_from([0, 1, 2, 200, 2**20]),
    st.sampled_from([1, 2, 8, 64]),
    st.data(),
)
def test_bits_are_those_of_the_definition(n, d, dim, top, block, data):
    fan_in, active = data.draw(st.integers(1, d)), data.draw(st.integers(1, dim))
    x = np.random.default_rng(n).integers(-top, top + 1, (n, d)).astype(np.int32)
    rows = connections(dim, d, fan_in, seed=dim)
    assert (compiled(x, rows, active, block) == sorted_sums(x, rows, active)).all()


@pytest.mark.parametrize("n", [63, 64, 65, 511, 512, 513, 1100])
def test_tiles_do_not_matter(n):
    x = np.random.default_rng(0).integers(0, 17, (n, 64)).astype(np.int32)
    rows = connections(2048, 64, 19, seed=0)
    assert (compiled(x, rows, 32, 4) == sorted_sums(x, rows, 32)).all()


def test_sums_at_the_edge_of_a_type_do_not_wrap():
    rows = connections(300, 6, 6, seed=0)
    for edge in (5461, 5462, 2**28 - 1):  # six times these are 32766, 32772 and almost 2 ** 31
        x = np.full((2, 6), edge, dtype=np.int32)
        x[1] = -edge
        assert (compiled(x, rows, 3, 2) == [[0, 1, 2]] * 2).all()
        x[0, 0] = edge - 1
        assert (compiled(x, rows, 3, 2) == sorted_sums(x, rows, 3)).all()


def test_pixels_of_many_parties_hash_as_by_torch():
    x = np.random.default_rng(0).integers(0, 256, (100, 784)).astype(np.int32)
    rows = connections(20_000, 784, 19, seed=0)
    expected = two_phases(torch.from_numpy(x), rows, 17).numpy()
    assert (compiled(x, rows, 17, 16) == expected).all()
    assert (expected[:20] == sorted_sums(x[:20], rows, 17)).all()
