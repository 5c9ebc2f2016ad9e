"""Flat controls of H-CE: cross-entropies over the same prototypes without hyperbolic distances."""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Params
from fedbolic.data.contract.client import Client
from fedbolic.formulas import numerics
from hyperfed.loss import Features, Losses, Objective, Prototypes, cosines


@dataclass(frozen=True)
class EuclideanCrossEntropy(Objective):
    r"""Cross-entropy over Euclidean distances in the tangent space at the origin (E-CE).

    .. math:: \ell = -\log \frac{e^{-\beta |z - v_y|}}{\sum_j e^{-\beta |z - v_j|}}, \quad
        v = \operatorname{artanh}(|w|) \, w / |w|

    Not in the paper: the flat twin of :class:`~hyperfed.loss.CrossEntropy`.

    Args:
        scale: Inverse temperature beta of the softmax, above 0.

    Raises:
        ValueError: If ``scale`` is not positive.
    """

    scale: float = 2.0

    def __post_init__(self) -> None:
        check.positive(scale=self.scale)

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        length = numerics.root(numerics.square(prototypes))
        tangents = length.atanh() * numerics.unit(prototypes)
        difference = z.unsqueeze(-2) - tangents
        distances = numerics.root(numerics.square(difference)).squeeze(-1)
        return cross_entropy(-self.scale * distances, batch["y"], reduction="none")


@dataclass(frozen=True)
class Harmonic(Objective):
    r"""Harmonic loss with fixed prototypes: the limit of H-CE for long features.

    .. math:: \ell = -\log \frac{|u - w_y|^{-n}}{\sum_j |u - w_j|^{-n}}, \quad u = z / |z|

    With :math:`n = 2 \tau` this is what :class:`~hyperfed.loss.CrossEntropy` with temperature tau
    tends to as :math:`|z|` grows, for prototypes of one length.

    Args:
        exponent: n, above 0.

    Raises:
        ValueError: If ``exponent`` is not positive.

    References:
        Baek et al. (2025), Eq. (3), arXiv:2502.01628.
    """

    exponent: float = 4.0

    def __post_init__(self) -> None:
        check.positive(exponent=self.exponent)

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        difference = numerics.unit(z).unsqueeze(-2) - prototypes
        logits = -self.exponent / 2 * numerics.square(difference).squeeze(-1).log()
        return cross_entropy(logits, batch["y"], reduction="none")


@dataclass(frozen=True)
class CosineCrossEntropy(Objective):
    r"""Cross-entropy over cosines to the prototypes: a softmax with a fixed simplex (ETF) head.

    .. math:: \ell = -\log \frac{e^{\beta \cos(z, w_y)}}{\sum_j e^{\beta \cos(z, w_j)}}

    Args:
        scale: Inverse temperature beta of the softmax, above 0.

    Raises:
        ValueError: If ``scale`` is not positive.
    """

    scale: float = 10.0

    def __post_init__(self) -> None:
        check.positive(scale=self.scale)

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        logits = self.scale * cosines(z, prototypes)
        return cross_entropy(logits, batch["y"], reduction="none")


@dataclass(frozen=True)
class FedETF(Objective):
    r"""Balanced cross-entropy over cosines with a learned temperature.

    .. math:: \ell = -\log \frac{n_y^\gamma \, e^{\beta \cos(z, w_y)}}
        {\sum_j n_j^\gamma \, e^{\beta \cos(z, w_j)}}

    with the client's numbers n of training examples per class. The temperature is trained and
    averaged with the network. The method's projection layer is the last layer of the backbone; its
    local fine-tuning is the evaluation's.

    Args:
        scale: Initial beta, above 0.
        balance: Exponent gamma of the class counts, at least 0; 0 ignores them.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Li et al. (2023), Sec. 4.2, arXiv:2303.10058.
    """

    scale: float = 1.0
    balance: float = 1.0

    def __post_init__(self) -> None:
        check.positive(scale=self.scale)
        check.not_negative(balance=self.balance)

    @override
    def init(self) -> Params:
        return {"scale": torch.tensor(self.scale)}

    @override
    def known(self, client: Client) -> Params:
        y = client.train.at(torch.arange(len(client.train)))["y"]
        counts = torch.bincount(y, minlength=client.meta.num_classes)
        return {"prior": self.balance * counts.to(client.no_inputs.dtype).log()}

    @override
    def losses(self, z: Features, prototypes: Prototypes, batch: Params) -> Losses:
        logits = batch["scale"] * cosines(z, prototypes) + batch["prior"]
        return cross_entropy(logits, batch["y"], reduction="none")
