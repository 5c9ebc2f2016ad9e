"""Probabilities of links from distances."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds.curvature import load_numbers, without_axis


class FermiDirac(nn.Module):
    r"""Logits of links whose probability falls with the distance as in Fermi-Dirac statistics.

    .. math:: P(u \sim v) = \frac{1}{e^{(d^p - r) / t} + 1} = \sigma(l), \quad l = (r - d^p) / t

    with :math:`p = 1`, or 2 if squared. Use the logits with
    ``torch.nn.functional.binary_cross_entropy_with_logits``: they stay exact where probabilities
    round to 0 or 1. A learnable ``t`` is stored as its inverse softplus.

    Args:
        r: Value of :math:`d^p` at which the probability of a link is 1/2, finite.
        t: Temperature, above 0: the smaller, the steeper.
        squared: Whether distances are squared.
        learnable: Whether ``r`` and ``t`` are parameters instead of constants.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Distances ``(*)`` to logits ``(*)``.

    Raises:
        ValueError: If ``r`` or ``t`` is out of range.

    References:
        Krioukov et al. (2010), arXiv:1006.5169; Nickel and Kiela (2017), Eq. (7),
        arXiv:1705.08039; Chami et al. (2019), arXiv:1910.12933, with squared distances.

    Example:
        >>> decoder = FermiDirac(r=2.0, t=1.0)
        >>> decoder(torch.tensor([0.0, 2.0, 4.0]))
        tensor([ 2.,  0., -2.])
        >>> decoder.probability(torch.tensor(2.0))
        tensor(0.5000)
    """

    def __init__(
        self,
        r: float = 2.0,
        t: float = 1.0,
        *,
        squared: bool = False,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check.positive(t=t)
        if not math.isfinite(r):
            raise ValueError(f"r must be a finite number, got {r}")
        self.squared = squared
        make = {"device": device, "dtype": dtype}
        self.r: Tensor | float = nn.Parameter(torch.tensor([float(r)], **make)) if learnable else r
        raw = t + math.log(-math.expm1(-t))
        self.raw_t = nn.Parameter(torch.tensor([raw], **make)) if learnable else None
        self._t = t
        load_numbers(self)

    @property
    def t(self) -> Tensor | float:
        """Current temperature."""
        # the default threshold of 20 would lose digits in float64
        if self.raw_t is None:
            return self._t
        return functional.softplus(without_axis(self.raw_t), threshold=40)

    @override
    def forward(self, distances: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Logits of links between nodes at the given distances."""
        powers = distances.square() if self.squared else distances
        r = without_axis(self.r) if isinstance(self.r, Tensor) else self.r
        return (r - powers) / self.t

    def probability(self, distances: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Probabilities of links between nodes at the given distances."""
        return self(distances).sigmoid()

    @override
    def extra_repr(self) -> str:
        learnable = self.raw_t is not None
        r, t = (x.item() if isinstance(x, Tensor) else x for x in (self.r, self.t))
        return f"r={r:g}, t={t:g}, squared={self.squared}, {learnable=}"
