"""Panels of a report's page as SVG images: curves, megabytes, clients, curvatures, seconds.

A panel is ``None`` where no row has what it shows.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedbolic.core.rows import Row
from fedbolic.report.canvas import new_canvas, svg
from fedbolic.report.plots import draw_curve
from fedbolic.report.run_scores import (
    client_values,
    mean,
    mean_curve,
    megabytes,
    nan_as_worst,
    seconds_by_part,
    spread,
)
from fedbolic.run.run_files import ExchangeTime

Measured = Mapping[str, Sequence[Sequence[Row]]]
"""Measurements by row of the table, one sequence for each seed."""

_OUTSIDE: dict[str, Any] = {"loc": "outside right upper", "fontsize": "small", "frameon": False}
"""Look of a legend."""


def curves_panel(measured: Measured, metric: str) -> bytes | None:
    """Score by round, whole and enlarged, with the final values in the legend.

    Lines are means over seeds, bands their range. The right half shows the second half of the
    rounds, at the height of the better half of the rows.

    Args:
        measured: Measurements of every row.
        metric: Name of a score between 0 and 1 of the whole federation.
    """
    curves = {name: mean_curve(runs, metric) for name, runs in measured.items()}
    if not any(curves.values()):
        return None
    canvas = new_canvas(11.0, 4.2)
    whole, enlarged = canvas.subplots(1, 2)
    last = max(round for curve in curves.values() for round in curve)
    for place, (name, curve) in enumerate(curves.items()):
        if curve:
            final = spread([100 * value for value in curve[max(curve)]])
            look = {"color": f"C{place}", "label": f"{_label(name)}: {final}"}
            for axes in (whole, enlarged):
                draw_curve(axes, curve, last, **look)
    enlarged.set_xlim((last + 1) // 2, last + (last == 1))
    if heights := _heights(curves.values(), last):
        enlarged.set_ylim(*heights)
    for axes, title in ((whole, "all rounds"), (enlarged, "enlarged")):
        axes.set(title=title, ylabel="%")
    look: dict[str, Any] = {
        "loc": "outside lower center",
        "ncols": 3,
        "fontsize": "small",
        "frameon": False,
    }
    canvas.legend(*whole.get_legend_handles_labels(), title="last round", **look)
    return svg(canvas)


def _heights(
    curves: Iterable[Mapping[int, Sequence[float]]], last: int
) -> tuple[float, float] | None:
    """Lowest and highest mean of the better half of the rows in the second half of the rounds.

    Means that are not finite do not count; ``None`` if there are no others.
    """
    means = [{r: 100 * mean(values) for r, values in curve.items()} for curve in curves if curve]
    ranked = sorted(means, key=lambda line: nan_as_worst(line[max(line)]), reverse=True)
    better = ranked[: math.ceil(len(ranked) / 2)]
    late = [v for line in better for r, v in line.items() if 2 * r >= last or r == max(line)]
    seen = [value for value in late if math.isfinite(value)]
    if not seen:
        return None
    margin = max(0.1 * (max(seen) - min(seen)), 0.5)
    return min(seen) - margin, max(seen) + margin


def megabytes_panel(measured: Measured, metric: str) -> bytes | None:
    """Score by the megabytes that all clients have sent and received.

    Rows whose clients send nothing up are left out, such as local training.

    Args:
        measured: Measurements of every row.
        metric: Name of a score between 0 and 1 of the whole federation.
    """
    lines = {}
    for name, runs in measured.items():
        if not any(row.name == "bytes/up" and row.value > 0 for rows in runs for row in rows):
            continue
        scores = mean_curve(runs, metric)
        sent = [megabytes(rows) for rows in runs]
        rounds = [r for r in scores if all(one.get(r, 0.0) > 0 for one in sent)]
        x = [mean([one[r] for one in sent]) for r in rounds]
        lines[name] = x, [100 * mean(scores[r]) for r in rounds]
    axes = {"xscale": "log", "xlabel": "megabytes up and down, all clients", "ylabel": "%"}
    return _lines(measured, lines, 4.0, axes, markersize=4)


def _lines(
    measured: Measured,
    lines: Mapping[str, tuple[list[float], list[float]]],
    height: float,
    labels: Mapping[str, Any],
    **look: Any,
) -> bytes | None:
    """A line for each row that has points, in the row's colour."""
    canvas = new_canvas(8.0, height)
    axes = canvas.subplots()
    for place, name in enumerate(measured):
        x, y = lines.get(name, ([], []))
        if x:
            marker = "o" if len(x) == 1 else "."
            axes.plot(x, y, color=f"C{place}", label=_label(name), marker=marker, **look)
    if not axes.lines:
        return None
    axes.set(**labels)
    axes.grid(alpha=0.3)
    canvas.legend(**_OUTSIDE)
    return svg(canvas)


def clients_panel(scores: Mapping[str, Sequence[float]]) -> bytes | None:
    """Sorted scores of the clients of every row, one bar for each client and seed if finite.

    Args:
        scores: Scores of clients by row, between 0 and 1.
    """
    finite = {name: sorted(filter(math.isfinite, values)) for name, values in scores.items()}
    given = {name: values for name, values in finite.items() if values}
    if not given:
        return None
    columns = min(4, len(given))
    height = math.ceil(len(given) / columns)
    canvas = new_canvas(11.0, 0.4 + 1.9 * height)
    grid = canvas.subplots(height, columns, sharey=True, squeeze=False).ravel()
    for axes in grid[len(given) :]:
        axes.set_axis_off()
    for place, (axes, (name, values)) in enumerate(zip(grid, given.items(), strict=False)):
        axes.stairs([100 * value for value in values], fill=True, color=f"C{place}", alpha=0.7)
        axes.axhline(100 * statistics.median(values), color="black", linewidth=0.8)
        axes.set_title(_label(name), fontsize="small")
        axes.set(xlim=(0, len(values)), ylim=(0, 100), xticks=[])
        axes.grid(alpha=0.3, axis="y")
    for axes in grid[::columns]:
        axes.set_ylabel("%")
    return svg(canvas)


def curvatures_panel(measured: Measured, metric: str) -> bytes | None:
    """Last value of a measurement of every client, such as its curvature, sorted.

    Args:
        measured: Measurements of every row.
        metric: Name of a measurement that clients report.
    """
    lines = {}
    for name, runs in measured.items():
        found = (value for rows in runs for value in client_values(rows, metric).values())
        values = sorted(filter(math.isfinite, found))
        lines[name] = [(i + 0.5) / len(values) for i in range(len(values))], values
    axes = {"xlabel": "share of the clients", "ylabel": metric, "xlim": (0, 1)}
    return _lines(measured, lines, 3.5, axes, linewidth=0.8)


def seconds_panel(
    measured: Measured, times: Mapping[str, Sequence[Sequence[ExchangeTime]]]
) -> bytes | None:
    """Mean seconds of a run by part, one bar for each row.

    Args:
        measured: Measurements of every row.
        times: Seconds of the exchanges of the same runs.
    """
    spent = {
        name: [seconds_by_part(rows, spans) for rows, spans in zip(runs, times[name], strict=True)]
        for name, runs in measured.items()
    }
    if not any(value for runs in spent.values() for parts in runs for value in parts.values()):
        return None
    canvas = new_canvas(8.0, 1.2 + 0.3 * len(spent))
    axes = canvas.subplots()
    names, left = [_label(name) for name in spent], [0.0] * len(spent)
    parts = next(run for runs in spent.values() for run in runs)
    for part in parts:
        means = [mean([run[part] for run in runs]) for runs in spent.values()]
        axes.barh(names, means, left=left, label=part)
        left = [before + more for before, more in zip(left, means, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="seconds, mean over seeds")
    axes.grid(alpha=0.3, axis="x")
    canvas.legend(**_OUTSIDE)
    return svg(canvas)


def _label(name: str) -> str:
    """A name as it is: matplotlib would set what stands between two dollars as a formula."""
    return name.replace("$", r"\$")
