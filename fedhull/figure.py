"""Figure of FedHull's result in the disc: received hulls, reference points, boundaries."""

import numpy as np
import torch
from jaxtyping import Float

from fedbolic.core.figure import DiscFigure
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.manifolds import Poincare
from fedhull.boundary import Boundary
from fedhull.exchanges import arrays
from fedhull.geometry.hull import hull
from fedhull.quantise import PolarGrid

_NUM_DRAWN = 2000
"""Test points in a figure; more would hide one another."""

STEPS = 24
"""Line segments with which a side of a hull is drawn."""


def hull_figure(
    grid: PolarGrid, boundary: Boundary, server_state: Tree, holdout: Client
) -> DiscFigure:
    """Test points, all clients' hulls, reference points as marks, and all decision boundaries.

    The class with the most client votes for a group gives the colour of its hulls and its reference
    point.

    Args:
        grid: Polar grid of bins.
        boundary: The classifier that the server trained.
        server_state: State of the server after the last exchange.
        holdout: Client whose test points are drawn.
    """
    points, labels = (array[:_NUM_DRAWN] for array in arrays(holdout.test))
    names, hulls = server_state["names"].cpu().numpy(), server_state["hulls"]
    bins, owners, groups = (hulls[name].cpu().numpy() for name in ("bins", "labels", "groups"))
    curves, colours = [], []
    for label in np.unique(owners):
        corners = grid.decode(bins[owners == label])
        curves.append(outline(corners[hull(corners, c=grid.c)], c=grid.c))
        colours.append(names[groups[owners == label][0]])
    num_hulls = len(curves)
    lines = boundary.curves(server_state["model"], c=grid.c)
    # for two classes there is only the boundary of the second group
    curves += lines
    colours += list(names if len(lines) == len(names) else names[1:])
    at = (
        server_state["model"].get("points", torch.empty(0, 2)).double().cpu()
    )  # Euclidean boundaries have none
    marks = at[torch.from_numpy(names.argsort())] if len(at) == len(names) else at
    scale = grid.c**0.5  # the figure's disc has radius 1
    return DiscFigure(
        torch.from_numpy(points) * scale,
        torch.from_numpy(labels),
        marks * scale,
        curves=torch.from_numpy(np.concatenate(curves)) * scale,
        curve_ids=torch.from_numpy(np.repeat(np.arange(len(curves)), [len(of) for of in curves])),
        curve_labels=torch.from_numpy(np.array(colours, dtype=np.int64)),
        curve_dashed=torch.arange(len(curves)) >= num_hulls,
    )


def outline(corners: Float[np.ndarray, "n 2"], *, c: float = 1.0) -> Float[np.ndarray, "m 2"]:
    """Points along the geodesic sides of a hull, back to the first corner.

    Args:
        corners: Corners of the hull in order.
        c: Minus the curvature, above 0.
    """
    start, space = torch.from_numpy(corners), Poincare(c)
    along = space.logmap(start, start.roll(-1, dims=0))
    at = torch.arange(STEPS, dtype=torch.float64)[:, None] / STEPS
    points = space.expmap(start[:, None], at * along[:, None]).flatten(0, 1)
    return torch.cat([points, start[:1]]).numpy()
