"""Numbers of finished runs for plots and pages: curves, megabytes, clients, seconds, settings."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedbolic.core.rows import Row
from fedbolic.core.yaml_text import flat_settings
from fedbolic.run.run_files import ExchangeTime

AT_CLIENTS = "personal/accuracy"
"""Name of the accuracy at the clients in :func:`with_personal`."""

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Quantiles of the clients' scores in a page."""

FIRST, EVALUATED, OTHERS = "first round", "rounds with evaluation", "other rounds"
"""Parts of a run whose seconds are recorded."""

OF_THE_RUN = ("seed", "name", "runs")
"""Settings in which the runs of a table differ by necessity."""


def mean_curve(runs: Sequence[Iterable[Row]], name: str) -> dict[int, list[float]]:
    """Values of all seeds by round, for the rounds that every seed has.

    Args:
        runs: Measurements, one sequence of rows for each seed, at least one.
        name: Name of the measurement.
    """
    curves = [
        {row.round: row.value for row in rows if row.client is None and row.name == name}
        for rows in runs
    ]
    rounds = sorted(set.intersection(*(set(one) for one in curves)))
    return {r: [one[r] for one in curves] for r in rounds}


def megabytes(rows: Iterable[Row]) -> dict[int, float]:
    """Megabytes (10^6 bytes) sent in both directions until the end of each round, by all clients.

    Example:
        >>> rows = [Row(1, None, "bytes/up", 1e6), Row(1, None, "bytes/down", 2e6)]
        >>> megabytes([*rows, Row(2, None, "bytes/up", 5e5)])
        {1: 3.0, 2: 3.5}
    """
    sent: dict[int, float] = {}
    for row in rows:
        if row.client is None and row.name in ("bytes/up", "bytes/down"):
            sent[row.round] = sent.get(row.round, 0.0) + row.value / 1e6
    rounds = sorted(sent)
    return dict(zip(rounds, itertools.accumulate(sent[r] for r in rounds), strict=True))


def with_personal(rows: Sequence[Row]) -> list[Row]:
    """Measurements with the accuracy at the clients under one name, ``AT_CLIENTS``.

    It is that after fine-tuning if the run uses it, and else that of the model as it is.

    Args:
        rows: Measurements of one run.

    Example:
        >>> [row.name for row in with_personal([Row(1, 0, "test/accuracy", 0.5)])]
        ['test/accuracy', 'personal/accuracy']
    """
    tuned = any(row.name == "fine_tuned/accuracy" for row in rows)
    name = "fine_tuned/accuracy" if tuned else "test/accuracy"
    return [*rows, *(row._replace(name=AT_CLIENTS) for row in rows if row.name == name)]


def client_values(rows: Iterable[Row], name: str) -> dict[int, float]:
    """Values of a measurement by client, in the last round that has any.

    Example:
        >>> rows = [Row(1, 0, "c", 1.0), Row(2, 0, "c", 2.0), Row(2, 1, "c", 3.0)]
        >>> client_values(rows, "c")
        {0: 2.0, 1: 3.0}
    """
    found = [row for row in rows if row.client is not None and row.name == name]
    last = max((row.round for row in found), default=0)
    return {row.client: row.value for row in found if row.round == last and row.client is not None}


def quantiles(values: Sequence[float]) -> list[float]:
    """Quantiles at ``LEVELS``, linear between two values.

    Args:
        values: Scores, at least one.
    """
    with np.errstate(invalid="ignore"):  # infinite scores
        return [float(value) for value in np.quantile(values, LEVELS)]


def seconds_by_part(rows: Iterable[Row], times: Iterable[ExchangeTime]) -> dict[str, float]:
    """Seconds of a run in its first round, in rounds with evaluation, and in all others.

    The first round includes what is done once, such as the compilation of a step.

    Args:
        rows: Measurements of the run.
        times: Seconds of its exchanges.
    """
    scored = {row.round for row in rows if row.name.endswith(("/accuracy", "/map"))}
    spent: dict[str, float] = {FIRST: 0.0, EVALUATED: 0.0, OTHERS: 0.0}
    for time in times:
        # exchanges are numbered from 0; 0 says that the round with this number has ended
        round = time.round if time.exchange == 0 else time.round + 1
        part = FIRST if round == 1 else EVALUATED if round in scored else OTHERS
        spent[part] += time.seconds
    return spent


def differing_settings(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Values by row of every option in which rows differ; a row without the option is left out.

    Args:
        configs: Configuration of every row.
    """
    flat = {row: flat_settings(config) for row, config in configs.items()}
    options = dict.fromkeys(option for settings in flat.values() for option in settings)
    found = {
        option: {row: settings[option] for row, settings in flat.items() if option in settings}
        for option in options
        if option not in OF_THE_RUN
    }
    return {
        option: values
        for option, values in found.items()
        if len(values) < len(flat) or len({repr(value) for value in values.values()}) > 1
    }


def mean(values: Sequence[float]) -> float:
    """Mean of values; NaN if one of them is not finite, as after a run that has diverged.

    Args:
        values: Numbers, at least one.
    """
    return statistics.fmean(values) if all(map(math.isfinite, values)) else math.nan


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of values; NaN if one of them is not finite.

    Args:
        values: Numbers, at least two.
    """
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def nan_as_worst(value: float) -> float:
    """Key that sorts scores, larger ones being better; NaN is the worst.

    Args:
        value: Score.
    """
    return -math.inf if math.isnan(value) else value


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation of values as text; a single number if they agree.

    Args:
        values: Numbers, at least one.
        digits: Decimal places.

    Example:
        >>> spread([1.0, 2.0]), spread([3.0])
        ('1.50 ± 0.71', '3.00')
    """
    centre = f"{mean(values):.{digits}f}"
    if len(set(values)) == 1:
        return centre
    return f"{centre} ± {deviation(values):.{digits}f}"
