"""Stacked batches hold every example of every client once, in order, whatever the sizes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import Examples
from fedbolic.federated.batched import stacked_batches as module
from fedbolic.federated.batched.stacked_batches import stacked_batches

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=7)


def splits_of(sizes):
    """Examples with different values, in one storage."""
    whole = Examples({"x": torch.arange(sum(sizes) + 1), "y": -torch.arange(sum(sizes) + 1)})
    return whole.cut([*torch.arange(sum(sizes)).split(list(sizes)), torch.tensor([0])])[:-1]


@given(sizes, st.booleans())
def test_every_example_comes_once_and_in_order(sizes, shared):
    splits = splits_of(sizes)
    if not shared:
        splits = [Examples({n: x.clone() for n, x in split.all().items()}) for split in splits]
    found = {i: [] for i in range(len(sizes))}
    everyone = torch.arange(len(sizes))
    for rows, batches in stacked_batches(splits):
        for batch in batches:
            assert torch.equal(batch["y"], -batch["x"])
            for i, x, mask in zip(everyone[rows].tolist(), batch["x"], batch["mask"], strict=True):
                assert mask.tolist() == sorted(mask.tolist(), reverse=True)
                assert x[~mask].tolist() == [splits[i].all()["x"][0]] * int((~mask).sum())
                found[i] += x[mask].tolist()
    assert found == {i: split.all()["x"].tolist() for i, split in enumerate(splits)}


@given(sizes, st.integers(1, 12))
def test_a_batch_has_at_most_so_many_examples_and_little_padding(sizes, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", most)
        computed = 0
        for _, batches in stacked_batches(splits_of(sizes)):
            for batch in batches:
                num_clients, width = batch["mask"].shape
                assert num_clients * width <= max(most, num_clients)
                computed += num_clients * width
    assert computed <= 1.25 * sum(sizes)
