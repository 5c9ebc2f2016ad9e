"""Ten scores of triples as one family: a query made of head and relation, against every tail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from fedbolic.core import check
from fedbolic.core.types import Params
from fedbolic.formulas.analytic import gap_length, tanhc
from fedbolic.formulas.numerics import without_casts
from fedbolic.manifolds import Poincare

ScoreName: TypeAlias = Literal[
    "TransE", "DistMult", "ComplEx", "RotatE", "RotE", "RotH", "AttE", "AttH", "MuRE", "MuRP"
]
Biases: TypeAlias = Literal["none", "tail", "both"]

INITIAL_SPREAD = 0.01
"""Standard deviation of initial coordinates."""

SMALLEST = {torch.float32: 1e-30, torch.float64: 1e-200}
"""Least squared length whose root is taken, so that the derivative stays finite."""


class ScoreParts(NamedTuple):
    """Parts of which a score is made.

    Args:
        turn: Map of the head by the relation: no map, a scale of every coordinate, a product with
            complex numbers, rotations of planes, or an attention over rotations and reflections.
        moves: Point that the relation translates: the ``query``, the ``tail``, or none.
        near: Similarity of the query and the tail: a product, minus a distance, or minus its
            square.
        curvature: Curvature of the space: ``flat``, ``learnt`` for every relation, or 1 as ``one``.
    """

    turn: Literal["none", "scale", "complex", "rotation", "attention"]
    moves: Literal["none", "query", "tail"]
    near: Literal["product", "distance", "square"]
    curvature: Literal["flat", "learnt", "one"] = "flat"


FORMS: dict[ScoreName, ScoreParts] = {
    "TransE": ScoreParts("none", "query", "distance"),
    "DistMult": ScoreParts("scale", "none", "product"),
    "ComplEx": ScoreParts("complex", "none", "product"),
    "RotatE": ScoreParts("rotation", "none", "distance"),
    "RotE": ScoreParts("rotation", "query", "square"),
    "RotH": ScoreParts("rotation", "query", "square", "learnt"),
    "AttE": ScoreParts("attention", "query", "square"),
    "AttH": ScoreParts("attention", "query", "square", "learnt"),
    "MuRE": ScoreParts("scale", "tail", "square"),
    "MuRP": ScoreParts("scale", "tail", "square", "one"),
}


class Query(NamedTuple):
    """Heads with relations, to which tails are compared.

    Args:
        point: Translated head, a point of the space.
        shift: Translation of the tails, a point; ``None`` if tails stay.
        c: Minus the curvature of every query; ``None`` in flat space.
        bias: Bias of the head; ``None`` if it is left out.
    """

    point: Float[Tensor, "*batch dim"]
    shift: Float[Tensor, "*batch dim"] | None
    c: Float[Tensor, "*batch"] | None
    bias: Float[Tensor, "*batch"] | None


@dataclass(frozen=True)
class TripleScore:
    r"""Score of a head, a relation and a tail; greater for triples that are more likely.

    .. math:: s(h, r, t) = \sigma\bigl(q_r(h), \tau_r(t)\bigr) + b_h + b'_t

    ======== ============================================================================ =========
    Name     Score without biases                                                         Curvature
    ======== ============================================================================ =========
    TransE   :math:`-|h + r - t|`                                                         0
    DistMult :math:`\langle R h, t \rangle`, :math:`R` diagonal                           0
    ComplEx  :math:`\mathrm{Re} \langle r \circ h, \bar t \rangle`                        0
    RotatE   :math:`-|\mathrm{Rot}_r h - t|`                                              0
    RotE     :math:`-|\mathrm{Rot}_r h + r - t|^2`                                        0
    RotH     :math:`-d(\mathrm{Rot}_r h \oplus r, t)^2`                                   learnt
    AttE     :math:`-|\mathrm{Att}_r h + r - t|^2`                                        0
    AttH     :math:`-d(\mathrm{Att}_r h \oplus r, t)^2`                                   learnt
    MuRE     :math:`-|R h - (t + r)|^2`                                                   0
    MuRP     :math:`-d(\exp_0(R \log_0 h), t \oplus r)^2`                                 1
    ======== ============================================================================ =========

    ``Att`` weighs a rotation and a reflection of the head by a softmax of their products with a
    vector of the relation. An entity has one row: a tangent at the origin, then its bias as a head
    and its bias as a tail. A relation has a row of the numbers of its maps, and of the tangent that
    translates. In RotH and AttH it has a curvature, too.

    All tails are compared by products of matrices alone, with some tails for each query or with
    one table of tails for all queries.

    Args:
        name: Score.
        dim: Dimensions of the space, at least 1; even for all but TransE, DistMult, MuRE and MuRP.
        bias: Biases of an entity: ``none``, one as a ``tail``, or one as a head and one as a tail
            as ``both``. That of the head shifts the scores of all tails alike.

    Raises:
        ValueError: If a value is out of range.

    References:
        Bordes et al. (2013), NeurIPS 26; Yang et al. (2015), arXiv:1412.6575; Trouillon et al.
        (2016), arXiv:1606.06357; Sun et al. (2019), arXiv:1902.10197; Chami et al. (2020), Sec. 4,
        arXiv:2005.00545; Balažević et al. (2019), Sec. 4, arXiv:1905.09791.

    Example:
        >>> score = TripleScore("TransE", dim=2, bias="none")
        >>> head, relation = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])
        >>> tails = torch.tensor([[3.0, 0.0], [3.0, 4.0]])
        >>> score.scores(score.query(head, relation), tails).round(decimals=4)
        tensor([[-0., -4.]])
    """

    name: ScoreName = "RotH"
    dim: int = 30
    bias: Biases = "both"

    def __post_init__(self) -> None:
        check.one_of(get_args(ScoreName), name=self.name)
        check.at_least(1, dim=self.dim)
        check.one_of(get_args(Biases), bias=self.bias)
        if self.parts.turn in ("complex", "rotation", "attention") and self.dim % 2:
            raise ValueError(f"{self.name} turns pairs of coordinates: dim must be even")

    @property
    def parts(self) -> ScoreParts:
        """Parts of the score."""
        return FORMS[self.name]

    @property
    def entity_numbers(self) -> int:
        """Numbers in the row of an entity."""
        return self.dim + ("none", "tail", "both").index(self.bias)

    @property
    def relation_numbers(self) -> int:
        """Numbers in the row of a relation, without its curvature."""
        return self._turn_numbers + (self.dim if self.parts.moves != "none" else 0)

    @property
    def _turn_numbers(self) -> int:
        numbers = {"none": 0, "rotation": self.dim // 2, "attention": 2 * self.dim}
        return numbers.get(self.parts.turn, self.dim)

    @property
    def _angles(self) -> int:
        """Number of angles at the start of the row of a relation."""
        return {"rotation": self.dim // 2, "attention": self.dim}.get(self.parts.turn, 0)

    def initial(self, num_entities: int, num_relations: int) -> Params:
        """Tables ``entity`` and ``relation``, and ``curvature`` if curvatures are learnt.

        Coordinates are normal, scales normal around 1, angles uniform, biases 0, and curvatures 1.
        The numbers are those of torch's global random stream.

        Args:
            num_entities: Rows of the table of entities.
            num_relations: Rows of the other tables.
        """
        entity = INITIAL_SPREAD * torch.randn(num_entities, self.entity_numbers)
        entity[:, self.dim :] = 0
        relation = INITIAL_SPREAD * torch.randn(num_relations, self.relation_numbers)
        if self.parts.turn in ("scale", "complex"):
            relation[:, : self.dim] += 1
        relation[:, : self._angles].uniform_(-torch.pi, torch.pi)
        tables = {"entity": entity, "relation": relation}
        if self.parts.curvature == "learnt":
            tables["curvature"] = torch.ones(num_relations, 1).expm1().log()
        return tables

    def query_of(
        self,
        tables: Params,
        heads: Int64[Tensor, "*batch"],
        relations: Int64[Tensor, "*batch"],
    ) -> Query:
        """Queries of heads with relations by their numbers.

        Args:
            tables: Tables with the names and columns of :meth:`initial`.
            heads: Numbers of the heads.
            relations: Numbers of the relations.
        """
        raw = tables.get("curvature")
        rows = (
            functional.embedding(relations, x) for x in (tables["relation"], raw) if x is not None
        )
        return self.query(functional.embedding(heads, tables["entity"]), *rows)

    def cubes(self, tables: Params, triples: Int64[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
        """Sums of the cubes of coordinates, scales and translations, or of complex moduli: N3.

        Args:
            tables: Tables with the names and columns of :meth:`initial`.
            triples: Heads, relations and tails by number.

        References:
            Lacroix et al. (2018), Sec. 4, arXiv:1806.07297.
        """
        heads, relations, tails = triples.unbind(-1)
        ends = functional.embedding(torch.stack((heads, tails), -1), tables["entity"])
        own = functional.embedding(relations, tables["relation"])[..., self._angles :]
        return self._cube(ends[..., : self.dim]).sum(-1) + self._cube(own)

    def _cube(self, x: Tensor) -> Tensor:
        if self.parts.turn != "complex":
            return x.abs().pow(3).sum(-1)
        a, b = x.chunk(2, dim=-1)
        squares = a * a + b * b
        return (squares * _root(squares)).sum(-1)

    def query(
        self,
        heads: Float[Tensor, "*batch entity_numbers"],
        relations: Float[Tensor, "*batch relation_numbers"],
        raw_curvature: Float[Tensor, "*batch 1"] | None = None,
    ) -> Query:
        """Queries of heads with relations.

        Args:
            heads: Rows of the heads.
            relations: Rows of the relations.
            raw_curvature: Inverse softplus of their curvatures; ``None`` unless these are learnt.
        """
        turn, move = relations.split(
            (self._turn_numbers, self.relation_numbers - self._turn_numbers), dim=-1
        )
        tangent = self._turned(heads[..., : self.dim], turn)
        bias = heads[..., -2] if self.bias == "both" else None
        parts = self.parts
        if parts.curvature == "flat":
            if parts.moves != "none":
                tangent = tangent + move if parts.moves == "query" else tangent - move
            return Query(tangent, None, None, bias)
        if parts.curvature == "one" or raw_curvature is None:
            c = torch.ones_like(tangent[..., 0])
        else:
            c = functional.softplus(raw_curvature.squeeze(-1))
        space = Poincare(c)
        point, shift = space.expmap0(tangent), space.expmap0(move)
        if parts.moves == "query":
            return Query(space.mobius_add(point, shift), None, c, bias)
        return Query(point, shift, c, bias)

    def _turned(self, x: Tensor, turn: Tensor) -> Tensor:
        kind, half = self.parts.turn, self.dim // 2
        if kind == "scale":
            return turn * x
        if kind == "complex":
            return _times(x, turn[..., :half], turn[..., half:])
        if kind == "rotation":
            return _times(x, turn.cos(), turn.sin())
        if kind == "attention":
            rotation, reflection, attention = turn.split((half, half, self.dim), dim=-1)
            rotated = _times(x, rotation.cos(), rotation.sin())
            mirrored = torch.cat((x[..., :half], -x[..., half:]), -1)
            reflected = _times(mirrored, reflection.cos(), reflection.sin())
            both = torch.stack((rotated, reflected), -2)
            weights = _product(both, attention.unsqueeze(-1)).softmax(-2)
            return (weights * both).sum(-2)
        return x

    def scores(
        self,
        query: Query,
        tails: Float[Tensor, "n entity_numbers"] | Float[Tensor, "*batch k entity_numbers"],
    ) -> Float[Tensor, "*batch n"]:
        """Scores of queries with tails.

        Args:
            query: Result of :meth:`query`.
            tails: Rows of the same tails for all queries, or of some tails for each of them.
        """
        t = tails[..., : self.dim]

        def dots(x: Tensor) -> Tensor:
            if t.ndim == 2:
                return _product(x, t.mT)
            return _product(t, x.unsqueeze(-1)).squeeze(-1)

        near = self.parts.near
        if near == "product":
            found = dots(query.point)
        elif query.c is None:
            squares = (t * t).sum(-1) - 2 * dots(query.point) + _square(query.point)
            found = -squares if near == "square" else -_root(squares)
        else:
            found = -_squared_distances(query, query.c, (t * t).sum(-1), dots)
        if self.bias != "none":
            found = found + tails[..., -1]
        return found if query.bias is None else found + query.bias.unsqueeze(-1)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Product of matrices in their own precision, for distances of close points are differences."""
    with without_casts(x.device):
        return x @ y


def _times(x: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """Complex product of vectors that hold all real parts first."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * real - b * imaginary, a * imaginary + b * real), -1)


def _square(x: Tensor) -> Tensor:
    return (x * x).sum(-1, keepdim=True)


def _root(squares: Tensor) -> Tensor:
    return squares.clamp_min(SMALLEST[squares.dtype]).sqrt()


def _squared_distances(
    query: Query, c: Tensor, squares: Tensor, dots: Callable[[Tensor], Tensor]
) -> Tensor:
    r"""Squared distances of the points q of queries and the tails z, translated by m.

    .. math:: z = y \oplus m, \quad \sinh^2 \frac{\sqrt c \, d}{2}
        = \frac{c \, |q - z|^2}{(1 - c |q|^2)(1 - c |z|^2)}, \quad
        1 - c |z|^2 = \frac{(1 - c |y|^2)(1 - c |m|^2)}{D}, \quad |z|^2 = \frac{|y + m|^2}{D}

    with the exponential :math:`y` of the tangent t and
    :math:`D = 1 + 2 c \, y \cdot m + c^2 |y|^2 |m|^2`, so that products of q and m with all t are
    enough. A squared distance of close points keeps the digits of ``c |q|^2``.
    """
    q, c = query.point, c.unsqueeze(-1)
    least = 4 * torch.finfo(q.dtype).eps
    factor = tanhc(squares, c)  # y = factor * t
    yy, qq = factor * factor * squares, _square(q)
    yq, gap = factor * dots(q), (1 - c * yy).clamp_min(least) * (1 - c * qq).clamp_min(least)
    if query.shift is None:
        apart = qq - 2 * yq + yy
    else:
        m = query.shift
        ym, mm, mq = factor * dots(m), _square(m), (m * q).sum(-1, keepdim=True)
        whole = 1 + 2 * c * ym + c * c * yy * mm
        zq = (1 + 2 * c * ym + c * mm) * yq + (1 - c * yy) * mq
        apart = qq * whole - 2 * zq + yy + 2 * ym + mm
        gap = gap * (1 - c * mm).clamp_min(least)
    return gap_length((apart / gap).clamp_min(SMALLEST[q.dtype]), c.expand_as(apart)).square()
