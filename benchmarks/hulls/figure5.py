"""Accuracy over a parameter, from sweeps with settings, as a table and a figure.

The settings of a sweep must be named by a parameter and a number, such as ``mu 0.2``. Each sweep's
folder becomes a panel with one line per row: the mean over seeds and its 95 % interval.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.table import half_width, head, interval, line
from fedbolic.report.table_rows import find
from fedbolic.report.text_report import G_FL, P_FL, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDE = 100.0
"""Ratio of the parameter's values above which the axis is logarithmic."""


def panel(axes: "Axes", folder: Path, colours: dict[str, str], score: str = G_FL) -> str:
    """Draw one sweep, a score over the parameter; return its table."""
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    parameter = ""
    for setting in sorted(path for path in folder.iterdir() if path.is_dir()):
        parameter, _, value = setting.name.partition(" ")
        for row in find(setting):
            found = [summary(run.rows()).get(score) for run in row.finished]
            values = [accuracy for accuracy in found if accuracy is not None]
            if values:
                lines.setdefault(row.name, []).append((float(value), values))
    for name, measured in lines.items():
        at = [value for value, _ in sorted(measured)]
        values = [accuracies for _, accuracies in sorted(measured)]
        means = [statistics.fmean(v) for v in values]
        errors = [half_width(v) if len(v) > 1 else 0.0 for v in values]
        colour = colours.setdefault(name, f"C{len(colours)}")
        axes.errorbar(at, means, errors, color=colour, marker=".", capsize=3, label=name)
    places = {value for measured in lines.values() for value, _ in measured}
    if min(places, default=0) > 0 and max(places) > WIDE * min(places):
        axes.set_xscale("log")
    axes.set(xlabel=parameter, ylabel="accuracy %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    rows = [head(parameter, *(f"{value:g}" for value in sorted(places)))]
    for name, measured in lines.items():
        cells = {value: interval(accuracies) for value, accuracies in measured}
        rows.append(line(name, *(cells.get(value, "") for value in sorted(places))))
    return "\n".join(rows)


def draw_sweeps(folders: Sequence[Path], file: Path, *, clients: bool) -> None:
    """Print the tables of sweeps and draw them side by side.

    Args:
        folders: Folders of sweeps with settings.
        file: File of the figure.
        clients: True for the accuracy at the clients, False for that at the server.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(4.5 * len(folders), 3.5), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, len(folders), squeeze=False)[0]
    colours: dict[str, str] = {}
    for axes, folder in zip(panels, folders, strict=True):
        title = f"{folder.name} at clients" if clients else folder.name
        print(f"**{title}**\n\n{panel(axes, folder, colours, P_FL if clients else G_FL)}\n")
    canvas.savefig(file, dpi=100)
    print(file)
