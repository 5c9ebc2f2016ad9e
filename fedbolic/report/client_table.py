"""Table of the scores of single clients: quantiles, and the mean of the worst tenth."""

import math
from collections.abc import Mapping, Sequence

from fedbolic.core.rows import Row
from fedbolic.report.run_scores import LEVELS, client_values, mean, nan_as_worst, quantiles, spread

WORST_TENTH = "worst 10 %, mean"
"""Column with the mean over the worst tenth of the clients."""


def worst_tenth(values: Sequence[float]) -> float:
    """Mean of the lowest tenth of scores, rounded up to a whole number of them.

    Args:
        values: Scores, at least one.

    References:
        Li et al. (2020), Table 1, arXiv:1905.10497.

    Example:
        >>> worst_tenth([5.0, 1.0, 2.0, *[9.0] * 8])  # two of eleven
        1.5
    """
    return mean(sorted(values, key=nan_as_worst)[: math.ceil(len(values) / 10)])


def client_cells(measured: Mapping[str, Sequence[Sequence[Row]]], metric: str) -> list[list[str]]:
    """Cells of a table of quantiles over clients in %, whose first line is the header.

    Quantiles are those of the last scores of one run's clients, linear between two clients; then
    follow mean and standard deviation over seeds. Rows without scores of clients are left out.

    Args:
        measured: Measurements by row, one sequence for each seed.
        metric: Name of a score of clients, between 0 and 1.

    Returns:
        The lines; empty if no row has such scores.

    Example:
        >>> rows = [Row(1, i, "test/accuracy", i / 4) for i in range(5)]
        >>> for line in client_cells({"FedAvg": [rows]}, "test/accuracy"):
        ...     print(*line, sep=" | ")
        % | minimum | worst 10 %, mean | 10 % | 25 % | 50 % | 75 % | 90 % | maximum | clients
        FedAvg | 0.0 | 0.0 | 10.0 | 25.0 | 50.0 | 75.0 | 90.0 | 100.0 | 5
    """
    heads = [f"{100 * level:.0f} %" for level in LEVELS[1:-1]]
    lines = [["%", "minimum", WORST_TENTH, *heads, "maximum", "clients"]]
    for name, runs in measured.items():
        values = [found for rows in runs if (found := [*client_values(rows, metric).values()])]
        if values:
            by_seed = [
                [*quantiles(one)[:1], worst_tenth(one), *quantiles(one)[1:]] for one in values
            ]
            columns = zip(*by_seed, strict=True)
            cells = (spread([100 * value for value in column], digits=1) for column in columns)
            counts = sorted({len(one) for one in values})
            lines.append([name, *cells, " to ".join(map(str, counts[:1] + counts[1:][-1:]))])
    return lines if len(lines) > 1 else []
