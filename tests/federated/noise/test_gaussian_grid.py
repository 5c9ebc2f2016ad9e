"""Sums on a grid: norms in whole numbers, exact sums, rows that do not see one another."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid

bounds = st.floats(1e-6, 1e6)
multipliers = st.floats(1e-6, 1e4)
magnitudes = st.floats(-30, 30)


def rows_of(seed, n, size, magnitude, dtype):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, size, generator=generator).double() * 10**magnitude).to(dtype)


@given(
    st.integers(1, 300), bounds, multipliers, magnitudes, st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_no_contribution_is_longer_than_the_bound(size, bound, z, magnitude, seed, dtype):
    """In Python's whole numbers and fractions, which do not round."""
    grid = GaussianGrid(size, bound, z * bound)
    rows = rows_of(seed, 3, size, magnitude, dtype)
    unit = Fraction(grid.unit)
    parts = [grid.rounded_sum(row[None]) for row in rows]
    for row, part in zip(rows, parts, strict=True):
        square = sum(x * x for x in part.tolist())
        assert square * unit**2 <= Fraction(bound) ** 2
        exact = row.double() * min(1, bound / max(float(row.double().norm()), 1e-300))
        gap = float((grid.scaled(part) - exact).norm())
        assert gap <= grid.unit * math.sqrt(size) * 1.01 + 1e-12 * bound
    columns = zip(*map(torch.Tensor.tolist, parts), strict=True)
    assert grid.rounded_sum(rows).tolist() == list(map(sum, columns))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_counts_as_zero_and_leaves_the_others(bad):
    grid, rows = GaussianGrid(4, 1.0, 1.0), torch.ones(3, 4)
    rows[1, 2] = bad
    assert torch.equal(grid.rounded_sum(rows), grid.rounded_sum(rows[[0, 2]]))
    huge = torch.full((1, 4), 1e200, dtype=torch.float64)
    assert not grid.rounded_sum(huge).any()


def test_a_row_on_the_bound_whose_rounding_leaves_it_is_moved_inside():
    """Half units in every coordinate, all rounded up, would be longer than the bound."""
    grid = GaussianGrid(10_000, 1.0, 1e4)
    x = torch.full((1, 10_000), 0.01).double() + 0.4 * grid.unit
    part = grid.rounded_sum(x).tolist()
    assert sum(k * k for k in part) * Fraction(grid.unit) ** 2 <= 1
    assert all(part)


@given(bounds, multipliers)
def test_the_unit_is_a_power_of_two_below_noise_and_bound(bound, z):
    grid = GaussianGrid(1, bound, z * bound)
    mantissa, _ = math.frexp(grid.unit)
    assert mantissa == 0.5
    assert bound / grid.unit <= 2**25
    assert z * bound / grid.unit <= 2**28
    assert grid.unit <= 2.001 * max(bound / 2**25, z * bound / 2**28)


def test_noise_that_leaves_no_room_for_contributions_is_refused():
    with pytest.raises(ValueError, match="too large for 1000000 numbers"):
        GaussianGrid(10**6, 1.0, 1e6)
    GaussianGrid(10**6, 1.0, 1e5)


def test_a_sum_of_a_million_numbers_is_shrunk_by_less_than_a_thousandth():
    grid = GaussianGrid(10**6, 1.0, 2.0)
    x = torch.full((1, 10**6), 1.0)
    assert 0.9999 < float(grid.scaled(grid.rounded_sum(x)).norm()) <= 1


def test_noise_has_its_standard_deviation():
    """Bounds that 100,000 draws miss with a probability below 1e-9 (the key is fixed)."""
    grid = GaussianGrid(100_000, 0.3, 0.7)
    noise = grid.scaled(grid.noise(SecretStream(bytes(range(32)))))
    assert abs(float(noise.square().mean()) / 0.49 - 1) < 6.5 * math.sqrt(2 / 100_000)
