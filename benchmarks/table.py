"""The one table of the benchmarks: its lines, its cells, and goals with their verdicts."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t as student


def line(*cells: object) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*names: object) -> str:
    """The first two lines of a Markdown table."""
    return f"{line(*names)}\n{'|---' * len(names)}|"


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Mean and, of several values, standard deviation; values that are NaN are counted apart."""
    every = [*values]
    found = [value for value in every if math.isfinite(value)]
    if not found:
        return "NaN" if every else ""
    deviation = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
    lost = f" ({len(every) - len(found)} of {len(every)} NaN)" if len(found) < len(every) else ""
    return f"{statistics.fmean(found):.{digits}f}{deviation}{lost}"


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean, by Student's distribution."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(student.ppf(0.975, len(values) - 1)) * error


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Mean and, of several values, half the width of its 95 % interval."""
    width = f" ± {half_width(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{width}"


def difference(values: Sequence[float], reference: Sequence[float], digits: int = 2) -> str:
    """Mean of paired differences and, of several, its standard error in parentheses."""
    gaps = [a - b for a, b in zip(values, reference, strict=True)]
    error = f" ({statistics.stdev(gaps) / len(gaps) ** 0.5:.{digits}f})" if len(gaps) > 1 else ""
    return f"{statistics.fmean(gaps):+.{digits}f}{error}"


def middle(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the least and the largest value in parentheses; empty without values."""
    if not values:
        return ""
    ends = f"({min(values):.{digits}f} to {max(values):.{digits}f})"
    return f"{statistics.median(values):.{digits}f} {ends}"


@dataclass(frozen=True)
class Goal:
    """A bound and the measured figure.

    Args:
        id: Name of a group of goals.
        what: Description of the quantity.
        sense: ``>=`` if the figure must be at least the bound, ``<=`` if at most.
        bound: Bound on the figure.
        figure: Measured figure; ``None`` if it was not measured.
    """

    id: str
    what: str
    sense: Literal[">=", "<="]
    bound: float
    figure: float | None

    @property
    def verdict(self) -> str:
        """``met``, ``not met`` or ``not measured``; a figure of NaN meets no goal."""
        if self.figure is None:
            return "not measured"
        met = self.figure >= self.bound if self.sense == ">=" else self.figure <= self.bound
        return "met" if met else "not met"


def goal_table(rows: Iterable[Goal]) -> str:
    """Goals as a Markdown table."""
    lines = [head("goal", "", "bound", "figure", "")]
    for goal in rows:
        figure = "" if goal.figure is None else f"{goal.figure:.3g}"
        lines.append(line(goal.id, goal.what, f"{goal.sense} {goal.bound:g}", figure, goal.verdict))
    return "\n".join(lines)
