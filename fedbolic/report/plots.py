"""Plots of the metrics and figures of runs, as PNG files.

They need matplotlib (the extra ``plots``); without it, nothing is drawn.
"""

import importlib.util
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedbolic.core import figure
from fedbolic.core.figure import DiscFigure
from fedbolic.core.imports import extra
from fedbolic.core.log import logger
from fedbolic.core.rows import Row
from fedbolic.report.comparison import indistinct_groups
from fedbolic.report.run_scores import mean, mean_curve
from fedbolic.run.record import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS, SHAPES = "tab10", "os^DvP*X<>"
"""Colour k mod 10 and marker k // 10 for class k, which distinguishes 26 and more classes."""


def plot(measured: Mapping[str, Sequence[Sequence[Row]]], file: Path) -> None:
    """Plot accuracy by round, with a line for each name and a band over its seeds.

    Args:
        measured: Measurements of runs by name, one sequence of rows per seed.
        file: PNG file to write.
    """
    if not installed():
        return
    canvas = new_canvas(11.0, 4.5)
    panels = {"holdout/accuracy": "the server's test set", "test/accuracy": "at the clients"}
    for axes, (name, title) in zip(canvas.subplots(1, 2), panels.items(), strict=True):
        for place, (label, runs) in enumerate(measured.items()):
            # one colour in both panels
            draw_curve(axes, mean_curve(runs, name), color=f"C{place}", label=label)
        axes.set(title=title, ylabel="accuracy %")
        if axes.lines:
            axes.legend(fontsize="small")
    _save(canvas, file)


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
    if not installed():
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
    _save(canvas, file)


def image_links(files: Iterable[Path], folder: Path) -> str:
    """Markdown that shows the images that exist, each in a paragraph; empty without any.

    Args:
        files: Image files, wherever they are.
        folder: Folder of the page.
    """
    shown = [os.path.relpath(file, folder) for file in files if file.exists()]
    return "".join(f"\n![{Path(name).stem}](<{Path(name).as_posix()}>)\n" for name in shown)


def draw_figures(runs: Mapping[str, RunFolder]) -> None:
    """Draw every saved figure next to its arrays; a figure that cannot be drawn is a warning.

    Projections take long and are not redrawn: delete the PNG file to draw one again.

    Args:
        runs: Folders of runs by title.
    """
    if not installed():
        return
    for title, folder in runs.items():
        for file in folder.figures():
            try:
                draw_figure(file, title=title)
            except Exception as error:  # the other figures are still drawn
                logger.warning("%s cannot be drawn: %r", file, error)


def draw_figure(file: Path, *, title: str) -> None:
    """Draw one figure as a PNG file next to its arrays.

    Args:
        file: File with the arrays of the figure.
        title: Prefix of the figure's own title.

    Raises:
        ValueError: If the file does not hold a figure of a known kind.
    """
    drawn, saved = file.with_suffix(".png"), figure.read_figure(file)
    columns = math.ceil(len(saved.labels.unique()) / 26)  # of the legend
    canvas = new_canvas(7.0 + columns, 7.0)
    axes = canvas.subplots()
    axes.set_axis_off()
    axes.set_aspect("equal")
    if isinstance(saved, DiscFigure):
        axes.set_title(f"{title}: {file.stem} in the Poincaré disc")
        _fill_disc(axes, saved)
    elif not drawn.exists():
        found = importlib.util.find_spec("umap") is not None
        axes.set_title(f"{title}: {'UMAP' if found else 'PCA'} of {saved.of}")
        _scatter(axes, (umap if found else pca)(saved.points), saved.labels)
    else:
        return
    if columns:
        legend = canvas.legend(loc="outside right center", ncols=columns, frameon=False)
        for handle in filter(None, legend.legend_handles):
            handle.set(sizes=[36], alpha=1)
    _save(canvas, drawn)


def umap(points: Tensor) -> Tensor:
    """Project points to the plane; neighbourhoods are kept, but not lengths and angles.

    Raises:
        MissingExtraError: If the extra ``umap`` is not installed.

    References:
        McInnes, Healy and Melville (2018), arXiv:1802.03426.
    """
    with extra("umap", "a projection by UMAP"):
        projection = importlib.import_module("umap").UMAP(random_state=0, n_jobs=1)
    return torch.from_numpy(projection.fit_transform(points.numpy()))


def pca(points: Tensor) -> Tensor:
    """Project points to the plane of their two directions of largest variance.

    The drawing of an embedding where umap-learn is not installed: linear, so distances within the
    plane are true, but what lies outside it is lost.

    References:
        Pearson (1901), On lines and planes of closest fit to systems of points in space.

    Example:
        >>> pca(torch.tensor([[3.0, 0.0, 1.0], [-3.0, 0.0, 1.0]]))
        tensor([[ 3.,  0.],
                [-3.,  0.]])
    """
    centred = points.double() - points.double().mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    # either sign is right: the one with a positive largest coordinate is the same everywhere
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    plane = centred @ (directions * largest.sign())[:2].T
    missing = 2 - plane.shape[1]  # of fewer than two points or dimensions
    return torch.nn.functional.pad(plane, (0, max(missing, 0))).to(points.dtype)


def _fill_disc(axes: "Axes", disc: DiscFigure) -> None:
    from matplotlib.patches import Circle

    axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    rim = axes.add_patch(Circle((0, 0), 1, fill=False, linewidth=1))
    if len(disc.marks) and not disc.curve_dashed.any():
        width = 500
        colours = np.array([_colour(k) for k in range(len(disc.marks))])
        shown = colours[nearest_marks(disc.marks, width).numpy()]
        frame = {"extent": (-1, 1, -1, 1), "origin": "lower", "alpha": 0.15}
        axes.imshow(shown, **frame).set_clip_path(rim)
    _scatter(axes, disc.points, disc.labels)
    for i, (k, dashed) in enumerate(
        zip(disc.curve_labels.tolist(), disc.curve_dashed.tolist(), strict=True)
    ):
        x, y = disc.curves[disc.curve_ids == i].T.numpy()
        look = {"color": _colour(k), "linestyle": "--" if dashed else "-"}
        axes.plot(x, y, linewidth=1.5 if dashed else 0.8, marker="." if len(x) == 1 else "", **look)
    area = min(280, 8000 / max(len(disc.marks), 1))  # in square points; all fit on the boundary
    text = {"ha": "center", "va": "center_baseline", "fontsize": 0.5 * math.sqrt(area)}
    for k, (x, y) in enumerate(disc.marks.tolist()):
        edge = {"edgecolor": _colour(k), "linewidth": 0.15 * math.sqrt(area)}
        axes.scatter(x, y, area, color="white", **edge, zorder=3)
        axes.annotate(str(k), (x, y), **text, zorder=4)


def nearest_marks(marks: Float[Tensor, "m 2"], width: int) -> Int[Tensor, "width width"]:
    """Number of the mark that is nearest by hyperbolic distance, for each pixel of the disc.

    The factor of the point in the distance is common to all marks, so the nearest one has the least
    :math:`|x - m|^2 / (1 - |m|^2)`; the boundaries are geodesics.

    Args:
        marks: Marks within the unit disc.
        width: Pixels of a side of the square that contains the disc; row 0 is the lowest.

    Example:
        >>> nearest_marks(torch.tensor([[-0.5, 0.0], [0.5, 0.0]]), width=2)
        tensor([[0, 1],
                [0, 1]])
    """
    along = (torch.arange(width, dtype=torch.float64) + 0.5) * 2 / width - 1
    pixels = torch.stack(torch.meshgrid(along, along, indexing="xy"), dim=-1)
    at = marks.double()
    room = (1 - at.square().sum(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
    return ((pixels[:, :, None] - at).square().sum(dim=-1) / room).argmin(dim=-1)


def _scatter(axes: "Axes", points: Tensor, labels: Tensor) -> None:
    area = float(np.clip(30000 / max(len(points), 1), 6, 36))  # in square points
    for k in labels.unique().tolist():
        x, y = points[labels == k].T.numpy()
        look = {"color": _colour(k), "marker": SHAPES[k // 10 % len(SHAPES)], "label": str(k)}
        axes.scatter(x, y, area, alpha=0.6, linewidths=0, **look)


def _colour(k: int) -> tuple[float, float, float, float]:
    import matplotlib

    return matplotlib.colormaps[COLOURS](k % 10)


def installed() -> bool:
    """True if matplotlib, the extra ``plots``, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def new_canvas(width: float, height: float) -> "Figure":
    """An empty matplotlib figure that needs no display.

    Args:
        width: Inches.
        height: Inches.
    """
    with extra("plots", "a plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def _save(canvas: "Figure", file: Path) -> None:
    draft = file.with_suffix(".png.draft")
    canvas.savefig(draft, dpi=120, format="png")
    draft.replace(file)  # atomic, so that an existing file is always complete
