"""PrivateForman: its sensitivity over all small graphs, its noise, and what is recorded."""

import dataclasses
import itertools
import math

import networkx
import numpy as np
import pytest
import torch
from scipy import stats

from fedbolic.core.rng import Rng
from fedbolic.data import Graph
from fedbolic.federated import (
    Batched,
    ClientPrivacy,
    Cohort,
    LocalTraining,
    Trainer,
    TrainerState,
)
from fedbolic.manifolds import Curvature
from fedbolic.testing import saved_and_loaded
from flatland import GCN, FlatLand, LorentzGCN, PrivateForman
from flatland.graphs.ricci import BOUNDS, mean_ricci
from flatland.method import CURVATURE, SHARING
from flatland.private_ricci import capped, sum_sensitivity
from tests.federated.agreement import assert_engines_agree
from tests.flatland.cases import complete, federation, graph_of, path, star
from tests.seeded import SeededKeys

CHANCE = 1e-9
"""Probability with which a correct sampler fails a test of its law."""


def bare(pairs, n):
    """The graph with these edges, given once each, without features."""
    both = sorted([(i, j) for i, j in pairs] + [(j, i) for i, j in pairs])
    edges = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T
    return Graph(torch.zeros(n, 0), edges, torch.zeros(n, dtype=torch.int64))


def capped_by_hand(pairs, n, most):
    """Blocki et al., Sec. 4: an edge stays if it is among the first at both ends."""
    beside = {v: sorted(w for e in pairs for w in e if v in e and w != v) for v in range(n)}
    return {(i, j) for i, j in pairs if j in beside[i][:most] and i in beside[j][:most]}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, 2, 4, 20])
def test_counts_are_those_of_networkx_on_the_capped_graph(seed, most):
    pairs = [tuple(sorted(e)) for e in networkx.gnp_random_graph(11, 0.45, seed=seed).edges]
    kept = capped_by_hand(pairs, 11, most)
    graph = networkx.Graph(kept)
    triangles = sum(networkx.triangles(graph).values()) // 3
    q = sum(d * d for _, d in graph.degree) - 9 * triangles
    given = graph_of(pairs, 11)
    assert PrivateForman(max_degree=most).counts(given) == (q, len(kept))
    found = capped(given, most).edges.T.tolist()
    assert {tuple(pair) for pair in found if pair[0] < pair[1]} == kept


@pytest.mark.parametrize("pairs", [complete(6), path(9), star(7)])
def test_without_a_cap_the_counts_give_the_mean_curvature(pairs):
    graph = graph_of(pairs, 9)
    q, m = PrivateForman(max_degree=9).counts(graph)
    assert 4 - q / m == pytest.approx(mean_ricci(graph))


@pytest.mark.parametrize("most", [1, 2])
def test_the_sensitivity_bounds_every_pair_of_neighbouring_graphs_of_five_nodes(most):
    """All 1,024 graphs, and for each of them all ten edges that may be added or removed."""
    slots = list(itertools.combinations(range(5), 2))
    estimator = PrivateForman(max_degree=most)
    found = np.array(
        [
            estimator.counts(bare([e for i, e in enumerate(slots) if code >> i & 1], 5))
            for code in range(2 ** len(slots))
        ]
    )
    codes = np.arange(len(found))
    steps = np.concatenate([np.abs(found - found[codes ^ (1 << i)]) for i in range(len(slots))])
    assert steps[:, 0].max() <= sum_sensitivity(most)
    assert steps[:, 1].max() == 1


def changes(pairs, most):
    """Change of both counts by the edge between the nodes 0 and 1."""
    size = 1 + max(max(pair) for pair in pairs)
    graphs = (bare(edges, size) for edges in (pairs, [*pairs, (0, 1)]))
    before, after = (PrivateForman(max_degree=most).counts(graph) for graph in graphs)
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("most", [2, 3, 5, 6])
def test_the_sensitivity_is_attained(most):
    """An edge between two cliques, and one with as many triangles as there may be."""
    cliques = [range(start, 2 * most + 2, 2) for start in (0, 1)]
    pairs = [pair for nodes in cliques for pair in itertools.combinations(nodes, 2)]
    assert changes(pairs, most) == (14 * most - 16, -1)
    a, b = most + 1, most + 2
    pairs = [(i, j) for i in (0, 1) for j in range(2, most + 1)] + [(0, a), (1, b)]
    pairs += [(a, b + leaf) for leaf in range(1, most)]
    pairs += [(b, b + most + leaf) for leaf in range(1, most)]
    assert changes(pairs, most) == (-(13 * most - 11), -1)
    assert sum_sensitivity(most) == max(14 * most - 16, 13 * most - 11)


def test_the_noise_of_both_counts_together_costs_epsilon():
    """The largest ratio of the probabilities of two pairs of outcomes, from SciPy's law."""
    estimator = PrivateForman(epsilon=0.7, max_degree=3)
    of_sum, of_number = (stats.dlaplace(1 / scale) for scale in estimator.scales)
    outcomes = np.arange(-200, 200)
    losses = [
        np.abs(law.logpmf(outcomes) - law.logpmf(outcomes - step)).max()
        for law, step in ((of_sum, sum_sensitivity(3)), (of_number, 1))
    ]
    assert sum(losses) == pytest.approx(0.7)
    assert estimator.ledger.epsilon(1) == 0.7
    assert "of one edge that is in the graph or is not" in str(estimator.ledger)


def test_the_noise_is_discrete_laplace_of_these_scales():
    estimator = PrivateForman(epsilon=60.0, max_degree=3)  # scales of 0.6 and 0.08
    graph = graph_of(path(9), 9)
    draws = np.array([estimator.noisy_counts(graph) for _ in range(400)])
    for column, count, scale in zip(
        draws.T, estimator.counts(graph), estimator.scales, strict=True
    ):
        law = stats.dlaplace(1 / scale)
        inner = [np.sum(column - count == z) for z in (-1, 0, 1)]
        seen = [*inner, len(draws) - sum(inner)]
        shares = [float(law.pmf(z)) for z in (-1, 0, 1)]
        expected = np.array([*shares, 1 - sum(shares)]) * len(draws)
        kept = expected > 5
        assert ((seen - expected)[kept] ** 2 / expected[kept]).sum() < stats.chi2(3).isf(CHANCE)


def test_a_large_graph_and_budget_give_the_curvature_without_noise():
    graph = graph_of(star(400), 400)
    estimator = PrivateForman(epsilon=1e6, max_degree=400)
    assert estimator.c(graph) == pytest.approx(99.0)  # 396 clamped
    tree = graph_of([((i - 1) // 3, i) for i in range(1, 400)], 400)
    estimator = PrivateForman(epsilon=1e7, max_degree=4)
    assert estimator.c(tree) == pytest.approx(-mean_ricci(tree))


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"max_degree": 0}, {"epsilon": math.nan}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="must be"):
        PrivateForman(**settings)


PRIVATE = FlatLand(
    network=LorentzGCN(widths=(4,)),
    rounds=2,
    local=LocalTraining(epochs=1, batch_size=None),
    curvature=PrivateForman(epsilon=0.5),
)
FIXED = dataclasses.replace(PRIVATE, sharing={**SHARING, "curvature.*": "fixed"})


def values(rows, name):
    """Values of the clients by round and client; that of the server if no client has one."""
    found = {(row.round, row.client): row.value for row in rows if row.name == name}
    return {key: x for key, x in found.items() if key[1] is not None} or found


def run(method, *, state=None, **settings):
    found = list(Trainer(**settings).run(method, federation(), Rng(0), state))
    return [state for state, _ in found], [row for _, rows in found for row in rows]


@pytest.mark.parametrize("method", [PRIVATE, FIXED])
@pytest.mark.parametrize("engine", [Trainer().engine, Batched()])
def test_the_release_alone_is_recorded_with_its_cost(method, engine):
    states, rows = run(method, engine=engine)
    released = values(rows, "released/curvature")
    assert len(released) == 2 * 5
    for (_, client), value in released.items():
        assert value == released[1, client]  # one draw for the whole run
    assert not values(rows, "train/curvature")
    assert not values(rows, "train/clamped_fraction")
    assert set(values(rows, "privacy/curvature_epsilon").values()) == {0.5}
    for client, state in states[-1].client_states.items():
        c = Curvature(1.0, bounds=BOUNDS).c_of(state["estimate"])
        assert float(c) == pytest.approx(released[1, client])
    assert "estimate" not in PRIVATE.broadcast(states[-1].server_state, 0)
    assert "curvature_epsilon" not in PRIVATE.broadcast(states[-1].server_state, 0)


def test_a_trained_curvature_leaves_the_release_and_a_fixed_one_keeps_it():
    for method, moves in ((PRIVATE, True), (FIXED, False)):
        states, _ = run(method)
        state = states[-1].client_states[0]
        trained = state["parameters"].get(CURVATURE, state["estimate"])
        assert torch.equal(trained, state["estimate"]) is not moves


@pytest.mark.parametrize("sharing", [PRIVATE.sharing, FIXED.sharing])
def test_engines_agree_on_the_estimates_of_their_clients(sharing):
    seeded = dataclasses.replace(
        PRIVATE, sharing=sharing, curvature=PrivateForman(noise=SeededKeys())
    )
    assert_engines_agree(seeded, federation())


@pytest.mark.parametrize("method", [PRIVATE, FIXED])
def test_a_resumed_run_draws_no_new_noise(method):
    """The loaded data are new objects, so nothing but the client state can hold the draw."""
    states, rows = run(method)
    middle = TrainerState.restore(saved_and_loaded(states[0].checkpoint()))
    _, later = run(method, state=middle)
    before, after = values(rows, "released/curvature"), values(later, "released/curvature")
    assert after == {key: value for key, value in before.items() if key[0] > 1}


@pytest.mark.parametrize("method", [PRIVATE, FIXED])
@pytest.mark.parametrize("engine", [Trainer().engine, Batched()])
def test_a_client_draws_at_its_first_turn_and_never_again(method, engine, monkeypatch):
    """Nor does a client draw to be scored, before or after its turn."""
    drawn, draw = [], PrivateForman.noisy_counts

    def noisy_counts(estimator, graph):
        drawn.append(id(graph))
        return draw(estimator, graph)

    monkeypatch.setattr(PrivateForman, "noisy_counts", noisy_counts)
    states, rows = run(method, engine=engine, cohort=Cohort(0.4))
    assert len(drawn) == len(set(drawn)) == len(states[-1].client_states) < 5
    assert len(values(rows, "test/accuracy")) == 2 * 4  # all who have test nodes were scored


def test_two_runs_draw_different_noise(monkeypatch):
    """Of the counts: most curvatures are clamped, so all of two runs are often the same."""
    drawn, draw = [], PrivateForman.noisy_counts

    def noisy_counts(estimator, graph):
        drawn.append(draw(estimator, graph))
        return drawn[-1]

    monkeypatch.setattr(PrivateForman, "noisy_counts", noisy_counts)
    for _ in range(2):
        run(PRIVATE)
    assert len(drawn) == 2 * 5
    assert drawn[:5] != drawn[5:]


def test_a_seed_repeats_the_noise_and_is_refused_in_a_deployment():
    seeded = dataclasses.replace(PRIVATE, curvature=PrivateForman(noise=SeededKeys()))
    one, two = (values(run(seeded)[1], "released/curvature") for _ in range(2))
    assert one == two
    with pytest.raises(ValueError, match="a server may know"):
        seeded.check_deployed()
    PRIVATE.check_deployed()


@pytest.mark.parametrize(
    "method",
    [
        dataclasses.replace(PRIVATE, sharing={"*": "shared"}),
        dataclasses.replace(PRIVATE, network=GCN(widths=(4,)), sharing={"*": "shared"}),
    ],
)
def test_nothing_is_released_and_nothing_spent_where_the_estimate_is_not_used(method):
    _, rows = run(method)
    assert not values(rows, "released/curvature")
    assert not values(rows, "privacy/curvature_epsilon")


def test_under_privacy_of_whole_clients_no_curvature_leaves():
    """A row of a client would say that it took part, which its epsilon hides."""
    _, rows = run(PRIVATE, privacy=ClientPrivacy(dp_delta=1e-2, noise_multiplier=1.0))
    assert not [row for row in rows if row.name.endswith("/curvature")]
