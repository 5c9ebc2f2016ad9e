"""Numbers of runs for plots and pages, on hand-worked cases."""

import numpy as np
import pytest

from fedbolic.core.rows import Row
from fedbolic.report.run_scores import (
    AT_CLIENTS,
    EVALUATED,
    FIRST,
    LEVELS,
    OTHERS,
    client_values,
    differing_settings,
    mean_curve,
    megabytes,
    quantiles,
    seconds_by_part,
    spread,
    with_personal,
)
from fedbolic.run.run_files import ExchangeTime


def rows(name, *values):
    return [Row(round, None, name, value) for round, value in enumerate(values, 1)]


def test_a_mean_curve_has_the_rounds_of_all_seeds():
    assert mean_curve([rows("a", 0.1, 0.2, 0.3), rows("a", 0.5, 0.6)], "a") == {
        1: [0.1, 0.5],
        2: [0.2, 0.6],
    }
    assert mean_curve([rows("a", 0.1), rows("b", 0.1)], "a") == {}


def test_megabytes_add_up_both_directions_over_rounds():
    sent = [*rows("bytes/up", 1e6, 0.0, 2e6), *rows("bytes/down", 3e6, 5e5, 0.0)]
    sent.append(Row(2, 0, "bytes/up", 9e9))  # of one client: counted in the federation's
    assert megabytes(sent) == pytest.approx({1: 4.0, 2: 4.5, 3: 6.5})
    assert megabytes([]) == {}


def test_clients_are_read_in_the_last_round_that_has_them():
    found = [Row(1, 0, "c", 1.0), Row(3, 1, "c", 3.0), Row(3, None, "c", 9.0), Row(4, 0, "d", 7.0)]
    assert client_values(found, "c") == {1: 3.0}
    assert client_values(found, "nothing") == {}


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("test/accuracy",), 0.0), (("test/accuracy", "fine_tuned/accuracy"), 1.0), ((), None)],
)
def test_accuracy_at_clients_is_that_after_fine_tuning_if_there_is_one(names, expected):
    given = [Row(1, 0, name, float(i)) for i, name in enumerate(names)]
    found = client_values(with_personal(given), AT_CLIENTS)
    assert found == ({} if expected is None else {0: expected})


def test_quantiles_are_those_of_an_even_ladder():
    assert quantiles(list(np.arange(11.0))) == pytest.approx([10 * level for level in LEVELS])
    assert quantiles([0.5]) == [0.5] * len(LEVELS)


def test_every_second_belongs_to_one_part():
    times = [
        ExchangeTime(0, 1, 1.0),  # the first round has two exchanges
        ExchangeTime(1, 0, 2.0),
        ExchangeTime(1, 1, 4.0),
        ExchangeTime(2, 0, 8.0),
        ExchangeTime(3, 0, 16.0),
    ]
    found = seconds_by_part([Row(3, None, "holdout/accuracy", 0.5)], times)
    assert found == {FIRST: 3.0, EVALUATED: 16.0, OTHERS: 12.0}


def test_only_options_that_differ_are_listed_and_never_those_of_the_run():
    common = {"threads": 1, "device": "cpu"}
    configs = {
        "a": {"method": {"class_path": "m.A", "init_args": {"lr": 0.1}}, "seed": 0, **common},
        "b": {
            "method": {"class_path": "m.A", "init_args": {"lr": 0.2, "mu": 1}},
            "seed": 1,
            **common,
        },
    }
    assert differing_settings(configs) == {"method.lr": {"a": 0.1, "b": 0.2}, "method.mu": {"b": 1}}
    assert differing_settings({"a": configs["a"]}) == {}


def test_a_spread_is_the_deviation_of_a_sample():
    assert spread([50.0, 60.0]) == "55.00 ± 7.07"  # sqrt((25 + 25) / 1)
    assert spread([50.0, 50.0], digits=1) == "50.0"
