"""Compiled code in hard cases: ties only, odd sizes, tiles, both widths, rows in order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flynn import bloom, kernel
from flynn.fly_hash import _pick, connections, two_phases
from tests.flynn.test_fly_hash import sorted_sums

pytestmark = pytest.mark.skipif(not kernel.FOUND, reason="needs numba")


def compiled(x, rows, active):
    lines = kernel.aligned(rows.numpy(), x.shape[1])
    found = np.empty((len(x), active), dtype=np.int32)
    kernel.winners(x, lines, rows.shape[1], found)
    return found


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
    # sums of five such values, or of their remaining bits, come close to the limits of the types
    rows = connections(300, 6, 5, seed=0)
    x = np.random.default_rng(0).integers(-edge, edge, (3, 6)).astype(np.int32)
    x[1], x[2] = -edge, edge
    expected = sorted_sums(x, rows, 3)
    assert (expected[0] != [0, 1, 2]).any()
    assert (expected[1:] == [0, 1, 2]).all()
    assert (compiled(x, rows, 3) == expected).all()


def test_examples_with_more_candidates_than_there_is_room_for_are_added_up_whole():
    # rounding erases the small numbers next to such a large one: all blocks are tied
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


@pytest.mark.parametrize("top", [9, 2**20])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_in_an_order_that_misleads_about_those_to_come(descending, top):
    x = np.random.default_rng(0).integers(0, top, (80, 30)).astype(np.int32)
    rows = connections(6000, 30, 5, seed=0)
    by_size = x[0][rows.numpy()].sum(axis=1).argsort(kind="stable")
    ordered = rows[torch.from_numpy(by_size[::-1].copy() if descending else by_size)]
    for active in (1, 40, 700):
        assert (compiled(x, ordered, active) == sorted_sums(x, ordered, active)).all()


def test_where_numba_is_told_to_compile_nothing_there_is_nothing_to_wait_for(monkeypatch):
    """With ``NUMBA_DISABLE_JIT`` its decorator returns the function."""
    assert isinstance(kernel.is_compiled(), bool)
    monkeypatch.setattr(kernel, "_winners", kernel._winners.py_func)
    assert kernel.is_compiled()


@given(st.integers(1, 40), st.integers(1, 300), st.data())
def test_picked_inputs_are_those_of_the_books_loop(d, dim, data):
    fan_in = data.draw(st.integers(1, d))
    drawn = np.random.default_rng(dim).integers(
        0, d - fan_in + 1 + np.arange(fan_in), (dim, fan_in)
    )
    picked = drawn.astype(np.int32)
    _pick(picked, d)
    for row, found in zip(drawn.tolist(), picked.tolist(), strict=True):
        taken = []
        for k, number in enumerate(row):
            taken.append(d - fan_in + k if number in taken else number)
        assert found == taken


@given(
    st.integers(0, 50),
    st.integers(1, 5),
    st.integers(1, 60),
    st.sampled_from([0.0, 1e-300, 0.1, 0.8, 0.999, 1 - 1e-12]),
    st.sampled_from([0, 1, 40, 10**6]),
)
def test_scores_are_those_of_torch_to_the_bit(n, num_classes, active, decay, top):
    rng = np.random.default_rng(n)
    counts = torch.from_numpy(rng.integers(0, top + 1, (num_classes, 90)))
    winners = torch.from_numpy(rng.permuted(np.tile(np.arange(90), (n, 1)), axis=1)[:, :active])
    winners = winners.int()
    found = bloom.log_scores(counts, winners, decay)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "FOUND", False)
        assert torch.equal(found, bloom.log_scores(counts, winners, decay))
    assert torch.equal(found, bloom.log_scores(counts.double(), winners, decay))


@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.parametrize("strange", [9, -1])
def test_hashes_with_ones_where_no_count_is_are_refused(compiler, strange, monkeypatch):
    monkeypatch.setattr(kernel, "FOUND", compiler)
    with pytest.raises(ValueError, match=f"a one at {strange}, but counts are at 0 .. 8"):
        bloom.log_scores(torch.zeros(2, 9).long(), torch.tensor([[3, strange]]).int(), 0.5)
