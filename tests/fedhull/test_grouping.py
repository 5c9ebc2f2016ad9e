"""Grouping: brute force, hulls of one client in different groups, recovery of clear classes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from fedbolic.manifolds import Poincare
from fedhull.grouping import Assignment, KernighanLin, Spectral, hull_distances, match_labels
from tests.fedhull.geometry.test_hull import spread

seeds = st.integers(0, 2**31)


def hulls(seed, num_clients, num_classes, apart, missing=0):
    """Point sets of all clients around one centre per class; some are missing."""
    g = np.random.default_rng(seed)
    turns = 2 * np.pi * np.arange(num_classes) / num_classes
    centres = np.tanh(apart / 2) * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    pairs = [(i, k) for i in range(num_clients) for k in g.permutation(num_classes)]
    left_out = set(g.choice(len(pairs), missing, replace=False).tolist())
    pairs = [pair for at, pair in enumerate(pairs) if at not in left_out]
    sets = []
    for _, k in pairs:
        near = torch.from_numpy(spread(int(g.integers(2**31)), int(g.integers(1, 6)), radius=1.0))
        sets.append(Poincare().mobius_add(torch.from_numpy(centres[k]), near).numpy())
    clients, classes = np.array(pairs).T
    return sets, clients, classes


@given(seeds, st.integers(1, 5))
def test_distances_are_the_means_of_those_of_all_pairs(seed, n):
    sets, *_ = hulls(seed, 2, n, apart=1.0)
    points = [torch.from_numpy(of) for of in sets]
    expected = [[float(Poincare().dist(x[:, None], y).mean()) for y in points] for x in points]
    np.testing.assert_allclose(hull_distances(sets), expected, rtol=1e-9, atol=1e-9)


def cost(distances, labels):
    return sum(distances[labels == g][:, labels == g].sum() for g in set(labels.tolist()))


@given(seeds, st.integers(2, 5), st.sampled_from([0.0, 1.0]))
def test_two_groups_are_the_best_of_all(seed, num_clients, apart):
    sets, clients, _ = hulls(seed, num_clients, 2, apart)
    distances = hull_distances(sets)
    found = Assignment().groups(distances, clients, num_groups=2)
    allowed = [
        np.array(flips)
        for flips in itertools.product((0, 1), repeat=len(sets))
        if all(sorted(np.array(flips)[clients == i]) == [0, 1] for i in range(num_clients))
    ]
    assert cost(distances, found) == pytest.approx(min(cost(distances, of) for of in allowed))


every_rule = pytest.mark.parametrize(
    ("rule", "num_classes"),
    [
        (Assignment(), 2),
        (Assignment(exact=1), 2),
        (Assignment(), 5),
        (KernighanLin(), 2),
        (Spectral(), 2),
        (Spectral(), 5),
    ],
)


@every_rule
def test_clear_classes_are_found(rule, num_classes):
    for seed in range(5):
        sets, clients, classes = hulls(seed, 6, num_classes, apart=3.0)
        found = rule.groups(hull_distances(sets), clients, num_groups=num_classes)
        assert adjusted_rand_score(classes, found) == 1.0
        assert found[0] == 0


@pytest.mark.parametrize("rule", [Assignment(), Assignment(exact=1), Spectral()])
@pytest.mark.parametrize("num_classes", [2, 4])
def test_clients_may_lack_a_class(rule, num_classes):
    for seed in range(5):
        sets, clients, classes = hulls(seed, 6, num_classes, apart=3.0, missing=4)
        found = rule.groups(hull_distances(sets), clients, num_groups=num_classes)
        assert adjusted_rand_score(classes, found) == 1.0


@given(seeds, st.integers(2, 6), st.integers(2, 4))
def test_hulls_of_one_client_never_share_a_group(seed, num_clients, num_classes):
    sets, clients, _ = hulls(seed, num_clients, num_classes, apart=0.3, missing=1)
    if len(sets) < num_classes:
        return
    found = Assignment().groups(hull_distances(sets), clients, num_groups=num_classes)
    for i in range(num_clients):
        own = found[clients == i]
        assert len(set(own.tolist())) == len(own)


def test_coinciding_hulls_are_grouped():
    sets = [np.zeros((1, 2)), np.array([[0.5, 0.0]])] * 3
    clients = np.repeat(np.arange(3), 2)
    for rule in (Assignment(), KernighanLin(), Spectral()):
        found = rule.groups(hull_distances(sets), clients, num_groups=2)
        assert found.tolist() == [0, 1] * 3


def test_what_cannot_be_grouped_is_refused():
    distances, clients = np.zeros((1, 1)), np.array([0])
    for rule in (Assignment(), KernighanLin(), Spectral()):
        with pytest.raises(ValueError, match="a class is absent everywhere"):
            rule.groups(distances, clients, num_groups=2)
    with pytest.raises(ValueError, match="makes two groups, got 3"):
        KernighanLin().groups(np.zeros((6, 6)), np.arange(6) // 3, num_groups=3)
    with pytest.raises(ValueError, match="a client has 3 hulls but there are 2 classes"):
        Assignment().groups(np.zeros((3, 3)), np.zeros(3, dtype=int), num_groups=2)


@given(seeds, st.integers(1, 5))
def test_names_agree_with_most_examples(seed, n):
    counts = np.random.default_rng(seed).integers(0, 20, (n, n)).astype(float)
    best = max(
        sum(counts[g, k] for g, k in enumerate(order)) for order in itertools.permutations(range(n))
    )
    assert counts[np.arange(n), match_labels(counts)].sum() == best
