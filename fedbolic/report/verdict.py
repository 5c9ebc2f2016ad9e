"""Verdicts in words: the row that leads a table, and its lead over the strongest other row."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from fedbolic.report.comparison import PairedScores
from fedbolic.report.run_scores import mean
from fedbolic.report.table_rows import TableRow
from fedbolic.report.text_report import G_FL, MAP, MRR, P_FL, paired_scores

VERDICTS = {
    G_FL: "By accuracy of the server's model (G-FL)",
    P_FL: "By accuracy at the clients (P-FL)",
    MAP: "By mean average precision (MAP)",
    MRR: "By mean reciprocal rank (MRR)",
}
"""Columns that get a verdict, with the beginning of its sentence."""


def verdict(rows: Sequence[TableRow]) -> str:
    """One sentence for each score of a table: who leads, and by how many points.

    Args:
        rows: Rows of the table.
    """
    scores = paired_scores({Path(): rows})
    return " ".join(f"{VERDICTS[c]}, {lead(scores[c])}." for c in VERDICTS if c in scores)


def lead(scores: PairedScores) -> str:
    """The row with the largest mean, and its lead over the next one, next to its standard error.

    The standard error is that of the mean difference over seeds. Rows of other seeds have none.

    Args:
        scores: Scores in %, by row and by seed, with at least one row.

    Example:
        >>> lead({"ours": {0: 90.0, 1: 92.0, 2: 94.0}, "flat": {0: 89.0, 1: 91.5, 2: 92.5}})
        'ours leads with 92.00 %, 1.00 points above flat, beyond two standard errors (0.29 each)'
        >>> lead({"ours": {0: 90.0}, "flat": {0: 90.0}})
        'ours and flat share the lead with 90.00 %'
    """
    means = {row: mean(list(values.values())) for row, values in scores.items()}
    ranked = sorted((row for row in means if math.isfinite(means[row])), key=lambda r: -means[r])
    if not ranked:
        return "no row has a finite score"
    first, others = ranked[0], ranked[1:]
    # as printed: a difference beyond the digits of the table is none to its reader
    equal = [row for row in ranked if f"{means[row]:.2f}" == f"{means[first]:.2f}"]
    if len(equal) > 1:
        names = f"{', '.join(equal[:-1])} and {equal[-1]}"
        return f"{names} share the lead with {means[first]:.2f} %"
    best = f"{first} leads with {means[first]:.2f} %"
    if not others:
        return f"{best}, but no other row has a score to compare with"
    gap = means[first] - means[others[0]]
    above = f"{best}, {gap:.2f} points above {others[0]}"
    return f"{above}, {_certainty(gap, scores[first], scores[others[0]])}"


def _certainty(
    gap: float, leader: Mapping[Hashable, float], other: Mapping[Hashable, float]
) -> str:
    if leader.keys() != other.keys():
        return "over other seeds, so that the difference has no standard error"
    if len(leader) == 1:
        return "with one seed, so that the difference has no standard error"
    gaps = [leader[seed] - other[seed] for seed in leader]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    where = "beyond" if gap > 2 * error else "within"
    return f"{where} two standard errors ({error:.2f} each)"
