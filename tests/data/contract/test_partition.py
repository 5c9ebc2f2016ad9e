import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Dirichlet, Shards

seeds = st.integers(0, 2**31)


@st.composite
def labels(draw, *, least=12):
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    sizes[0] += least
    y = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(draw(seeds)))
    return y[order]


partitions = st.one_of(
    st.builds(IID, st.integers(1, 12)),
    st.builds(Shards, st.integers(1, 6), st.integers(1, 2)),
    st.builds(
        Dirichlet,
        st.integers(1, 12),
        st.floats(0.01, 100),
        cap=st.booleans(),
        min_size=st.just(0),
    ),
)


def counts(parts, y):
    """Numbers of examples by class and client, counted with numpy."""
    return np.array(
        [[np.sum(y[part].numpy() == c) for part in parts] for c in np.unique(y.numpy())]
    )


@given(partitions, labels(), seeds)
def test_every_example_has_one_client(partition, y, seed):
    parts = partition.split(y, Rng(seed))
    assert len(parts) == partition.num_clients
    assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))


@given(partitions, labels(), seeds)
def test_positions_ascend(partition, y, seed):
    for part in partition.split(y, Rng(seed)):
        assert part.dtype == torch.int64
        assert (part.diff() > 0).all()


@given(partitions, labels(), seeds)
def test_same_seed_same_split_and_labels_untouched(partition, y, seed):
    before, state = y.clone(), torch.get_rng_state()
    first = partition.split(y, Rng(seed))
    torch.manual_seed(seed % 7)
    second = partition.split(y, Rng(seed))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(y, before)
    torch.set_rng_state(state)


@pytest.mark.parametrize("partition", [IID(4), Shards(4), Dirichlet(4, min_size=1)])
def test_seeds_give_different_splits(partition):
    y = torch.arange(200) % 5
    splits = {tuple(torch.cat(partition.split(y, Rng(seed))).tolist()) for seed in range(10)}
    assert len(splits) == 10


@given(st.integers(1, 12), labels(), seeds)
def test_iid_shares_are_equal_and_blind_to_labels(num_clients, y, seed):
    parts = IID(num_clients).split(y, Rng(seed))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    others = IID(num_clients).split(torch.zeros_like(y), Rng(seed))
    assert all(torch.equal(a, b) for a, b in zip(parts, others, strict=True))


def test_iid_gives_every_example_to_every_client_equally_often():
    y = torch.zeros(8, dtype=torch.long)
    hits = torch.zeros(8)
    for seed in range(1000):
        hits[IID(2).split(y, Rng(seed))[0]] += 1
    assert ((hits / 1000 - 0.5).abs() < 5 * (0.25 / 1000) ** 0.5).all()


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 5), seeds)
def test_a_shard_has_one_label_where_shards_fit_classes(clients, shards, size, seed):
    y = torch.arange(clients * shards).repeat(size)  # as many classes as shards
    for part in Shards(clients, shards).split(y, Rng(seed)):
        assert y[part].unique(return_counts=True)[1].tolist() == [size] * shards


@given(st.integers(1, 10), st.floats(0.01, 10), labels(), seeds)
def test_a_client_with_its_share_gets_none_of_the_next_class(num_clients, alpha, y, seed):
    parts = Dirichlet(num_clients, alpha, cap=True, min_size=0).split(y, Rng(seed))
    table = counts(parts, y)
    before = table.cumsum(0) - table
    assert (table[before >= len(y) / num_clients] == 0).all()


@given(labels(least=60), seeds)
def test_the_smallest_client_is_large_enough(y, seed):
    parts = Dirichlet(4, 1.0, min_size=8).split(y, Rng(seed))
    assert min(len(part) for part in parts) >= 8


@given(labels(), seeds, seeds)
def test_dirichlet_counts_do_not_depend_on_the_order_of_examples(y, seed, shuffle):
    partition = Dirichlet(3, 0.5, min_size=0)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(shuffle))
    tables = [counts(partition.split(x, Rng(seed)), x) for x in (y, y[order])]
    assert (tables[0] == tables[1]).all()


@pytest.mark.parametrize("cap", [True, False])
def test_a_large_alpha_is_nearly_iid(cap):
    y = torch.arange(10_000) % 10
    table = counts(Dirichlet(8, 1e9, cap=cap).split(y, Rng(0)), y)
    assert (np.abs(table - 1000 / 8) <= 2).all()


def test_which_examples_of_a_class_a_client_gets_is_random():
    y = torch.zeros(100, dtype=torch.long)
    parts = [Dirichlet(2, 1e9).split(y, Rng(seed))[0] for seed in range(50)]
    mean = torch.cat(parts).double().mean()
    assert abs(float(mean) - 49.5) < 5 * 100 / (12 * 50 * 50) ** 0.5


def test_a_small_alpha_gives_a_class_to_one_client():
    y = torch.arange(10_000) % 10
    table = counts(Dirichlet(8, 1e-3, cap=False, min_size=0).split(y, Rng(0)), y)
    assert np.median(table.max(1)) > 990


@pytest.mark.parametrize("alpha", [0.2, 5.0])
def test_shares_have_the_moments_of_the_dirichlet_law(alpha):
    y, clients, draws = torch.zeros(10_000, dtype=torch.long), 4, 1500
    partition = Dirichlet(clients, alpha, min_size=0)
    shares = np.array(
        [[len(part) / len(y) for part in partition.split(y, Rng(seed))] for seed in range(draws)]
    )
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.abs(shares.mean(0) - 1 / clients).max() < 5 * np.sqrt(variance / draws)
    assert np.abs(shares.var(0) / variance - 1).max() < 0.2


def renormalised(sizes, clients, alpha, generator):
    """The published procedure, literally: draw for all clients, zero the full ones, scale, cut."""
    total = sum(sizes)
    held = np.zeros(clients)
    for size in sizes:
        p = generator.dirichlet(np.repeat(alpha, clients))
        p = p * (held < total / clients)
        p = p / p.sum()
        held += np.diff([0, *np.floor(p.cumsum()[:-1] * size), size])
    return held


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_the_cap_agrees_with_drawing_for_all_and_scaling(alpha):
    sizes, clients, draws = [30, 50, 20], 3, 2000
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    partition = Dirichlet(clients, alpha, min_size=0)
    ours = np.array(
        [[len(part) for part in partition.split(y, Rng(seed))] for seed in range(draws)]
    )
    generator = np.random.default_rng(0)
    theirs = np.array([renormalised(sizes, clients, alpha, generator) for _ in range(draws)])
    for statistic in (lambda x: x[:, 0], lambda x: x.min(1), lambda x: x.max(1)):
        a, b = statistic(ours), statistic(theirs)
        assert abs(a.mean() - b.mean()) < 5 * np.sqrt((a.var() + b.var()) / draws)


def test_a_hopeless_least_size_is_refused_with_one_that_works():
    y = torch.arange(1000) % 4
    with pytest.raises(ValueError, match="1000 draws") as caught:
        Dirichlet(10, 0.05, min_size=95).split(y, Rng(0))
    best = int(re.search(r"use min_size=(\d+)", str(caught.value)).group(1))
    parts = Dirichlet(10, 0.05, min_size=best).split(y, Rng(0))
    assert min(len(part) for part in parts) == best
    with pytest.raises(ValueError, match=f"smallest client has {best}"):
        Dirichlet(10, 0.05, min_size=best + 1).split(y, Rng(0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: IID(0), "num_clients must be at least 1, got 0"),
        (lambda: Shards(2, 0), "shards_per_client must be at least 1, got 0"),
        (lambda: Shards(-1), "num_clients must be at least 1, got -1"),
        (lambda: Dirichlet(0), "num_clients must be at least 1, got 0"),
        (lambda: Dirichlet(alpha=0.0), "alpha must be a positive number, got 0.0"),
        (lambda: Dirichlet(alpha=float("nan")), "alpha must be a positive number, got nan"),
        (lambda: Dirichlet(min_size=-1), "min_size must be at least 0, got -1"),
    ],
)
def test_wrong_fields_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (IID(6), "6 clients cannot share 5 examples: ask for 5 or fewer"),
        (Shards(2, 3), "6 shards cannot share 5 examples"),
        (Dirichlet(6, min_size=0), "6 clients cannot share 5 examples"),
        (Dirichlet(2, min_size=3), "the 5 available: use min_size=2 or less"),
    ],
)
def test_too_few_examples_are_refused(partition, message):
    with pytest.raises(ValueError, match=message):
        partition.split(torch.zeros(5, dtype=torch.long), Rng(0))
