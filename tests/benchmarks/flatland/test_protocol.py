"""Reported figures of a run, from hand-made metrics."""

import pytest

from benchmarks.flatland.protocol import choose, tuned
from fedbolic.core.rows import Row


def measured(validation, test, sizes, prefix="local/"):
    """Rows of all rounds and clients; ``None`` where a client has no such nodes."""
    return [
        Row(r, i, f"{prefix}{name}", value)
        for r, (v, t) in enumerate(zip(validation, test, strict=True), 1)
        for i in range(len(sizes))
        for name, value in (
            ("validation/accuracy", v[i]),
            ("test/accuracy", t[i]),
            ("test/examples", sizes[i]),
        )
        if value is not None
    ]


VALIDATION = [(0.2, 0.4), (0.9, 0.5), (0.6, 0.8), (0.1, 0.1)]
TEST = [(0.3, 0.3), (0.5, 0.9), (1.0, 1.0), (1.0, 1.0)]


def test_the_first_round_of_the_best_mean_validation_is_chosen():
    chosen = choose(measured(VALIDATION, TEST, (10.0, 30.0)))
    assert (chosen.round, chosen.rising) == (2, False)  # not the best on test
    assert chosen.mean == pytest.approx(0.7)
    assert chosen.weighted == pytest.approx(0.8)
    assert chosen.worst == 0.5


def test_clients_without_test_nodes_are_left_out():
    test = [(t, None) for t, _ in TEST]
    chosen = choose(measured(VALIDATION, test, (10.0, None)))
    assert (chosen.mean, chosen.weighted, chosen.worst) == (0.5, 0.5, 0.5)


def test_rounds_of_some_clients_alone_do_not_compare():
    rows = measured(VALIDATION, TEST, (10.0, 30.0))
    alone = [row for row in rows if not (row.round == 2 and row.client == 1)]  # the best round
    assert choose(alone).round == 3
    assert choose([row for row in rows if row.client != row.round % 2]) is None


def test_a_run_whose_best_round_is_late_may_still_be_rising():
    rows = measured([(0.1 * r,) for r in range(10)], [(0.1 * r,) for r in range(10)], (4.0,))
    assert choose(rows).rising
    assert not choose(measured([(0.5,)], [(0.5,)], (4.0,))).rising  # one round is too few


def test_scores_of_the_servers_model_are_kept_apart():
    rows = measured(VALIDATION, TEST, (1.0, 1.0), prefix="")
    assert choose(rows) is None
    assert choose(rows, of="").round == 2


def test_scores_after_fine_tuning_are_those_of_the_last_round():
    assert tuned(measured(VALIDATION, TEST, (1.0, 1.0))) is None
    rows = [
        Row(r, i, f"fine_tuned/{name}", value)
        for r in (1, 2)
        for i in (0, 1)
        for name, value in (("accuracy", 0.25 * (r + i)), ("examples", 10.0 + 20 * i))
    ]
    found = tuned(rows)
    assert (found.round, found.mean, found.worst) == (2, 0.625, 0.5)
    assert found.weighted == pytest.approx((10 * 0.5 + 30 * 0.75) / 40)
