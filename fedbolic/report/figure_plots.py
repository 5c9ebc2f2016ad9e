"""Drawings of the figures of methods: the Poincaré disc, and projections of embeddings."""

import importlib
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedbolic.core import figure
from fedbolic.core.figure import DiscFigure
from fedbolic.core.imports import extra
from fedbolic.report.canvas import new_canvas, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS, SHAPES = "tab10", "os^DvP*X<>"
"""Colour k mod 10 and marker k // 10 for class k, which distinguishes 26 and more classes."""


def draw_figure(file: Path, *, title: str, digest: str) -> None:
    """Draw one figure as a PNG file next to its arrays.

    Args:
        file: File with the arrays of the figure.
        title: Prefix of the figure's own title.
        digest: Digest of the arrays and the title.

    Raises:
        ValueError: If the file does not hold a figure of a known kind.
    """
    saved = figure.read_figure(file)
    columns = math.ceil(len(saved.labels.unique()) / 26)  # of the legend
    canvas = new_canvas(7.0 + columns, 7.0)
    axes = canvas.subplots()
    axes.set_axis_off()
    axes.set_aspect("equal")
    if isinstance(saved, DiscFigure):
        axes.set_title(f"{title}: {file.stem} in the Poincaré disc")
        _fill_disc(axes, saved)
    else:
        found = importlib.util.find_spec("umap") is not None
        axes.set_title(f"{title}: {'UMAP' if found else 'PCA'} of {saved.of}")
        _scatter(axes, (umap if found else pca)(saved.points), saved.labels)
    if columns:
        legend = canvas.legend(loc="outside right center", ncols=columns, frameon=False)
        for handle in filter(None, legend.legend_handles):
            handle.set(sizes=[36], alpha=1)
    save(canvas, file.with_suffix(".png"), digest)


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
    with extra("plots", "a plot"):
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
    with extra("plots", "a plot"):
        import matplotlib

    return matplotlib.colormaps[COLOURS](k % 10)
