"""A table of nodes and its scores of pairs: distances or products, with a bias for every node."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import RankingLoss
from fedbolic.nn.functional.coordinates import from_tangent
from fedbolic.nn.layers.embedding import HyperbolicEmbedding
from fedbolic.nn.network.model import Model

TABLE = "weight"
"""Parameter name of the table."""

Bias = Literal["none", "ancestor", "both"]
Score = Literal["distance", "dot"]


@dataclass(frozen=True)
class NodeTable:
    r"""Rows of nodes, each a tangent at the origin and, with a bias, one number more.

    .. math:: s(u, v) = -d(u, v) \; [+ b_v \; [+ b_u]], \qquad d(u, v) = d(\exp_0 w_u, \exp_0 w_v)
        \text{ or } -\langle w_u, w_v \rangle

    A bias says how popular a node is as an ancestor, as the radius of a hyperbolic point does. The
    bias of the descendant shifts all scores of its ranking alike: it changes no ranking and, with
    :class:`~fedbolic.nn.RankingLoss`, no training, but makes the scores symmetric.

    Args:
        dim: Dimensions of the space, at least 1. A row holds one number more if there is a bias.
        c: Minus the sectional curvature, at least 0; 0 for flat space.
        bias: Nodes of a pair whose bias is added to its score: ``none``, the ``ancestor``, or
            ``both``.
        score: Similarity of two points: minus their ``distance``, or the ``dot`` product of their
            tangents, which needs flat space.

    Raises:
        ValueError: If a value is outside its range, or products are asked for in curved space.

    References:
        Balažević et al. (2019), MuRP, Eq. (4), arXiv:1905.09791, for distances with biases.

    Example:
        >>> table = NodeTable(dim=2, c=0.0, bias="ancestor")
        >>> rows = torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 1.5]])
        >>> table.gaps(table.embed(rows), torch.tensor([0])).round(decimals=4)
        tensor([[0.0000, 3.5000]])
    """

    dim: int
    c: float = 1.0
    bias: Bias = "none"
    score: Score = "distance"

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim)
        check.not_negative(c=self.c)
        check.one_of(("none", "ancestor", "both"), bias=self.bias)
        check.one_of(("distance", "dot"), score=self.score)
        if self.score == "dot" and self.c:
            raise ValueError(f"products of tangents need flat space, got c={self.c}: set c to 0")

    @property
    def space(self) -> Lorentz | Poincare:
        """The hyperboloid, or the ball without curvature, which is flat."""
        return Lorentz(self.c) if self.c else Poincare(0.0)

    def model(self, num_nodes: int) -> Model:
        """Model that takes numbers of nodes to their points, and biases as a last coordinate.

        Args:
            num_nodes: Number of rows, at least 1.
        """
        return _model(self, num_nodes)

    def embed(self, rows: Float[Tensor, "*batch numbers"]) -> Float[Tensor, "*batch coordinates"]:
        """The output of the model for the nodes with some rows.

        Args:
            rows: Rows of a table.
        """
        if self.bias == "none":
            return from_tangent(self.space, rows)
        return torch.cat((from_tangent(self.space, rows[..., :-1]), rows[..., -1:]), -1)

    def points(self, embedded: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch ambient"]:
        """Points of the space, without biases.

        Args:
            embedded: Output of the model.
        """
        return embedded if self.bias == "none" else embedded[..., :-1]

    def gap(
        self, u: Float[Tensor, "*#batch n"], v: Float[Tensor, "*#batch n"]
    ) -> Float[Tensor, "*batch"]:
        """Minus the scores of pairs, which are distances if there is no bias.

        Args:
            u: Output of the model for the descendants.
            v: Output of the model for the ancestors.
        """
        x, y = self.points(u), self.points(v)
        # coordinates in the flat ball are half of those of the tangents
        gap = -4 * (x * y).sum(-1) if self.score == "dot" else self.space.dist(x, y)
        return self._biased(gap, u, v)

    def gaps(
        self, embedded: Float[Tensor, "n coordinates"], nodes: Int[Tensor, " m"]
    ) -> Float[Tensor, "m n"]:
        """Minus the scores of some nodes as descendants with all nodes.

        Args:
            embedded: Output of :meth:`embed`.
            nodes: Numbers of the descendants.
        """
        y, rows = self.points(embedded), embedded[nodes]
        x = self.points(rows)
        gaps = -4 * x @ y.T if self.score == "dot" else self.space.cdist(x, y)
        return self._biased(gaps, rows.unsqueeze(1), embedded)

    def _biased(self, gap: Tensor, u: Tensor, v: Tensor) -> Tensor:
        if self.bias == "none":
            return gap
        gap = gap - v[..., -1]
        return gap - u[..., -1] if self.bias == "both" else gap

    def losses(
        self, rows: Float[Tensor, "*batch k numbers"], unrelated: Bool[Tensor, "*batch negatives"]
    ) -> Float[Tensor, "*batch"]:
        """Losses of pairs.

        Args:
            rows: Rows of a node, its ancestor and the negatives.
            unrelated: True where a negative counts.
        """
        points = self.embed(rows)
        gaps = self.gap(points[..., :1, :], points[..., 1:, :])
        return RankingLoss()(gaps[..., 0], gaps[..., 1:], mask=unrelated)


@functools.cache
def _model(table: NodeTable, num_nodes: int) -> Model:
    return Model(lambda: _Nodes(table, num_nodes))


class _Nodes(HyperbolicEmbedding):
    """Table whose last column is a bias, if there is one."""

    def __init__(self, table: NodeTable, num_nodes: int) -> None:
        super().__init__(table.space, num_nodes, table.dim + (table.bias != "none"))
        self.table = table

    @override
    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch coordinates"]:
        return self.table.embed(functional.embedding(index, self.weight))
