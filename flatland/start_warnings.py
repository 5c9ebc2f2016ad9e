"""Warnings about features and curvatures with which training starts badly."""

from typing import Literal

from torch import Tensor

from fedbolic.core.log import logger
from fedbolic.core.types import Meta
from fedbolic.data import Client, Graph
from flatland.graphs.blocks import graph_block
from flatland.graphs.ricci import Estimator

FAR_RADII = 3.0
"""Distance of features from the origin, in radii of curvature, above which a warning is given.

There a distance grows like the logarithm of the features, and gradients fall with their length.
"""

_GIVEN: set[tuple[Literal["clamped", "far"] | int, Estimator | None, Meta]] = set()
"""Warnings that this process has given, and the numbers of the clients that it has looked at."""


def warn_of_start(
    graph: Graph, c: Tensor | float, client: Client, estimator: Estimator | None
) -> None:
    """Warn if the estimate of the curvature was clamped, or if features lie far from the origin.

    Each of the two warnings is given once in a process for an estimator and a federation, about the
    first client concerned. A client is looked at once, as that waits for the device.

    Args:
        graph: Graph of the client.
        c: Curvature with which the client starts, above 0.
        client: The client; its number and its federation are used.
        estimator: Estimator of the curvature; ``None`` if the server sent the curvature.
    """
    key = estimator, client.meta
    if (client.id, *key) in _GIVEN:
        return
    _GIVEN.add((client.id, *key))
    if estimator is not None and ("clamped", *key) not in _GIVEN:
        estimate, used = estimator.unbounded(graph), estimator.c(graph)
        if estimate != used:
            _GIVEN.add(("clamped", *key))
            logger.warning(
                "client %d: %s estimates a curvature of %.3g, which is clamped to %.3g; other "
                "clients are not reported: consider flatland.Constant, which starts at 1",
                *(client.id, type(estimator).__name__, estimate, used),
            )
    if ("far", *key) not in _GIVEN:
        radii = float(c) ** 0.5 * graph_block((graph,)).norms
        share = float((radii > FAR_RADII).double().mean())
        if share:
            _GIVEN.add(("far", *key))
            logger.warning(
                "client %d: the features of %.0f %% of the nodes lie more than %g curvature radii "
                "from the origin, the farthest %.1f; other clients are not reported: consider "
                "scale='l2' of the data, or a curvature nearer to 0",
                *(client.id, 100 * share, FAR_RADII, float(radii.max())),
            )
