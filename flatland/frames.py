"""Networks whose classes are common points, each client seeing them from a frame of its own."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.federated.sharing import Sharing
from fedbolic.manifolds import Lorentz
from fedbolic.manifolds.numerics import square
from fedbolic.types import Meta
from flatland.blocks import Mixing
from flatland.model import (
    Activation,
    Flat,
    GraphNetwork,
    LorentzNetwork,
    check_layers,
    per_client,
    time_of,
    widths_of,
)

FRAMES: Sharing = {"head.frame": "personal", "curvature.*": "personal", "*": "shared"}
"""What is a client's own with ``Frame``: where it stands, and how curved its space is."""

FLAT_FRAMES: Sharing = {"head.frame": "personal", "*": "shared"}
"""The same for ``Twin``, which has no curvature."""


@dataclass(frozen=True)
class Frame(GraphNetwork):
    r"""The convolutions of ``LorentzGCN``, a Lorentz boost, and distances to class prototypes.

    .. math::
        x' = B(u) x, \qquad
        \text{logit}_k = \frac 2 c + 2 \langle x', p_k \rangle + b_k = -|x' - p_k|^2_L + b_k

    ``head.frame`` is u, the space coordinates of the point that the boost takes the origin to, in
    radii; it starts 0, where the boost changes nothing. Prototypes are kept by their space
    coordinates, the columns of ``head.space``; their time follows from the client's curvature. With
    the table :data:`FRAMES` convolutions and prototypes are common, and a client's own are its
    curvature and the frame it sees the prototypes from.

    A variant of FlatLand of our own; ``Twin`` is the same without curvature.

    Args:
        widths: Of every convolution, at least one.
        dropout: The share of every convolution's outputs that training drops, in [0, 1).
        activation: The function after every convolution.
        centred: Whether layers take the time coordinate less that of the origin, so that a flat
            space gives them nothing.
    """

    widths: tuple[int, ...] = (128, 128)
    dropout: float = 0.5
    activation: Activation = "relu"
    centred: bool = False

    def __post_init__(self) -> None:
        check_layers(self.widths, self.dropout)

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = LorentzPrototypes(sizes[-1], meta.num_classes)
        return LorentzNetwork(sizes, head, self.dropout, self.activation, centred=self.centred)


@dataclass(frozen=True)
class Twin(GraphNetwork):
    r"""``Frame`` in flat space: the convolutions of ``GCN``, a translation, and distances.

    .. math:: \text{logit}_k = -|x + w - p_k|^2 + b_k

    ``head.frame`` is w, which starts 0. What ``Frame`` gains over this one with ``neighbours``
    ``mean``, curvature gains; the symmetric weights of a GCN are another difference.

    Args:
        widths: Of every convolution, at least one.
        dropout: The share of every convolution's outputs that training drops, in [0, 1).
        activation: The function after every convolution.
        neighbours: How they are weighed, as of ``GCN``.
    """

    widths: tuple[int, ...] = (128, 128)
    dropout: float = 0.5
    activation: Activation = "relu"
    neighbours: Mixing = "symmetric"

    def __post_init__(self) -> None:
        check_layers(self.widths, self.dropout)

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = FlatPrototypes(sizes[-1], meta.num_classes)
        return Flat(sizes, head, self.dropout, self.activation, neighbours=self.neighbours)


class _Prototypes(nn.Module):
    """Points for the classes, a bias for each, and the frame they are seen from."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.space = nn.Parameter(torch.empty(width, num_classes))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.frame = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.space)


class LorentzPrototypes(_Prototypes):
    """Minus squared Lorentzian distances of boosted points to prototypes, and a bias."""

    def forward(
        self,
        time: Float[Tensor, "clients n 1"],
        s: Float[Tensor, "clients n width"],
        space: Lorentz,
    ) -> Float[Tensor, "clients n classes"]:
        """One logit per class for every point."""
        time, s = boosted(per_client(self.frame), time, s)
        own = time_of(space, self.space.mT).mT
        return 2 * (1 / space.c - time * own + s @ self.space) + per_client(self.bias)


class FlatPrototypes(_Prototypes):
    """Minus squared distances of translated points to prototypes, and a bias."""

    def forward(self, x: Float[Tensor, "*clients n width"]) -> Float[Tensor, "*clients n classes"]:
        """One logit per class for every point."""
        x = x + per_client(self.frame)
        own = square(self.space.mT).mT
        return 2 * (x @ self.space) - square(x) - own + per_client(self.bias)


def boosted(
    u: Float[Tensor, "*clients 1 width"],
    time: Float[Tensor, "clients n 1"],
    s: Float[Tensor, "clients n width"],
) -> tuple[Float[Tensor, "clients n 1"], Float[Tensor, "clients n width"]]:
    r"""Points moved by the boost that takes the origin to the point in the direction ``u``.

    .. math:: t' = \gamma t + u \cdot s, \quad
        s' = s + \Bigl(t + \frac{u \cdot s}{1 + \gamma}\Bigr) u, \quad \gamma = \sqrt{1 + |u|^2}

    An isometry of the hyperboloid of any curvature.

    Args:
        u: Space coordinates of that point, in radii.
        time: Of the points.
        s: Space coordinates of the points.

    References:
        Jackson (1998), Classical Electrodynamics, Eq. (11.19).
    """
    gamma = (1 + square(u)).sqrt()
    along = (s * u).sum(-1, keepdim=True)
    return gamma * time + along, s + (time + along / (1 + gamma)) * u
