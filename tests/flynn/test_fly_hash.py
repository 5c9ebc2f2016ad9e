"""The hash compared with numpy's sorted integer sums: every code path gives the same bits."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flynn import kernel
from flynn.fly_hash import connections, fixed_point, fly_hash, two_phases

seeds = st.integers(0, 2**31)


def sorted_sums(x, rows, active):
    """The definition: int64 sums of all rows, sorted by value and then by index."""
    x, rows = np.asarray(x, dtype=np.int64), rows.numpy()
    sums = x[:, rows].sum(axis=2)
    order = np.argsort(-sums, axis=1, kind="stable")[:, :active]
    return np.sort(order, axis=1)


@given(st.integers(1, 40), st.integers(1, 300), st.data())
def test_rows_are_subsets_of_the_asked_size(d, dim, data):
    fan_in, seed = data.draw(st.integers(1, d)), data.draw(seeds)
    rows = connections(dim, d, fan_in, seed)
    assert rows.shape == (dim, fan_in)
    assert rows.min() >= 0
    assert rows.max() < d
    assert (rows.diff(dim=1) > 0).all()


def test_all_subsets_are_equally_likely():
    rows = connections(60_000, 5, 3, seed=1)
    _, found = rows.unique(dim=0, return_counts=True)
    assert len(found) == 10
    expected = len(rows) / 10
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < 27.9  # the 0.1 % point for 9 degrees of freedom


def test_rows_follow_from_the_seed_alone_and_more_rows_do_not_change_the_first():
    rows = connections(5000, 20, 4, seed=3)
    connections.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    again = connections(5000, 20, 4, seed=3)
    torch.set_num_threads(threads)
    assert torch.equal(rows, again)
    assert torch.equal(connections(100, 20, 4, seed=3), rows[:100])
    assert not torch.equal(connections(5000, 20, 4, seed=4), rows)


whole_numbers = st.sampled_from([1, 3, 255, 40_000])


def draw(n, d, top, seed):
    return torch.from_numpy(np.random.default_rng(seed).integers(-top, top + 1, (n, d)))


sizes = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 400))


@given(sizes, whole_numbers, seeds, st.data())
def test_bits_of_whole_numbers_are_those_of_the_definition(size, top, seed, data):
    n, d, dim = size
    fan_in, active = data.draw(st.integers(1, d)), data.draw(st.integers(1, dim))
    x, rows = draw(n, d, top, seed), connections(dim, d, fan_in, seed)
    expected = sorted_sums(x, rows, active)
    for dtype in (torch.float64, torch.float32, torch.int64):
        assert (fly_hash(x.to(dtype), rows, active).numpy() == expected).all()
    assert (two_phases(fixed_point(x, fan_in), rows, active).numpy() == expected).all()


@given(sizes, seeds, st.integers(-60, 60), st.data())
def test_bits_of_real_numbers_are_those_of_the_definition(size, seed, exponent, data):
    n, d, dim = size
    fan_in, active = data.draw(st.integers(1, d)), data.draw(st.integers(1, dim))
    normal = np.random.default_rng(seed).standard_normal((n, d))
    x, rows = torch.from_numpy(normal * 2.0**exponent), connections(dim, d, fan_in, seed)
    expected = sorted_sums(by_hand(x, fan_in), rows, active)
    assert (fly_hash(x, rows, active).numpy() == expected).all()
    assert (two_phases(fixed_point(x, fan_in), rows, active).numpy() == expected).all()
    scaled = x * 2.0 ** (-exponent)
    assert torch.equal(fly_hash(scaled, rows, active), fly_hash(x, rows, active))


def by_hand(x, fan_in):
    """Integers by the largest power-of-two scale of a row for which sums stay within 2**30."""
    bound = 2 ** (30 - (fan_in - 1).bit_length())
    whole = []
    for row in x.tolist():
        largest, scale = max(abs(Fraction(v)) for v in row), Fraction(1)
        while largest * scale >= bound:
            scale /= 2
        while 0 < largest * scale < Fraction(bound, 2):
            scale *= 2
        whole.append([round(Fraction(v) * scale) for v in row])
    return whole


@given(sizes, seeds)
def test_examples_are_scaled_by_powers_of_two_of_their_own(size, seed):
    n, d, _ = size
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))
    found = fixed_point(x, d).double()
    shift = torch.tensor(by_hand(x, d)).double() / found
    assert (shift.log2() == shift.log2().round())[found != 0].all()
    for ratio, row in zip(shift, found, strict=True):
        assert len(ratio[row != 0].unique()) <= 1
        assert not (row != 0).any() or (row % 2 != 0).any()


def test_extreme_sizes_keep_their_order():
    rows = connections(64, 6, 2, seed=0)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]).double()
    for factor in (2.0**-1070, 2.0**1000, 1.0):
        assert torch.equal(fly_hash(x * factor, rows, 5), fly_hash(x, rows, 5))


def test_batches_order_and_threads_do_not_matter():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5000, 12)))
    rows = connections(777, 12, 4, seed=2)
    whole = fly_hash(x, rows, 9)
    parts = torch.cat([fly_hash(part, rows, 9) for part in x.split(617)])
    assert torch.equal(whole, parts)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(fly_hash(x[order], rows, 9), whole[order])
    columns = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    places = torch.empty(12, dtype=torch.int32)
    places[columns] = torch.arange(12, dtype=torch.int32)
    assert torch.equal(fly_hash(x[:, columns], places[rows.long()], 9), whole)


def test_examples_are_left_as_they_were():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((9, 12)))
    before = x.clone()
    fly_hash(x, connections(77, 12, 4, seed=2), 9)
    assert torch.equal(x, before)


def test_nothing_but_ties_gives_the_first_rows():
    rows = connections(50, 4, 2, seed=0)
    assert fly_hash(torch.zeros(2, 4), rows, 3).tolist() == [[0, 1, 2]] * 2
    assert fly_hash(torch.ones(2, 4), rows, 3).tolist() == [[0, 1, 2]] * 2


def test_no_example_gives_no_hash():
    assert fly_hash(torch.zeros(0, 4), connections(50, 4, 2, seed=0), 3).shape == (0, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused_by_its_example(value):
    x = torch.zeros(3, 4)
    x[1, 2] = value
    with pytest.raises(ValueError, match="must be finite, got NaN or infinity in example 1"):
        fly_hash(x, connections(50, 4, 2, seed=0), 3)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="fan_in is 5, but there are 4 features"):
        connections(10, 4, 5, seed=0)
    with pytest.raises(ValueError, match="fan_in must be at least 1, got 0"):
        connections(10, 4, 0, seed=0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        connections(10, 4, 2, seed=-1)
    for active in (0, 51):
        with pytest.raises(ValueError, match=rf"active must lie in 1 .. dim = 50, got {active}"):
            fly_hash(torch.zeros(1, 4), connections(50, 4, 2, seed=0), active)


@pytest.mark.parametrize("compiler", [kernel.FOUND, False])
def test_examples_without_the_features_that_rows_add_up_are_refused(compiler, monkeypatch):
    monkeypatch.setattr(kernel, "FOUND", compiler)
    with pytest.raises(ValueError, match="rows add up feature 4, but the examples have 3 features"):
        fly_hash(torch.zeros(2, 3), connections(50, 5, 2, seed=0), 3)
    with pytest.raises(ValueError, match="rows add up feature -1, but the examples have 5"):
        fly_hash(torch.zeros(2, 5), connections(50, 5, 2, seed=0) - 1, 3)


def test_without_a_compiler_bits_are_the_same(monkeypatch):
    monkeypatch.setattr("flynn.fly_hash._UNCOMPILED", 0)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((300, 12)))
    rows = connections(777, 12, 4, seed=2)
    expected = fly_hash(x, rows, 9)
    monkeypatch.setattr(kernel, "FOUND", False)
    assert torch.equal(fly_hash(x, rows, 9), expected)
    assert fly_hash(x[:0], rows, 9).shape == (0, 9)


@pytest.mark.skipif(not kernel.FOUND, reason="needs numba")
def test_nothing_is_compiled_for_a_first_hash_of_little_work(monkeypatch):
    x, rows = torch.arange(60.0).view(10, 6), connections(50, 6, 2, seed=0)
    whole, asked = x.numpy().astype(int), []
    monkeypatch.setattr(kernel, "is_compiled", lambda: False)
    monkeypatch.setattr("flynn.fly_hash._added", [0])
    monkeypatch.setattr("flynn.fly_hash._UNCOMPILED", 2 * 10 * 50 * 2)  # the work of two hashes
    monkeypatch.setattr(
        kernel, "winners", lambda *given, of=kernel.winners: (asked.append(1), of(*given))
    )
    for compiled in (0, 0, 1):
        assert (fly_hash(x, rows, 3).numpy() == sorted_sums(whole, rows, 3)).all()
        assert len(asked) == compiled
