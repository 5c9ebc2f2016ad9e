"""Mechanisms compared with an enumeration of their outcomes, and the ledger with both."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.private.enumerated_losses import log_probability, neighbours, worst_loss
from fedbolic.core.rng import Rng
from fedbolic.federated.secure import SecureSum
from flynn.method import FlyNN
from flynn.noise import Noise
from flynn.private import Histogram, Paper, Parallel, Peel, release, select
from tests.federated.simple_method import federation, rows_of, train
from tests.seeded import SeededKeys


def seeded(number):
    return Noise(SeededKeys().stream(Rng(number)))


RELATIONS = ("add/remove", "replace")
TOY = [(3, 0, 1, 2, 0)]
MECHANISMS = [
    *(Paper(1.0, t) for t in (1, 2, 3)),
    *(Parallel(1.0, t) for t in (1, 2, 3)),
    *(Peel(1.0, t, of) for t in (1, 2, 3) for of in RELATIONS),
    *(Histogram(1.0, of) for of in RELATIONS),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("counts", [TOY, [(1, 1, 1)], [(2, 0, 1), (0, 4, 1)], [(9, 0, 0, 5)]])
def test_no_loss_exceeds_the_ledger(mechanism, counts):
    parties = 2
    ledger = mechanism.ledger(2, parties)
    for relation in RELATIONS:
        selecting, noise, both = worst_loss(counts, ledger.plan, 2, relation)
        bounds = ledger.plan.loss(2, relation)
        assert selecting <= bounds[0] + 1e-12
        assert noise <= bounds[1] + 1e-12
        assert both <= ledger.total(relation) + 1e-12
    assert ledger.total(mechanism.neighbours) <= mechanism.epsilon + 1e-12


def test_the_noise_of_the_histogram_costs_all_that_was_asked_for():
    for relation in RELATIONS:
        plan = Histogram(0.5, relation).plan(2, 1)
        assert worst_loss(TOY, plan, 2, relation)[2] == pytest.approx(0.5)


def test_the_papers_selection_costs_less_than_it_says():
    # the paper's rate on five counts, one to three of them selected, by hand from the definition
    losses = {
        relation: max(
            worst_loss(TOY, Parallel(1.0, t).plan(2, 1), 2, relation)[0] for t in (1, 2, 3)
        )
        for relation in RELATIONS
    }
    assert 0.15 < losses["add/remove"] <= 0.25
    assert 0.25 < losses["replace"] <= 0.5


def test_together_the_papers_mechanism_spends_a_sixth():
    ledger = Paper(1.0, 100).ledger(15, 2)
    assert ledger.total("add/remove") == pytest.approx(0.5 * (0.25 + 15 / 200))
    assert ledger.total("replace") == pytest.approx(0.5 * (0.5 + 30 / 200))


def test_neighbours_are_those_of_one_record():
    more = list(neighbours([(0, 0, 1)], 2, "add/remove"))
    assert sorted(more) == [(0, 1, 2), (1, 0, 2), (1, 1, 1)]
    replaced = set(neighbours([(1, 1, 0), (0, 0, 0)], 2, "replace"))
    assert (0, 0, 0, 1, 1, 0) in replaced  # of another class
    assert (1, 0, 1, 0, 0, 0) in replaced
    assert len(replaced) == 6


def test_selection_is_one_after_another_by_exponential_weights():
    counts = (3, 0, 1, 2)
    exact = {
        frozenset(pair): sum(
            math.exp(log_probability(counts, order, 0.7)) for order in itertools.permutations(pair)
        )
        for pair in itertools.combinations(range(4), 2)
    }
    assert sum(exact.values()) == pytest.approx(1)
    noise, num = seeded(0), 4000
    seen = dict.fromkeys(exact, 0)
    for _ in range(num):
        seen[frozenset(select(np.array(counts), 0.7, 2, noise).tolist())] += 1
    expected = [num * exact[pair] for pair in seen]
    assert stats.chisquare(list(seen.values()), expected).pvalue > 1e-4


def test_selection_goes_on_after_counts_that_outweigh_all_others():
    """After the largest two, whose weights are exp(700) and exp(400), the rest are alike."""
    counts, noise, seen = np.array([0, 1000, 0, 700, 0, 0]), seeded(3), [0] * 6
    for _ in range(1200):
        found = select(counts, 1.0, 3, noise).tolist()
        assert found[:2] == [1, 3]
        seen[found[2]] += 1
    assert stats.chisquare([seen[i] for i in (0, 2, 4, 5)]).pvalue > 1e-6


def test_noise_on_all_counts_is_discrete_laplace_and_unclipped():
    drawn = release(
        np.zeros((4, 5000), dtype=np.int64),
        Histogram(0.5).plan(3, 1),
        seeded(1),
    )
    assert drawn.shape == (4, 5000)
    q = math.exp(-0.5 / 3)
    assert (drawn == 0).mean() == pytest.approx((1 - q) / (1 + q), abs=0.01)
    assert (drawn < 0).mean() == pytest.approx((drawn > 0).mean(), abs=0.02)


def test_what_is_not_selected_is_zero_and_nothing_is_negative():
    drawn = release(np.full((2, 50), 4), Parallel(1.0, 7).plan(3, 1), seeded(1))
    assert (drawn > 0).sum() <= 7
    assert (drawn >= 0).all()
    everything = release(np.full((2, 3), 400), Parallel(9.0, 70).plan(3, 1), seeded(1))
    assert (everything > 0).all()


def test_the_sum_is_clipped_only_at_the_end():
    total = np.array([-3, 0, 2, 9])
    assert Histogram(1.0).finish(total).tolist() == [0, 0, 2, 9]
    assert Histogram(1.0, threshold=2).finish(total).tolist() == [0, 0, 0, 9]


def test_the_ledger_says_relation_stages_and_parties():
    text = str(Paper(1.0, 100).ledger(15, 2))
    for part in ("Paper: epsilon 1", "100 counts", "2 parties", "add/remove", "0.125", "0.1625"):
        assert part in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Histogram(0.0), "epsilon must be a positive number"),
        (lambda: Paper(1.0, 0), "num_selected must be at least 1"),
        (lambda: Peel(-1.0, 3), "epsilon must be a positive number"),
        (lambda: Histogram(1.0, threshold=-1), "threshold must be at least 0"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("mechanism", [Histogram(1.5), Histogram(1.5, "replace"), Paper(1.0, 20)])
def test_the_cost_joins_the_ledger_of_all_systems(mechanism):
    """One release, a pure epsilon, the proven total, and the words of every private run."""
    own = mechanism.ledger(15, 2)
    ledger = own.of_examples(own.relation)
    assert (ledger.dp_delta, ledger.rounds, ledger.neighbours) == (0.0, 1, own.relation)
    assert ledger.epsilon(1) == own.total(own.relation)
    words = {
        "add/remove": "of one example that takes part, or whose contribution is zero",
        "replace": "of one example whose data are replaced by any other data",
    }
    assert words[own.relation] in str(own)


def test_epsilon_is_in_the_metrics_of_a_run_and_leaves_the_message_as_it_was():
    data = federation((7, 4))
    private, open_ = (
        FlyNN(dim=60, fan_in=3, active=5, privacy=privacy) for privacy in (Paper(1.0, 20), None)
    )
    (state,), rows = train(private, data)
    (epsilon,) = rows_of(rows, "privacy/epsilon")
    assert epsilon == Paper(1.0, 20).ledger(5, 2).total("add/remove")
    assert "epsilon" not in private.broadcast(state.server_state, 0)
    assert not rows_of(train(open_, data)[1], "privacy/epsilon")
    _, masked = train(SecureSum(private, threshold=2), data)
    assert rows_of(masked, "privacy/epsilon") == [epsilon]
