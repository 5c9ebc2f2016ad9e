"""Sums modulo a number equal those of Python's integers, whatever their size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.federated import SumModulo, Update
from fedbolic.federated.aggregators.modular import from_limbs, num_limbs, to_limbs

moduli = st.sampled_from([2, 2**26 - 5, 2**32, 2**32 + 15, 2**61 - 1, 2**127 - 1, 10**60])


@given(st.data(), moduli, st.integers(1, 6), st.integers(0, 5))
def test_the_sum_is_that_of_integers(data, modulus, num_clients, length):
    numbers = st.lists(st.integers(0, modulus - 1), min_size=length, max_size=length)
    columns = [data.draw(numbers) for _ in range(num_clients)]
    updates = [(i, Update({"s": to_limbs(own, modulus)})) for i, own in enumerate(columns)]
    total = SumModulo(modulus).aggregate(updates)
    assert from_limbs(total.payload["s"]) == [
        sum(of) % modulus for of in zip(*columns, strict=True)
    ]
    assert total.payload["s"].shape == (length, num_limbs(modulus))
    assert [from_limbs(update.payload["s"]) for _, update in updates] == columns  # not modified


@given(st.data(), moduli)
def test_masks_that_cancel_leave_the_sum(data, modulus):
    numbers = st.lists(st.integers(0, modulus - 1), min_size=3, max_size=3)
    values, mask = data.draw(numbers), data.draw(numbers)
    masked = [(v + m) % modulus for v, m in zip(values, mask, strict=True)]
    taken = [-m % modulus for m in mask]
    updates = [(i, Update({"s": to_limbs(own, modulus)})) for i, own in enumerate([masked, taken])]
    assert from_limbs(SumModulo(modulus).aggregate(updates).payload["s"]) == values


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, 3), torch.zeros(2, 1).long(), torch.tensor([[-1, 0]]), 3]
)
def test_other_payloads_are_refused(wrong):
    with pytest.raises(ValueError, match="need int64 tensors of 2 limbs"):
        SumModulo(2**61 - 1).to_summand(Update({"s": wrong}))


def test_values_out_of_range_are_refused():
    for value in (-1, 101):
        with pytest.raises(ValueError, match=r"must lie in 0 \.\. 100"):
            to_limbs([value], 101)
