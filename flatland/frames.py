"""Networks with shared class prototypes, which each client views from its own frame."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core.types import Meta
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.formulas.numerics import square
from fedbolic.manifolds import Lorentz
from flatland.graphs.blocks import Mixing
from flatland.graphs.model import (
    ConvolutionalNetwork,
    Flat,
    LorentzNetwork,
    per_client,
    time_of,
    widths_of,
)

FRAMES: Sharing = {"head.frame": "personal", "curvature.*": "personal", "*": "shared"}
"""Sharing table of ``Frame``: the frame and the curvature are personal."""

FLAT_FRAMES: Sharing = {"head.frame": "personal", "*": "shared"}
"""Sharing table of ``Twin``, which has no curvature."""


@dataclass(frozen=True)
class Frame(ConvolutionalNetwork):
    r"""Convolutions of ``LorentzGCN``, a Lorentz boost, and distances to class prototypes.

    .. math::
        x' = B(u) x, \qquad
        \text{logit}_k = \frac 2 c + 2 \langle x', p_k \rangle + b_k = -|x' - p_k|^2_L + b_k

    ``head.frame`` is u, the space coordinates of the image of the origin under the boost, in units
    of the curvature radius. It starts at 0, the identity. The columns of ``head.space`` are the
    space coordinates of the prototypes; their time coordinates follow from the client's curvature.
    Under the sharing table :data:`FRAMES`, convolutions and prototypes are shared; the curvature
    and the frame are personal.

    This variant of FlatLand is not in the paper; ``Twin`` is its Euclidean counterpart.
    """

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = LorentzPrototypes(sizes[-1], meta.num_classes)
        return LorentzNetwork(sizes, head, self.dropout, self.activation)


@dataclass(frozen=True)
class Twin(ConvolutionalNetwork):
    r"""Euclidean counterpart of ``Frame``: convolutions of ``GCN``, a translation, and distances.

    .. math:: \text{logit}_k = -|x + w - p_k|^2 + b_k

    ``head.frame`` is w, which starts at 0. Compare ``Frame`` with ``neighbours="mean"`` to measure
    the effect of curvature alone; the symmetric weights of a GCN are a second difference.

    Args:
        neighbours: Weights of the neighbours, as in ``GCN``.
    """

    neighbours: Mixing = "symmetric"

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = FlatPrototypes(sizes[-1], meta.num_classes)
        return Flat(sizes, head, self.dropout, self.activation, neighbours=self.neighbours)


class _Prototypes(nn.Module):
    """Class prototypes with one bias each, and the frame from which they are viewed."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.space = nn.Parameter(torch.empty(width, num_classes))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.frame = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.space)


class LorentzPrototypes(_Prototypes):
    """Negative squared Lorentzian distances of boosted points to prototypes, plus a bias."""

    def forward(
        self,
        time: Float[Tensor, "clients n 1"],
        s: Float[Tensor, "clients n width"],
        space: Lorentz,
    ) -> Float[Tensor, "clients n classes"]:
        """One logit per class for each point."""
        time, s = boosted(per_client(self.frame), time, s)
        own = time_of(space, self.space.mT).mT
        return 2 * (1 / space.c - time * own + s @ self.space) + per_client(self.bias)


class FlatPrototypes(_Prototypes):
    """Negative squared distances of translated points to prototypes, plus a bias."""

    def forward(self, x: Float[Tensor, "*clients n width"]) -> Float[Tensor, "*clients n classes"]:
        """One logit per class for each point."""
        x = x + per_client(self.frame)
        own = square(self.space.mT).mT
        return 2 * (x @ self.space) - square(x) - own + per_client(self.bias)


def boosted(
    u: Float[Tensor, "*clients 1 width"],
    time: Float[Tensor, "clients n 1"],
    s: Float[Tensor, "clients n width"],
) -> tuple[Float[Tensor, "clients n 1"], Float[Tensor, "clients n width"]]:
    r"""Points under the Lorentz boost that maps the origin to the point with space part ``u``.

    .. math:: t' = \gamma t + u \cdot s, \quad
        s' = s + \Bigl(t + \frac{u \cdot s}{1 + \gamma}\Bigr) u, \quad \gamma = \sqrt{1 + |u|^2}

    The boost is an isometry of the hyperboloid of any curvature.

    Args:
        u: Space coordinates of the image of the origin, in units of the curvature radius.
        time: Time coordinates of the points.
        s: Space coordinates of the points.

    References:
        Jackson (1998), Classical Electrodynamics, Eq. (11.19).
    """
    gamma = (1 + square(u)).sqrt()
    along = (s * u).sum(-1, keepdim=True)
    return gamma * time + along, s + (time + along / (1 + gamma)) * u
