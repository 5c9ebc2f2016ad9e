import functools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbolic.federated import Gather, Mean, Median, Sum, Update
from fedbolic.federated.aggregators import median
from fedbolic.testing import AGGREGATOR_LAWS
from tests.federated.simple_method import assert_near, assert_same

AGGREGATORS = [Mean(), Sum(), Median(), Gather()]
weights = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=7)
seeds = st.integers(0, 2**31)
int64s = st.integers(-(2**60), 2**60)


def updates(w, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return (100 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)

    return [(3 * i, Update({"a": draw(2, 3), "b": {"c": draw()}}, v)) for i, v in enumerate(w)]


def stacked(pairs, *path):
    leaves = [update.payload for _, update in pairs]
    for name in path:
        leaves = [leaf[name] for leaf in leaves]
    return np.stack([leaf.numpy() for leaf in leaves])


@given(weights, seeds)
def test_mean_is_the_weighted_average_of_numpy(w, seed):
    pairs = updates(w, seed)
    total = Mean().aggregate(pairs)
    for path, ours in ((("a",), total.payload["a"]), (("b", "c"), total.payload["b"]["c"])):
        expected = np.average(stacked(pairs, *path), axis=0, weights=w)
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-10)
    assert total.weight == pytest.approx(sum(w))
    assert total.clients == tuple(i for i, _ in pairs)


@given(weights, seeds)
def test_mean_of_single_precision_is_summed_in_double_and_rounded_once(w, seed):
    pairs = updates(w, seed, torch.float32)
    ours = Mean().aggregate(pairs).payload["a"]
    assert ours.dtype == torch.float32
    exact = np.average(stacked(pairs, "a").astype(np.float64), axis=0, weights=w)
    np.testing.assert_allclose(ours.numpy(), exact.astype(np.float32), rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@given(st.lists(st.one_of(st.integers(0, 10**9), st.floats(0, 1e9)), min_size=2, max_size=5), seeds)
def test_the_sum_in_one_pass_has_the_bits_of_products_added_one_by_one(dtype, w, seed):
    pairs = updates([1.0] * len(w), seed, dtype)
    total = None
    for (_, update), weight in zip(pairs, w, strict=True):
        weighted = Update(update.payload, float(weight))
        total = Mean().add_to(total, weighted) if total else Mean().to_summand(weighted)
    products = stacked(pairs, "a").astype(np.float64) * np.array(w, dtype=np.float64)[:, None, None]
    assert total is not None
    assert total["a"].tolist() == functools.reduce(np.add, products).tolist()


def test_mean_does_not_lose_small_terms_beside_large_ones():
    terms = [1e8, *[1.0] * 64, -1e8]
    pairs = [(i, Update({"a": torch.tensor(v, dtype=torch.float32)})) for i, v in enumerate(terms)]
    assert Mean().aggregate(pairs).payload["a"].item() == np.float32(64 / 66)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=9))
def test_mean_of_integers_is_rounded_to_nearest(numbers):
    pairs = [(i, Update({"n": torch.tensor(n)})) for i, n in enumerate(numbers)]
    ours = Mean().aggregate(pairs).payload["n"]
    assert ours.dtype == torch.int64
    assert ours.item() == round(Fraction(sum(numbers), len(numbers)))


@pytest.mark.parametrize("aggregator", [Mean(), Sum()])
def test_a_client_of_weight_zero_counts_in_a_sum_but_not_in_a_mean(aggregator):
    pairs = updates([1.0, 0.0], seed=0)
    alone = aggregator.aggregate(pairs[:1]).payload
    both = aggregator.aggregate(pairs).payload
    assert torch.equal(both["a"], alone["a"]) == isinstance(aggregator, Mean)


def test_mean_of_no_weight_at_all_is_refused():
    with pytest.raises(ValueError, match="weights of all updates are zero"):
        Mean().aggregate(updates([0.0, 0.0], seed=0))


@given(st.lists(st.lists(int64s, min_size=2, max_size=2), min_size=1, max_size=8))
def test_sum_of_integers_is_exact(rows):
    pairs = [(i, Update({"n": torch.tensor(row)}, weight=0.3)) for i, row in enumerate(rows)]
    ours = Sum().aggregate(pairs).payload["n"]
    expected = [sum(column) for column in zip(*rows, strict=True)]
    if max(map(abs, expected)) < 2**63:
        assert ours.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_sum_of_small_integers_does_not_wrap(dtype):
    pairs = [(i, Update({"n": torch.ones(3).to(dtype)})) for i in range(300)]
    assert Sum().aggregate(pairs).payload["n"].tolist() == [300] * 3


@given(weights, seeds)
def test_sum_of_floats_is_that_of_numpy_whatever_the_weights(w, seed):
    pairs = updates(w, seed, torch.float32)
    ours = Sum().aggregate(pairs).payload["a"]
    expected = stacked(pairs, "a").astype(np.float64).sum(axis=0).astype(np.float32)
    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1.2e-7, atol=0)


@pytest.mark.parametrize("number", [0.1, 1e300, 123456789.123456789])
def test_numbers_are_aggregated_in_double_precision(number):
    pairs = [(i, Update({"v": number})) for i in range(4)]
    assert float(Mean().aggregate(pairs).payload["v"]) == number
    assert float(Sum().aggregate(pairs).payload["v"]) == 4 * number
    assert float(Median().aggregate(pairs).payload["v"]) == number


@given(weights, seeds)
def test_median_is_that_of_numpy_whatever_the_weights(w, seed):
    pairs = updates(w, seed)
    total = Median().aggregate(pairs)
    np.testing.assert_array_equal(
        total.payload["a"].numpy(), np.median(stacked(pairs, "a"), axis=0)
    )
    assert total.weight == pytest.approx(sum(w))
    assert total.clients == tuple(i for i, _ in pairs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("num_clients", [1, 4, 7])
def test_median_in_pieces_is_that_of_numpy(num_clients, dtype, monkeypatch):
    """Leaves have all shapes and memory formats, and pieces have any length."""
    monkeypatch.setattr(median, "PIECE", 5)
    generator = torch.Generator().manual_seed(0)
    leaves = {"a": (4, 7), "b": (5,), "c": (), "d": (0, 3), "e": (2, 3, 2, 2)}
    pairs = []
    for i in range(num_clients):
        drawn = {n: 9 * torch.randn(shape, generator=generator) for n, shape in leaves.items()}
        payload = {name: value.to(dtype) for name, value in drawn.items()}
        payload["a"] = payload["a"].mT
        payload["e"] = payload["e"].to(memory_format=torch.channels_last)
        pairs.append((i, Update(payload)))
    found = Median().aggregate(pairs).payload
    for name in leaves:
        expected = np.median(stacked(pairs, name), axis=0)
        if dtype is torch.int64:
            expected = expected.round()  # torch rounds half to even
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name].numpy(), expected)


class Largest(TorchDispatchMode):
    """Records the bytes of the largest tensor that an operation returns."""

    num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        made = [leaf.nbytes for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        self.num_bytes = max([self.num_bytes, *made])
        return given


def test_median_makes_nothing_much_larger_than_its_result():
    """Twenty payloads take one megabyte each; a copy of them in float64 would take forty."""
    pairs = [(i, Update({"a": torch.full((2**18,), float(i))})) for i in range(20)]
    with Largest() as largest:
        found = Median().aggregate(pairs).payload["a"]
    assert largest.num_bytes < 3 * 2**20
    assert torch.equal(found, torch.full((2**18,), 9.5))


def test_median_refuses_payloads_of_other_shapes():
    pairs = [(i, Update({"a": torch.zeros(shape)})) for i, shape in enumerate([(2, 3), (3, 2)])]
    with pytest.raises(ValueError, match="differ in shape"):
        Median().aggregate(pairs)


@given(st.floats(-1e30, 1e30), seeds)
def test_one_wild_client_of_three_moves_no_median_out_of_the_others(wild, seed):
    pairs = updates([1.0, 1.0], seed)
    low, high = stacked(pairs, "a").min(0), stacked(pairs, "a").max(0)
    payload = {"a": torch.full((2, 3), wild, dtype=torch.float64), "b": {"c": torch.tensor(wild)}}
    ours = Median().aggregate([*pairs, (99, Update(payload))]).payload["a"].numpy()
    assert (low <= ours).all()
    assert (ours <= high).all()


@given(weights, seeds)
def test_gather_keeps_every_payload_by_id(w, seed):
    pairs = updates(w, seed)
    total = Gather().aggregate(pairs)
    assert_same(total.payload, {str(i): update.payload for i, update in pairs})
    assert total.weight == pytest.approx(sum(w))
    assert total.clients == tuple(i for i, _ in pairs)


@pytest.mark.parametrize("aggregator", [Mean(), Sum(), Median()])
@given(weights, seeds, st.randoms(use_true_random=False))
def test_the_order_of_updates_does_not_matter_up_to_rounding(aggregator, w, seed, shuffle):
    pairs = updates(w, seed)
    other = list(pairs)
    shuffle.shuffle(other)
    x, y = aggregator.aggregate(pairs), aggregator.aggregate(other)
    assert_near(x.payload, y.payload, 1e-10)
    assert x.weight == pytest.approx(y.weight)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("law", AGGREGATOR_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_an_aggregator_keeps_the_law(aggregator, law, count, dtype):
    law(aggregator, updates([1.0, 2.0, 3.0][:count], 0, dtype))


@pytest.mark.parametrize("aggregator", [Mean(), Sum(), Median()])
def test_one_update_is_its_own_total(aggregator):
    ((_, update),) = pairs = updates([1.0], 0, torch.float32)
    assert_same(aggregator.aggregate(pairs).payload, update.payload)


@pytest.mark.parametrize("aggregator", [Mean(), Sum()])
def test_a_sum_holds_one_update_at_a_time(aggregator):
    alive = []

    class Counted(dict):
        def __del__(self):
            alive.pop()

    def stream():
        for i in range(5):
            alive.append(i)
            assert len(alive) <= 3  # the first gives the dtypes, the last may still be in use
            yield i, Update(Counted(a=torch.ones(2)))

    assert aggregator.aggregate(stream()).clients == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_nothing_to_aggregate_is_refused(aggregator):
    with pytest.raises(ValueError, match="no update to aggregate"):
        aggregator.aggregate(iter([]))


@pytest.mark.parametrize("aggregator", [Mean(), Sum(), Median()])
@pytest.mark.parametrize("other", [{"b": torch.ones(2)}, {"a": {"b": torch.ones(2)}}])
def test_payloads_of_different_names_are_refused(aggregator, other):
    pairs = [(0, Update({"a": torch.ones(2)})), (1, Update(other))]
    with pytest.raises(ValueError, match="trees differ"):
        aggregator.aggregate(pairs)
    with pytest.raises(ValueError, match="trees differ"):
        aggregator.aggregate(pairs[::-1])
