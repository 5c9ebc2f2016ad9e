"""Plots of the metrics and figures of runs, as PNG files.

They need matplotlib (the extra ``plots``); without it, nothing is drawn. A file has the digest of
what it shows, and is kept while it shows that.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbolic.core.checksums import text_digest
from fedbolic.core.log import logger
from fedbolic.core.reading import read_bytes
from fedbolic.core.rows import Row
from fedbolic.report.canvas import installed, is_shown, new_canvas, save, shown_digest
from fedbolic.report.comparison import indistinct_groups
from fedbolic.report.run_scores import mean, mean_curve
from fedbolic.run.run_files import RunFiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(measured: Mapping[str, Sequence[Sequence[Row]]], file: Path) -> None:
    """Plot accuracy by round, with a line for each name and a band over its seeds.

    Args:
        measured: Measurements of runs by name, one sequence of rows per seed.
        file: PNG file to write.
    """
    names = {"holdout/accuracy": "the server's test set", "test/accuracy": "at the clients"}
    panels = {
        title: {label: mean_curve(runs, name) for label, runs in measured.items()}
        for name, title in names.items()
    }
    if not installed() or is_shown(file, digest := shown_digest(panels)):
        return
    canvas = new_canvas(11.0, 4.5)
    for axes, (title, curves) in zip(canvas.subplots(1, 2), panels.items(), strict=True):
        for place, (label, curve) in enumerate(curves.items()):
            draw_curve(axes, curve, color=f"C{place}", label=label)  # one colour in both panels
        axes.set(title=title, ylabel="accuracy %")
        if axes.lines:
            axes.legend(fontsize="small", loc="best")  # by default it warns of a busy machine
    save(canvas, file, digest)


def draw_curve(
    axes: "Axes", curve: Mapping[int, Sequence[float]], last: int = 0, **look: Any
) -> None:
    """Draw the mean of a score by round in %, and its range over seeds.

    Args:
        axes: Axes to draw in.
        curve: Scores of the seeds by round.
        last: The last round of all curves; if it is 1, a score of one round is a point.
        **look: Colour and label.
    """
    means = [100 * mean(scores) for scores in curve.values()]
    if len(means) == 1 and last != 1:  # a method of one round is a baseline for all rounds
        axes.axhline(means[0], linestyle="--", **look)
    elif means:
        axes.plot(list(curve), means, marker="o" if last == 1 else "", **look)
        low, high = ([100 * f(scores) for scores in curve.values()] for f in (min, max))
        axes.fill_between(list(curve), low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)


def plot_ranks(ranks: Mapping[str, float], critical: float, file: Path) -> None:
    """Plot mean ranks on a line, the best on the left, as in critical-difference diagrams.

    A bar joins rows whose mean ranks differ by less than the critical difference.

    Args:
        ranks: Mean rank of every row, at least 1.
        critical: Critical difference of mean ranks.
        file: PNG file to write.
    """
    if not installed() or is_shown(file, digest := shown_digest([*ranks.items(), critical])):
        return
    names = sorted(ranks, key=lambda name: ranks[name])
    places = [ranks[name] for name in names]
    groups = indistinct_groups(places, critical)
    canvas = new_canvas(8.0, 1.0 + 0.3 * len(names) + 0.15 * len(groups))
    axes = canvas.subplots()
    top = len(groups) + 1.0
    for level, (first, last) in enumerate(groups, 1):
        axes.plot([places[first], places[last]], [level, level], color="black", linewidth=3)
    for i, (name, place) in enumerate(zip(names, places, strict=True)):
        height = top + 1.5 * (len(names) - i)  # no label crosses a line
        axes.plot([place, place], [0, height], color=f"C{i}", linewidth=0.8, marker="o", ms=4)
        axes.annotate(f" {name} ({place:.2f})", (place, height), va="center", fontsize="small")
    axes.set(xlabel=f"mean rank; critical difference {critical:.2f}", xlim=(1, len(names) + 1))
    axes.set_ylim(0, top + 1.5 * (len(names) + 1))
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    save(canvas, file, digest)


def image_links(files: Iterable[Path], folder: Path) -> str:
    """Markdown that shows the images that exist, each in a paragraph; empty without any.

    Args:
        files: Image files, wherever they are.
        folder: Folder of the page.
    """
    shown = [os.path.relpath(file, folder) for file in files if file.exists()]
    return "".join(f"\n![{Path(name).stem}](<{Path(name).as_posix()}>)\n" for name in shown)


def draw_figures(runs: Mapping[str, RunFiles]) -> None:
    """Draw every saved figure next to its arrays; a figure that cannot be drawn is a warning.

    Args:
        runs: Folders of runs by title.
    """
    if not installed():
        return
    for title, folder in runs.items():
        for file in folder.figures():
            drawn = file.with_suffix(".png")
            try:
                if not is_shown(
                    drawn, digest := shown_digest([title, text_digest(read_bytes(file))])
                ):
                    from fedbolic.report.figure_plots import draw_figure  # needs torch

                    draw_figure(file, title=title, digest=digest)
            except Exception as error:  # the other figures are still drawn
                logger.warning("%s cannot be drawn: %r", file, error)
