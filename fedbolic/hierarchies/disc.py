"""The figure of an embedded hierarchy in the Poincaré disc."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.core.figure import DiscFigure
from fedbolic.data import Hierarchy
from fedbolic.manifolds import Lorentz, to_poincare

_STEPS = 33
"""Points along a geodesic, enough for a smooth line."""


def disc(points: Float[Tensor, "n 3"], hierarchy: Hierarchy, *, c: float) -> DiscFigure:
    """Nodes and the geodesics to the ancestors one level above, coloured by branch.

    Args:
        points: Points of the hyperboloid, one per node.
        hierarchy: The transitively closed hierarchy.
        c: Minus the sectional curvature, above 0.
    """
    points, pairs = points.double().cpu(), hierarchy.pairs.cpu()
    depths, space = hierarchy.depths.cpu(), Lorentz(c)
    u, v = pairs[depths[pairs[:, 0]] == depths[pairs[:, 1]] + 1].T
    along = torch.linspace(0, 1, _STEPS, dtype=points.dtype).view(-1, 1, 1)
    curves = space.expmap(points[u], along * space.logmap(points[u], points[v]))
    labels = _branches(hierarchy)
    in_disc = (to_poincare(space, x) * c**0.5 for x in (points, curves.transpose(0, 1)))
    in_disc = [x.reshape(-1, 2) for x in in_disc]
    return DiscFigure(
        in_disc[0],
        labels,
        curves=in_disc[1],
        curve_ids=torch.arange(len(u)).repeat_interleave(_STEPS),
        curve_labels=labels[u],
        curve_dashed=torch.zeros(len(u), dtype=torch.bool),
    )


def _branches(hierarchy: Hierarchy) -> Tensor:
    """Number of the branch of every node: 0 for the roots, then the nodes below them."""
    depths, pairs = hierarchy.depths.cpu(), hierarchy.pairs.cpu()
    labels = torch.zeros(len(hierarchy), dtype=torch.int64)
    heads = (depths == 1).nonzero().flatten()
    labels[heads] = torch.arange(1, len(heads) + 1)
    below = depths[pairs[:, 1]] == 1
    labels[pairs[below, 0]] = labels[pairs[below, 1]]
    return labels
