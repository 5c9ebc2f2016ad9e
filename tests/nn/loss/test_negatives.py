"""Sets of pairs, negatives and the burn-in schedule, compared with Python's sets and fractions."""

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.func import vmap

from fedbolic.core.pair_keys import PADDING_KEY
from fedbolic.core.rng import Rng
from fedbolic.nn import (
    BurnInSchedule,
    NegativeSampler,
    contains_pair,
    pair_keys,
    rank_and_map,
)

NUM_NODES = 12
nodes = st.integers(0, NUM_NODES - 1)
pair_lists = st.lists(st.tuples(nodes, nodes), max_size=20)
LARGEST = 3037000499
"""The largest number of nodes, whose square is below 2^63."""


def tensor(pairs):
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def generator(seed=0):
    return Rng(seed).generator()


@given(pair_lists)
def test_keys_are_the_sorted_set_of_pairs(pairs):
    keys = pair_keys(tensor(pairs), num_nodes=NUM_NODES)
    assert [divmod(key, NUM_NODES) for key in keys.tolist()] == sorted(set(pairs))


@given(pair_lists, st.integers(0, 3))
def test_membership_is_that_of_a_set(pairs, num_padding):
    keys = pair_keys(tensor(pairs), num_nodes=NUM_NODES)
    keys = torch.cat((keys, torch.full((num_padding,), PADDING_KEY)))
    u, v = torch.arange(NUM_NODES).unsqueeze(1), torch.arange(NUM_NODES)
    found = contains_pair(keys, u, v, num_nodes=NUM_NODES)
    expected = [[(i, j) in set(pairs) for j in range(NUM_NODES)] for i in range(NUM_NODES)]
    assert found.tolist() == expected


def test_keys_of_the_largest_graph_fit():
    last = LARGEST - 1
    keys = pair_keys(torch.tensor([[last, last], [0, last]]), num_nodes=LARGEST)
    assert keys.tolist() == [last, last * LARGEST + last]
    assert keys[-1] < PADDING_KEY
    assert contains_pair(keys, torch.tensor(last), torch.tensor(last), num_nodes=LARGEST)
    with pytest.raises(ValueError, match=f"at most {LARGEST}, got {LARGEST + 1}"):
        pair_keys(torch.tensor([[0, 1]]), num_nodes=LARGEST + 1)


@pytest.mark.parametrize("pair", [(0, NUM_NODES), (-1, 0)])
def test_nodes_out_of_range_are_refused(pair):
    with pytest.raises(ValueError, match=r"nodes in \[0, 12\), got"):
        pair_keys(tensor([pair]), num_nodes=NUM_NODES)


@given(pair_lists, st.lists(nodes, max_size=4), st.integers(0, 99))
def test_the_mask_leaves_out_the_node_itself_and_its_related_ones(pairs, batch, seed):
    known = pair_keys(tensor(pairs), num_nodes=NUM_NODES)
    heads = torch.tensor(batch, dtype=torch.int64)
    negatives, mask = NegativeSampler(7)(
        heads, known, num_nodes=NUM_NODES, generator=generator(seed)
    )
    assert negatives.shape == mask.shape == (len(batch), 7)
    for u, row, counted in zip(batch, negatives.tolist(), mask.tolist(), strict=True):
        assert counted == [v != u and (u, v) not in pairs for v in row]


def test_negatives_of_a_node_are_the_nodes_that_its_ancestors_are_ranked_against():
    # a tree of the root 0, its children 1 and 2, and the leaf 3 below 1
    pairs = torch.tensor([[1, 0], [2, 0], [3, 1], [3, 0]])
    negatives = torch.arange(4)
    mask = NegativeSampler.mask(
        torch.arange(4),
        negatives.expand(4, 4),
        known=pair_keys(pairs, num_nodes=4),
        num_nodes=4,
    )
    assert [negatives[row].tolist() for row in mask] == [[1, 2, 3], [2, 3], [1, 3], [2]]
    for v in range(2, 4):  # 2 or 3 alone is nearer to the node 1 than the root, its ancestor
        nearer = torch.tensor([[2.0, 9.0, 3.0, 3.0]])
        nearer[0, v] = 1
        scores = rank_and_map(lambda rows, d=nearer: d, pairs[:1], num_nodes=4)
        assert scores.mean_rank == 2


def test_only_candidates_are_drawn():
    candidates = torch.tensor([9, 2, 5])
    drawn = NegativeSampler(100).draw((3,), NUM_NODES, generator=generator(), candidates=candidates)
    assert drawn.shape == (3, 100)
    assert drawn.unique().tolist() == [2, 5, 9]


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_frequencies_are_counts_to_a_power(power):
    counts = torch.tensor([1.0, 0.0, 5.0, 20.0])
    drawn = NegativeSampler(1000, power=power).draw(
        (20,), 4, generator=generator(), counts=counts if power else None
    )
    weights = [float(c) ** power for c in counts]  # 0 ** 0 is 1: uniform
    seen = Counter(drawn.flatten().tolist())
    drawable = [v for v in range(4) if weights[v]]
    assert set(seen) == set(drawable)
    expected = [20000 * weights[v] / sum(weights) for v in drawable]
    assert chisquare([seen[v] for v in drawable], expected).pvalue > 1e-6


def test_a_stream_determines_the_draws_and_advances():
    sampler, source = NegativeSampler(50), generator(3)
    first, second = (sampler.draw((2,), 100, generator=source) for _ in range(2))
    assert torch.equal(first, sampler.draw((2,), 100, generator=generator(3)))
    assert not torch.equal(first, second)


def test_an_empty_batch_has_no_negatives():
    empty = torch.zeros(0, dtype=torch.int64)
    for power, counts in ((0.0, None), (1.0, torch.ones(4))):
        negatives, mask = NegativeSampler(5, power=power)(
            empty, empty, num_nodes=4, generator=generator(), counts=counts
        )
        assert negatives.shape == mask.shape == (0, 5)


@given(st.lists(pair_lists, min_size=2, max_size=3))
def test_under_vmap_each_client_has_its_own_known_pairs(clients):
    sets = [pair_keys(tensor(pairs), num_nodes=NUM_NODES) for pairs in clients]
    longest = max(1, *map(len, sets))
    padded = torch.full((len(sets), longest), PADDING_KEY)
    for row, keys in zip(padded, sets, strict=True):
        row[: len(keys)] = keys
    sampler = NegativeSampler(4)
    heads = torch.arange(3 * len(sets)).reshape(-1, 3) % NUM_NODES
    drawn = sampler.draw(tuple(heads.shape), NUM_NODES, generator=generator())

    def own(u, v, known):
        return sampler.mask(u, v, known=known, num_nodes=NUM_NODES)

    expected = [own(*one) for one in zip(heads, drawn, sets, strict=True)]
    assert torch.equal(vmap(own)(heads, drawn, padded), torch.stack(expected))


@pytest.mark.parametrize(
    ("power", "given", "message"),
    [
        (0.0, {"candidates": torch.zeros(0, dtype=torch.int64)}, "no candidates"),
        (0.5, {}, "got no counts with a power of 0.5"),
        (0.0, {"counts": torch.ones(4)}, "got counts with a power of 0.0"),
        (0.5, {"counts": torch.ones(3)}, r"each of the 4 candidates, got shape \(3,\)"),
        (0.5, {"counts": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "0 or more"),
        (0.5, {"counts": torch.zeros(4)}, "not all 0"),
    ],
)
def test_bad_candidates_are_refused(power, given, message):
    with pytest.raises(ValueError, match=message):
        NegativeSampler(power=power).draw((1,), 4, generator=generator(), **given)


@pytest.mark.parametrize("settings", [{"num_negatives": 0}, {"power": -1.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        NegativeSampler(**settings)


@pytest.mark.gpu
def test_a_generator_on_the_cpu_gives_a_gpu_the_same_negatives():
    known, heads = pair_keys(torch.tensor([[0, 1], [2, 3]]), num_nodes=9), torch.arange(9)
    expected = NegativeSampler()(heads, known, num_nodes=9, generator=generator())
    found = NegativeSampler()(heads.cuda(), known.cuda(), num_nodes=9, generator=generator())
    assert all(map(torch.equal, (t.cpu() for t in found), expected))


shares = st.integers(0, 4).map(lambda eighths: Fraction(eighths, 8))


@given(shares, shares, st.integers(1, 40))
def test_the_schedule_is_its_formula(share, cooling, num_steps):
    schedule = BurnInSchedule(float(share), 0.25, float(cooling), 0.125)
    for step in range(num_steps):
        if step < share * num_steps:
            expected = Fraction(1, 4)
        elif step >= (1 - cooling) * num_steps:
            expected = max(Fraction(1, 8), Fraction(num_steps - step) / (cooling * num_steps))
        else:
            expected = 1
        assert schedule(step, num_steps=num_steps) == pytest.approx(float(expected), rel=1e-12)
    assert schedule(num_steps, num_steps=num_steps) == (0.125 if cooling else 1)


def test_torch_takes_the_schedule():
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = BurnInSchedule()
    torch_schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: schedule(step, num_steps=10)
    )
    rates = []
    for _ in range(10):
        rates += torch_schedule.get_last_lr()
        optimiser.step()
        torch_schedule.step()
    assert rates == pytest.approx([0.2, *[2] * 7, 4 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": -0.1}, "share must lie"),
        ({"cooling": 1.1}, "cooling must lie"),
        ({"lowest": 2.0}, "lowest must lie"),
        ({"initial": 0.0}, "initial must be a positive"),
        ({"share": 0.6, "cooling": 0.6}, "must not exceed 1 together"),
    ],
)
def test_bad_shares_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        BurnInSchedule(**settings)


@pytest.mark.parametrize(("step", "num_steps"), [(-1, 5), (0, 0)])
def test_bad_steps_are_refused(step, num_steps):
    with pytest.raises(ValueError, match="must be at least"):
        BurnInSchedule()(step, num_steps=num_steps)
