"""Sums of stacked payloads are those of the single payloads."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

from fedbolic.federated import Batched, Clip, LocalTraining, Mean, Sequential, Sum, Update
from fedbolic.federated.aggregators import aggregator
from fedbolic.federated.aggregators.update import StackedPayload, StackedRow
from tests.federated.agreement import UNEQUAL, assert_engines_agree, exchange, with_
from tests.federated.simple_method import SMALL, federation


def leaves(num_clients, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_clients, 3, 2, dtype=dtype, generator=generator)
    counts = torch.randint(-9, 9, (num_clients,), generator=generator)
    return {"x": x, "part": {"n": counts, "nothing": torch.zeros(num_clients, 0)}}


def row(tree, i):
    return {n: row(x, i) if isinstance(x, dict) else x[i] for n, x in tree.items()}


def stacked(ids, weights, dtype=torch.float64):
    """Updates of clients, all rows of one stack."""
    payload = leaves(len(ids), dtype)
    stack = StackedPayload(payload, tuple(ids))
    updates = []
    for i, weight in enumerate(weights):
        own = row(payload, i)
        updates.append(Update(own, float(weight), row=StackedRow(stack, i, own, {})))
    return list(zip(ids, updates, strict=True))


def alone(updates):
    return [(i, dataclasses.replace(update, row=None)) for i, update in updates]


def exact_mean(updates, element):
    """Weighted mean of one number of every payload, in rational arithmetic."""
    weights = [Fraction(update.weight) for _, update in updates]
    values = [Fraction(element(update.payload)) for _, update in updates]
    return float(sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights))


@pytest.mark.parametrize("block", [1, 7, aggregator.LARGEST_BLOCK])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("left_out", [(), (0,), (2, 4)])
def test_the_mean_of_a_stack_is_exact_whoever_is_left_out(left_out, dtype, block, monkeypatch):
    monkeypatch.setattr(aggregator, "LARGEST_BLOCK", block)
    updates = [u for u in stacked(range(5), (3, 1, 0, 2.5, 4), dtype) if u[0] not in left_out]
    found = Mean().aggregate(iter(updates))
    assert found.clients == tuple(i for i, _ in updates)
    assert found.weight == sum(update.weight for _, update in updates)
    assert found.payload["x"].dtype == dtype
    for j in range(6):
        expected = exact_mean(updates, lambda payload, j=j: payload["x"].flatten()[j].item())
        given = found.payload["x"].flatten()[j].item()
        assert math.isclose(given, expected, rel_tol=4 * torch.finfo(dtype).eps, abs_tol=1e-15)
    count = exact_mean(updates, lambda payload: payload["part"]["n"].item())
    assert abs(found.payload["part"]["n"].item() - count) <= 0.5 + 1e-12
    assert found.payload["part"]["nothing"].shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("left_out", [(), (0,), (2, 4)])
def test_the_sum_of_a_stack_is_exact_whoever_is_left_out(left_out, dtype):
    updates = [u for u in stacked(range(5), (3, 1, 0, 2.5, 4), dtype) if u[0] not in left_out]
    found = Sum().aggregate(iter(updates)).payload
    for j in range(6):
        values = [update.payload["x"].flatten()[j].item() for _, update in updates]
        given = found["x"].flatten()[j].item()
        assert math.isclose(given, math.fsum(values), rel_tol=torch.finfo(dtype).eps, abs_tol=1e-15)
    assert found["x"].dtype == dtype
    counts = [update.payload["part"]["n"].item() for _, update in updates]
    assert found["part"]["n"].item() == sum(counts)
    assert found["part"]["n"].dtype == torch.int64


def test_large_counts_of_a_stack_are_summed_exactly():
    payload = {"n": torch.tensor([2**53 + 1, 2**53 + 1, 3])}
    stack = StackedPayload(payload, (0, 1, 2))
    owns = [row(payload, i) for i in range(3)]
    rows = [StackedRow(stack, i, own, {}) for i, own in enumerate(owns)]
    updates = [Update(own, row=place) for own, place in zip(owns, rows, strict=True)]
    assert Sum().aggregate(enumerate(updates)).payload["n"].item() == 2**54 + 5


def test_stacks_that_alternate_with_others_give_the_same_mean():
    evens, odds = stacked((0, 2, 6), (1, 2, 3)), stacked((1, 3, 5), (4, 5, 6))
    single = alone(stacked((4, 7), (7, 8)))
    updates = sorted(evens + odds + single, key=lambda update: update[0])
    found, expected = Mean().aggregate(iter(updates)), Mean().aggregate(iter(alone(updates)))
    assert found.clients == expected.clients == tuple(range(8))
    assert found.weight == expected.weight
    torch.testing.assert_close(found.payload["x"], expected.payload["x"], rtol=0, atol=1e-15)


def test_whoever_replaces_a_payload_leaves_the_stack():
    (_, update), *_ = stacked((0, 1), (1, 1))
    changed = dataclasses.replace(update, payload={**update.payload, "x": torch.ones(3, 2)})
    assert update.stack is not None
    assert changed.stack is None
    assert dataclasses.replace(update, weight=2.0).stack is update.stack


def test_updates_of_stacked_clients_are_rows_of_one_stack_and_states_are_their_own():
    method = with_(local=LocalTraining(2, 4), sharing={"head.*": "personal", "*": "shared"})
    found = exchange(Batched(), method, federation(UNEQUAL))
    assert len({id(update.stack) for _, update, _ in found}) == 1
    for i, (client, update, kept) in enumerate(found):
        assert client.id == update.stack.clients[i]
        for name, value in update.payload["delta"].items():
            assert torch.equal(value, update.stack.payload["delta"][name][i])
        for value in kept["parameters"].values():
            assert value.untyped_storage().nbytes() == value.nbytes
    for _, update, _ in exchange(Sequential(), method, federation(UNEQUAL)):
        assert update.stack is None


def test_clipped_rows_are_averaged_as_clipped():
    clip = (Clip(0.01),)
    assert_engines_agree(SMALL, federation(UNEQUAL), tolerance=1e-12, channels=clip)
