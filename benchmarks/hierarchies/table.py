"""The table of hierarchies, made from the file of its figures, with who is ahead."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.hierarchies.controls import CELLS, CHOOSING, CURVED, FLAT, TRAINED, Cell
from benchmarks.hierarchies.exact import EXACT
from benchmarks.hierarchies.fitted import FITTED
from benchmarks.results import Figures, Key
from benchmarks.table import head, line

MEASURES = {
    "MAP": "ancestors, MAP",
    "direct": "direct parents, MAP",
    "common": "lowest common ancestor, MRR",
    "distance": "tree distances, error",
    "inferred": "pairs nobody holds, MAP",
}
"""Words for the measures, all of them in %."""

BOTH = "flat + b_u + b_v"
"""The row of the same tables as ``flat + b_v``, with the bias of the descendant."""

LAID_OUT = ("plane, laid out",)
"""Curved rows without training."""

FITTED_CURVED = tuple(row for row, of in FITTED.items() if of(5).c)
FITTED_FLAT = tuple(row for row, of in FITTED.items() if not of(5).c)
TRAINED_FLAT = (*FLAT, BOTH)
FLAT_ROWS = (*(row for row in EXACT if row not in LAID_OUT), *TRAINED_FLAT, *FITTED_FLAT)
ROWS = (*EXACT, *FITTED, "flat", "flat + b_v", BOTH, "dot + b_v", *CURVED)
AHEAD, LEAST = 2.0, 0.005
"""Standard errors by which a row must be ahead, and the least difference that counts."""


@dataclass(frozen=True)
class Contest:
    """A measure of a cell: the figures of every row, one for each seed.

    Args:
        cell: The cell.
        measure: The measure.
        values: Figures of the rows that were measured.
    """

    cell: Cell
    measure: str
    values: Mapping[str, Sequence[float]]

    def best(self, rows: Sequence[str]) -> str | None:
        """The row with the best mean; ``None`` if none was measured.

        Args:
            rows: Rows to choose from.
        """
        sign = -1 if self.measure == "distance" else 1
        known = [row for row in rows if row in self.values]
        return max(known, key=lambda row: sign * statistics.fmean(self.values[row]), default=None)

    def lead(self, curved: Sequence[str], flat: Sequence[str]) -> float:
        """Lead of the best curved row over the best flat one, in standard errors of both means.

        It is 0 if the means differ by less than :data:`LEAST`.

        Args:
            curved: Curved rows.
            flat: Flat rows.
        """
        one, other = self.best(curved), self.best(flat)
        if one is None or other is None:
            return math.nan
        gap = statistics.fmean(self.values[one]) - statistics.fmean(self.values[other])
        gap = -gap if self.measure == "distance" else gap
        error = math.hypot(_error(self.values[one]), _error(self.values[other]))
        if abs(gap) < LEAST:
            return 0.0
        return gap / error if error else math.inf * gap

    def verdict(self, curved: Sequence[str], flat: Sequence[str]) -> str:
        """The row that is two standard errors ahead, in bold if it is curved.

        Args:
            curved: Curved rows.
            flat: Flat rows.
        """
        lead = self.lead(curved, flat)
        if math.isnan(lead):
            return ""
        if abs(lead) < AHEAD:
            return "neither"
        return f"**{self.best(curved)}**" if lead > 0 else f"{self.best(flat)}"


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; none for a row that depends on no seed."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def contests(known: Mapping[Key, Figures], cells: Sequence[Cell] = CELLS) -> list[Contest]:
    """All measures of all cells of a file.

    Args:
        known: Figures by key, as :class:`benchmarks.results.Results` reads them.
        cells: The cells.
    """
    found: dict[Key, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for (*of, row, _, seed), figures in known.items():
        if seed == str(CHOOSING):
            continue
        for name, value in figures.items():
            found[tuple(of)][name][row].append(value)
            if row == "flat + b_v":  # the same table: the descendant's bias changes no ranking
                of_both = "distance, b_u + b_v" if name == "distance" else name
                if of_both in figures:
                    found[tuple(of)][name][BOTH].append(figures[of_both])
    made = []
    for cell, measure in itertools.product(cells, MEASURES):
        sources = (cell.known, EXACT), (cell.fitted, FITTED), (cell, (*TRAINED, BOTH))
        values: dict[str, Sequence[float]] = {}
        for of, rows in sources:
            kept = found[of.key("")[:4]][measure]
            values |= {row: kept[row] for row in rows if row in kept}
        own = {row for of, rows in sources for row in rows if of == cell}
        if own & values.keys():
            made.append(Contest(cell, measure, values))
    return made


def table(found: Sequence[Contest]) -> str:
    """Lines of a Markdown table.

    Args:
        found: The contests to show.
    """
    rows = [row for row in ROWS if any(row in each.values for each in found)]
    lines = [head("", "", *rows, "ahead", "ahead of trained rows")]
    for each in found:
        cells = [_cell(each.values.get(row, ())) for row in rows]
        sides = ([*LAID_OUT, *CURVED, *FITTED_CURVED], FLAT_ROWS), ([*CURVED], TRAINED_FLAT)
        of_distances = FITTED if each.measure == "distance" else ()
        complete = {*each.cell.rows, *of_distances} <= each.values.keys()
        verdicts = [each.verdict(*two) if complete else "" for two in sides]
        lines.append(line(each.cell.title, MEASURES[each.measure], *cells, *verdicts))
    return "\n".join(lines)


def trained_table(found: Sequence[Contest]) -> str:
    """Lines of a Markdown table of ancestors and parents: the best flat and curved trained rows.

    The row that is ahead is in bold.

    Args:
        found: The contests to choose from.
    """
    names = ("MAP", "direct")
    sides = [f"{MEASURES[name]}: {side}" for name in names for side in ("flat", "hyperbolic")]
    lines = [head("", *sides)]
    of_cells = {(each.cell, each.measure): each for each in found}
    for cell in dict.fromkeys(cell for cell, _ in of_cells):
        chosen = [of_cells[cell, name] for name in names if (cell, name) in of_cells]
        if len(chosen) == len(names) and all(set(TRAINED) & each.values.keys() for each in chosen):
            cells = [text for each in chosen for text in _best_cells(each)]
            lines.append(line(cell.title, *cells))
    return "\n".join(lines)


def _best_cells(contest: Contest) -> list[str]:
    """The best flat and the best curved row of the trained ones, and which is ahead."""
    lead = contest.lead([*CURVED], TRAINED_FLAT)
    texts = []
    for rows, ahead in ((TRAINED_FLAT, lead <= -AHEAD), ([*CURVED], lead >= AHEAD)):
        best = contest.best(rows)
        text = "" if best is None else _cell(contest.values[best])
        texts.append(f"**{text}**" if ahead else text)
    return texts


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * _error(values):.1f}" if len(values) > 1 else mean
