"""Correlated noise against a tree that is written out, its covariance, its ledger, and DP-FTRL."""

import dataclasses

import numpy as np
import pytest
import torch

from fedbolic.federated import (
    ClientPrivacy,
    Cohort,
    ServerSGD,
    Trainer,
)
from fedbolic.federated.accounting.accountants import ORDERS
from fedbolic.federated.accounting.gaussian import gaussian_epsilon
from fedbolic.federated.accounting.ledger import PrivacyLedger, solve_noise
from fedbolic.federated.accounting.tree_noise import add_leaf, tree_height
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from tests.federated.simple_method import (
    RNG,
    SMALL,
    federation,
    train,
)
from tests.seeded import SeededKeys

DATA = federation((7, 4, 12, 5, 6))
ONCE = Cohort(0.4, sampling="once")  # cohorts of 2, 2 and 1 clients
TREE = ClientPrivacy(
    dp_delta=1e-2, noise_multiplier=1.0, clip_norm=0.1, noise=SeededKeys(), correlation="tree"
)
METHOD = dataclasses.replace(SMALL, rounds=5)
UNIT = 2**40
"""A noise so large that roundings to integers do not count."""


def complete_subtrees(t):
    """Nodes (level, place) whose leaves are together the first t leaves, from the largest."""
    found, start = [], 0
    for level in reversed(range(t.bit_length())):
        if t >> level & 1:
            found.append((level, start >> level))
            start += 1 << level
    return found


def estimate(level, place, own):
    """Noise of the estimate of a subtree from its root and, recursively, its halves.

    Weights are those of least variance: inversely proportional to the variances.
    """
    if level == 0:
        return own[0, place].double(), 1.0
    left, var_left = estimate(level - 1, 2 * place, own)
    right, var_right = estimate(level - 1, 2 * place + 1, own)
    below = var_left + var_right
    weight = below / (1 + below)
    return weight * own[level, place].double() + (1 - weight) * (left + right), weight


def sums_of(num_leaves, draw):
    """Noise of the sums of the first 1, 2, ... leaves by the code, and the noise of every node."""
    own, nodes, total, sums = {}, {}, 0, []

    def remember(level, place):
        assert (level, place) not in own  # no node is drawn twice
        return own.setdefault((level, place), draw(level, place))

    for leaf in range(num_leaves):
        nodes, growth = add_leaf(nodes, leaf, remember)
        total = total + growth
        sums.append(total)
    return sums, own


def random_node(level, place):
    return (1e9 * SecretStream(bytes(32)).at(level, place).normal(3)).long()


def test_the_noise_of_every_sum_is_that_of_the_written_out_tree():
    sums, own = sums_of(13, random_node)
    for t, found in enumerate(sums, 1):
        exact = sum(estimate(*node, own)[0] for node in complete_subtrees(t))
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=8)  # roundings


def test_growths_need_no_more_nodes_than_the_tree_has_levels():
    nodes = {}
    for leaf in range(64):
        nodes, _ = add_leaf(nodes, leaf, random_node)
        assert len(nodes) <= tree_height(leaf + 1)


def test_the_covariance_is_that_of_the_best_unbiased_estimate_of_every_subtree():
    """Nodes as unit vectors give the exact linear map; least squares give the least variance."""
    places = {}
    width = 15

    def unit(level, place):
        vector = torch.zeros(width, dtype=torch.int64)
        vector[places.setdefault((level, place), len(places))] = UNIT
        return vector

    sums, own = sums_of(8, unit)
    assert len(own) == width  # 8 + 4 + 2 + 1 nodes
    sums = [x.double() / UNIT for x in sums]
    for t in (1, 2, 4, 8):
        nodes = [(level, k) for level, k in own if (k + 1) << level <= t]
        sees = np.array([[k << level <= leaf < (k + 1) << level for leaf in range(t)]
                         for level, k in nodes], dtype=float)  # fmt: skip
        least = np.ones(t) @ np.linalg.solve(sees.T @ sees, np.ones(t))
        assert float(sums[t - 1].square().sum()) == pytest.approx(least)
    # 7 = 4 + 2 + 1: three subtrees without a common node
    variances = [1 / (2 * (1 - 2.0 ** (-level - 1))) for level in range(3)]
    assert float(sums[6].square().sum()) == pytest.approx(sum(variances))


def nodes_of_a_leaf(num_leaves):
    """Largest number of nodes with a common leaf, by enumeration of the nodes that are drawn."""
    _, own = sums_of(num_leaves, lambda level, place: torch.zeros(1).long())
    counts = [sum(k << level <= leaf < (k + 1) << level for level, k in own)
              for leaf in range(num_leaves)]  # fmt: skip
    return max(counts)


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 4, 7, 8, 21])
def test_the_ledger_counts_the_nodes_that_one_client_changes(num_leaves):
    assert tree_height(num_leaves) == nodes_of_a_leaf(num_leaves)
    ledger = PrivacyLedger(
        "once", "add/remove", 1 / num_leaves, 2.0, 1e-5, 3 * num_leaves, correlation="tree"
    )
    height = nodes_of_a_leaf(num_leaves)
    assert ledger.epsilon(num_leaves) == gaussian_epsilon(1e-5, 2.0, height)
    assert ledger.epsilon(3 * num_leaves) == gaussian_epsilon(1e-5, 2.0, 3 * height)
    assert ledger.epsilon(num_leaves + 1) == gaussian_epsilon(1e-5, 2.0, height + 1)


def test_the_divergences_are_those_of_dp_accounting_for_a_tree():
    library = pytest.importorskip("dp_accounting")
    for steps in (5, 16):
        accountant = library.rdp.RdpAccountant(ORDERS, library.NeighboringRelation.REPLACE_SPECIAL)
        event = library.SingleEpochTreeAggregationDpEvent(3.0, steps)
        accountant.compose(event, 4)  # four epochs, each with a tree
        ledger = PrivacyLedger(
            "once", "add/remove", 1 / steps, 3.0, 1e-5, 4 * steps, correlation="tree"
        )
        assert ledger.renyi_epsilon(4 * steps) == pytest.approx(accountant.get_epsilon(1e-5))
        assert ledger.epsilon(4 * steps) < ledger.renyi_epsilon(4 * steps)


def test_independent_noise_costs_one_release_in_an_epoch():
    ledger = PrivacyLedger("once", "add/remove", 0.25, 2.0, 1e-5, 10)
    costs = [ledger.epsilon(k) for k in (1, 4, 5, 8, 9)]
    assert costs == [gaussian_epsilon(1e-5, 2.0, k) for k in (1, 1, 2, 2, 3)]


def test_the_solved_noise_of_a_tree_stays_within_the_budget():
    settings = ("once", "add/remove", 0.1)
    z = solve_noise(*settings, epsilon=3.0, dp_delta=1e-5, rounds=25, correlation="tree")
    ledger = PrivacyLedger(*settings, z, 1e-5, 25, correlation="tree")
    assert 2.99 < ledger.epsilon(25) <= 3


def flat(parameters):
    return torch.cat([x.flatten() for x in parameters.values()])


def clipped_sum(method, states, round):
    """Sum of the clipped deltas of a round, from the state before it, client by client."""
    order = SeededKeys().stream(RNG.at("privacy"))
    place = (round - 1) % 3
    drawn = order.at("round", round - place, "cohort").uniform(5)
    chosen = drawn.argsort()[2 * place : 2 * place + 2].tolist()
    total = torch.zeros(())
    for i in chosen:
        stream = RNG.at("round", round, "exchange", 0, "client", i)
        message = method.broadcast(states[round - 1].server_state, i)
        update, _ = method.local_update(message, DATA.clients[i], {}, stream)
        delta = flat(update.payload["delta"])
        total = total + delta * min(1, 0.1 / float(delta.norm()))
    return total


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_run_takes_the_steps_of_dp_ftrl_with_restarts(momentum):
    """Algorithm 1 of Kairouz et al., with momentum as in their Sec. 5: all sums so far, noisy.

    An epoch has three rounds, so the second tree starts in the fourth round, and the noise of the
    first stays as it was.
    """
    server = ServerSGD(lr=0.7, momentum=momentum)
    method = dataclasses.replace(METHOD, server_optimizer=server)
    start = Trainer(cohort=ONCE, privacy=TREE).begin(method, DATA, RNG)
    states = [start, *train(method, DATA, privacy=TREE, cohort=ONCE)[0]]
    first = flat(start.server_state["parameters"])
    key = SecretStream(bytes(start.privacy["key"].tolist()))
    velocity, signal, before = torch.zeros_like(first), torch.zeros_like(first), 0.0
    for t in range(1, 6):
        signal = signal + clipped_sum(method, states, t)
        place = (t - 1) % 3
        stream = key.at("round", t - place).at("tree")
        grid = GaussianGrid(len(first), 0.1, 0.1)
        own = {(level, k): grid.scaled(grid.noise(stream.at(level, k))) / 0.1
               for level, k in ((0, 0), (0, 1), (1, 0), (0, 2))}  # fmt: skip
        noise = sum(estimate(*node, own)[0] for node in complete_subtrees(place + 1))
        velocity = momentum * velocity + (signal + 0.1 * (before + noise)) / 2
        before = before + noise if place == 2 else before
        expected = first + 0.7 * velocity
        found = flat(states[t].server_state["parameters"])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_noise_of_a_long_sum_is_smaller_than_that_of_independent_rounds():
    """At one epsilon for an epoch of 256 rounds; the noise of the sum as an exact linear map."""

    def unit(level, place):
        return UNIT * torch.eye(511, dtype=torch.int64)[512 - (512 >> level) + place]

    sums, own = sums_of(256, unit)
    assert len(own) == 511
    end = sums[-1].double() / UNIT
    variance = float(end.square().sum()) * tree_height(256)  # in units of one release
    assert variance < 256 / 50
