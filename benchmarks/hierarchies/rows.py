"""Embeddings of a hierarchy by this library, geoopt and torch, trained on the same batches."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import geoopt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import Clock
from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy
from fedbolic.manifolds import Euclidean, Lorentz, Poincare
from fedbolic.nn import (
    BurnInSchedule,
    HyperbolicEmbedding,
    NegativeSampler,
    RankingLoss,
    RankingScores,
    rank_and_map,
)
from fedbolic.optim.modules import RiemannianAdam

START = 1e-3
"""Bound of the initial coordinates, the same in every row (Nickel and Kiela 2017, Sec. 3.2)."""


@dataclass(frozen=True)
class NodeTable:
    """Points of all nodes, their distance and the optimiser that moves them."""

    points: Callable[[], Tensor]
    dist: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer


def ball_tangents(start: Tensor) -> NodeTable:
    """``HyperbolicEmbedding`` in the ball and torch's Adam."""
    return tangents(Poincare, start)


def hyperboloid_tangents(start: Tensor) -> NodeTable:
    """The same tangents, with points on the hyperboloid."""
    return tangents(Lorentz, start)


def tangents(kind: type[Lorentz] | type[Poincare], start: Tensor) -> NodeTable:
    """``HyperbolicEmbedding`` and torch's Adam."""
    embedding = HyperbolicEmbedding(kind(), *start.shape, dtype=start.dtype)
    embedding.load_state_dict({"weight": start}, strict=False)
    nodes = torch.arange(len(start))
    adam = torch.optim.Adam(embedding.parameters())
    return NodeTable(lambda: embedding(nodes), embedding.manifold.dist, adam)


def ball_points(start: Tensor) -> NodeTable:
    """Points of our ball and our Riemannian Adam."""
    ball = Poincare(1.0)
    points = nn.Parameter(ball.expmap0(start))
    return NodeTable(lambda: points, ball.dist, RiemannianAdam([points], space=ball))


def hyperboloid_points(start: Tensor) -> NodeTable:
    """Points of our hyperboloid and our Riemannian Adam."""
    lorentz = Lorentz(1.0)
    points = nn.Parameter(lorentz.expmap0(lorentz.lift(start)))
    return NodeTable(lambda: points, lorentz.dist, RiemannianAdam([points], space=lorentz))


def geoopt_parameter(points: Tensor, manifold: geoopt.Manifold) -> nn.Parameter:
    """A parameter that geoopt's optimisers keep on a manifold."""
    # ManifoldParameter's __new__ takes the manifold, the stub of Parameter's __init__ does not
    return geoopt.ManifoldParameter(points, manifold=manifold)  # pyright: ignore[reportCallIssue]


def geoopt_ball(start: Tensor) -> NodeTable:
    """Points of geoopt's ball and geoopt's Riemannian Adam."""
    ball = geoopt.PoincareBall()
    points = geoopt_parameter(ball.expmap0(start), ball)
    return NodeTable(lambda: points, ball.dist, geoopt.optim.RiemannianAdam([points]))


def geoopt_lorentz(start: Tensor) -> NodeTable:
    """Points of geoopt's hyperboloid and geoopt's Riemannian Adam."""
    lorentz = geoopt.Lorentz()
    tangent = functional.pad(start, (1, 0))
    points = geoopt_parameter(lorentz.expmap0(tangent), lorentz)
    return NodeTable(lambda: points, lorentz.dist, geoopt.optim.RiemannianAdam([points]))


def flat(start: Tensor) -> NodeTable:
    """Vectors, their Euclidean distance and torch's Adam."""
    vectors = nn.Parameter(start.clone())
    return NodeTable(lambda: vectors, Euclidean().dist, torch.optim.Adam([vectors]))


@dataclass(frozen=True)
class Setting:
    """Settings of the optimiser, of which every row tries the same number.

    Args:
        lr: Step size before the multiplier of the schedule.
        restart: Steps after which Adam's moments start again from zero; 0 for never.
    """

    lr: float
    restart: int = 0


@dataclass(frozen=True)
class Recipe:
    """Course of the step size, and the settings to choose from."""

    schedule: BurnInSchedule
    tries: tuple[Setting, ...]


PLAIN = Recipe(
    BurnInSchedule(share=0.05, cooling=0.0), tuple(Setting(lr) for lr in (0.01, 0.03, 0.1, 0.3))
)
"""A tenth of the step size in the first 5 % of the steps, then the whole."""

COOLED = Recipe(
    BurnInSchedule(share=0.06, cooling=0.3, lowest=0.02),
    tuple(Setting(lr, restart) for lr in (0.03, 0.1) for restart in (10, 200)),
)
"""Moments that are restarted, and a step size that falls over the last 30 % of the steps."""

ROWS: dict[str, tuple[Callable[[Tensor], NodeTable], Recipe]] = {
    "ours, tangents, torch Adam": (ball_tangents, PLAIN),
    "ours, points of the ball": (ball_points, PLAIN),
    "ours, points of the hyperboloid": (hyperboloid_points, PLAIN),
    "geoopt, ball": (geoopt_ball, PLAIN),
    "geoopt, hyperboloid": (geoopt_lorentz, PLAIN),
    "Euclidean, torch Adam": (flat, PLAIN),
    "ours, tangents, torch Adam; cooled": (ball_tangents, COOLED),
    "ours, tangents on the hyperboloid, torch Adam; cooled": (hyperboloid_tangents, COOLED),
    "ours, points of the ball; cooled": (ball_points, COOLED),
    "geoopt, ball; cooled": (geoopt_ball, COOLED),
    "Euclidean, torch Adam; cooled": (flat, COOLED),
}
"""Constructor and recipe of every row of the tables."""


@dataclass(frozen=True)
class Training:
    """Settings that all rows share."""

    epochs: int = 100
    batch_size: int = 512
    num_negatives: int = 20

    def num_steps(self, hierarchy: Hierarchy) -> int:
        """Number of all steps."""
        return self.epochs * math.ceil(hierarchy.num_pairs / self.batch_size)

    def batches(self, hierarchy: Hierarchy, generator: torch.Generator) -> Iterator[Tensor]:
        """Pairs of every step, in a new order in each epoch."""
        for _ in range(self.epochs):
            order = torch.randperm(hierarchy.num_pairs, generator=generator)
            yield from hierarchy.pairs[order].split(self.batch_size)


@dataclass(frozen=True)
class TrainedTable:
    """Points after training."""

    table: NodeTable
    loss: float
    seconds: float

    def scores(self, hierarchy: Hierarchy) -> RankingScores:
        """Mean rank and MAP of the ancestors of every node; NaN if training diverged."""
        points = self.table.points().detach()
        if not (math.isfinite(self.loss) and points.isfinite().all()):
            return RankingScores(math.nan, math.nan)
        return rank_and_map(
            lambda rows: self.table.dist(points[rows].unsqueeze(1), points),
            hierarchy.pairs,
            num_nodes=len(hierarchy),
        )


def initial(num_nodes: int, dim: int, *, seed: int, dtype: torch.dtype) -> Tensor:
    """Start of a table: tangents at the origin, uniform within ``START``."""
    generator = Rng(seed).at("start").generator()
    uniform = torch.rand(num_nodes, dim, generator=generator, dtype=torch.float64)
    return ((2 * uniform - 1) * START).to(dtype)


def train(
    row: str,
    hierarchy: Hierarchy,
    *,
    setting: Setting,
    dim: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    training: Training = Training(),
) -> TrainedTable:
    """Train a row of ``ROWS``; rows of the same seed see the same batches and negatives."""
    make, recipe = ROWS[row]
    table = make(initial(len(hierarchy), dim, seed=seed, dtype=dtype))
    loss, num_steps = math.nan, training.num_steps(hierarchy)
    order, draws = (Rng(seed).at(name).generator() for name in ("order", "negatives"))
    sampler, clock = NegativeSampler(training.num_negatives), Clock()
    for step, pairs in enumerate(training.batches(hierarchy, order)):
        if setting.restart and step % setting.restart == 0:
            table.optimizer.state.clear()
        for group in table.optimizer.param_groups:
            group["lr"] = setting.lr * recipe.schedule(step, num_steps=num_steps)
        u, v = pairs.unbind(1)
        negatives, mask = sampler(u, hierarchy.keys, num_nodes=len(hierarchy), generator=draws)
        objective = batch_loss(table, u, torch.cat((v.unsqueeze(1), negatives), 1), mask)
        table.optimizer.zero_grad()
        objective.backward()
        table.optimizer.step()
        loss = objective.item()
        if not math.isfinite(loss):
            break
    return TrainedTable(table, loss, clock.lap())


def batch_loss(table: NodeTable, first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """Mean ranking loss of a batch."""
    # the points of all nodes once: a batch looks each of them up several times
    points = table.points()
    u = functional.embedding(first, points).unsqueeze(1)
    distance = table.dist(u, functional.embedding(second, points))
    return RankingLoss()(distance[:, 0], distance[:, 1:], mask=mask).mean()
