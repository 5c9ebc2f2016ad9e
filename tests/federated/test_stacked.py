"""Which batches go into one call, and how much of the work is padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import Dirichlet
from fedbolic.federated import Schedule
from fedbolic.federated.stacked import padded_work, parts
from tests.federated.boring import RNG

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(torch.tensor)


@given(lengths, st.sampled_from([1.0, 1.25, math.inf]))
def test_every_client_is_in_one_call_that_is_long_enough(lengths, most):
    calls = parts(lengths, most)
    rows = torch.cat([rows for _, rows in calls])
    assert rows.sort().values.tolist() == list(range(len(lengths)))
    assert all(length == lengths[rows].max() for length, rows in calls)
    assert sum(length * len(rows) for length, rows in calls) <= most * lengths.sum()
    assert len(calls) == 1 or most < math.inf


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
@pytest.mark.parametrize(("num_examples", "batch_size"), [(6000, 128), (6000, None), (20000, 128)])
def test_padding_is_at_most_a_quarter_of_the_work(alpha, num_examples, batch_size):
    labels = torch.randint(10, (num_examples,), generator=RNG.generator())
    split = Dirichlet(20, alpha, cap=False, min_size=1).split(labels, RNG)
    schedule = Schedule(2, batch_size)
    lengths = [schedule.order(len(index), RNG)[1] for index in split]
    assert 1 <= padded_work(lengths) <= 1.25
    assert padded_work(lengths, mixes_examples=True) == 1
