"""Rows of the table of hierarchies that are fitted to the distances of a known tree."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedbolic.core.rng import Rng
from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.nn.loss.ranking import RowDistances
from fedbolic.optim import Adam

FITTED: dict[str, Callable[[int], NodeTable]] = {
    "flat, fitted": lambda numbers: NodeTable(dim=numbers - 1, c=0.0, bias="both"),
    "hyperbolic, fitted": lambda numbers: NodeTable(dim=numbers),
}
"""Tables by the numbers that a node has."""

NUM_STEPS, BATCH = 2000, 8192
"""Steps of a fit, and pairs of nodes in a step."""


def fit(table: NodeTable, steps: Tensor, lr: float, seed: int) -> tuple[RowDistances, float]:
    r"""Distances fitted to those of a tree, and the mean loss of the last tenth of the steps.

    .. math:: \min \operatorname{mean} \left(\frac{\alpha + \beta d - t}{t}\right)^2

    over random pairs of nodes, by Adam, with a learnt line as in ``distance_error``.

    Args:
        table: Form of the table.
        steps: Distances between all nodes in the tree.
        lr: First step size, which falls to 0.
        seed: Seed of the first table and of the pairs.
    """
    generator = Rng(seed).at("fit").generator()
    num_nodes, numbers = len(steps), table.dim + (table.bias != "none")
    rows = torch.randn(num_nodes, numbers, generator=generator)
    values = {"rows": rows, "line": torch.tensor([0.0, 1.0])}
    optimizer = Adam()
    state, losses = optimizer.init(values), []
    for step in range(NUM_STEPS):
        u, v = torch.randint(num_nodes, (2, BATCH), generator=generator)
        u, v = u[u != v], v[u != v]
        given = {name: x.detach().requires_grad_() for name, x in values.items()}
        embedded, t = table.embed(given["rows"]), steps[u, v]
        alpha, beta = given["line"]
        gap = table.gap(embedded[u], embedded[v])
        loss = (((alpha + beta * gap) - t) / t).square().mean()
        gradients = torch.autograd.grad(loss, list(given.values()))
        named = dict(zip(given, gradients, strict=True))
        with torch.no_grad():
            rate = lr * (1 - step / NUM_STEPS)
            values, state = optimizer.step(values, named, state, lr=rate)
        losses.append(float(loss.detach()))
    embedded = table.embed(values["rows"])
    last = losses[-NUM_STEPS // 10 :]
    return lambda nodes: table.gaps(embedded, nodes), sum(last) / len(last)
