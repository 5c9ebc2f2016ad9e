"""Random Fourier features: a linear head on them is one of a Gaussian kernel."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.types import Params


@dataclass(frozen=True)
class RandomFeatures:
    r"""Random Fourier features of vectors, whose products approximate a Gaussian kernel.

    .. math:: \varphi(z) = \sqrt{2 / D} \cos(\Omega^T z + \beta), \qquad
        \varphi(z) \cdot \varphi(z') \approx \exp(-|z - z'|^2 / 2 \sigma^2)

    with independent :math:`\Omega_{ij} \sim N(0, 1 / \sigma^2)` and
    :math:`\beta_i \sim U[0, 2 \pi)`.

    Args:
        num: Number D of features, at least 1. Sums for a head over them have ``num**2`` numbers.
        bandwidth: Length :math:`\sigma` of the kernel, above 0; unit-length features are at most 2
            apart.

    Raises:
        ValueError: If a value is out of range.

    References:
        Rahimi and Recht (2007), Algorithm 1; Fani et al. (2024), Sec. 4.3, arXiv:2406.01116.

    Example:
        >>> features = RandomFeatures(num=20_000, bandwidth=2.0)
        >>> z = torch.eye(3, dtype=torch.float64)
        >>> mapped = features(z, features.draw(3, seed=0))
        >>> round(float(mapped[0] @ mapped[1]), 1), round(math.exp(-2 / 8), 1)
        (0.8, 0.8)
    """

    num: int = 1000
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        check.at_least(1, num=self.num)
        check.positive(bandwidth=self.bandwidth)

    def draw(self, width: int, seed: int) -> Params:
        """``frequencies`` and ``phases`` for vectors of a width, the same for a seed everywhere.

        Args:
            width: Number of coordinates of the vectors.
            seed: Seed of the draw.
        """
        generator = torch.Generator().manual_seed(seed)
        frequencies = torch.randn(width, self.num, dtype=torch.float64, generator=generator)
        phases = torch.rand(self.num, dtype=torch.float64, generator=generator)
        return {"frequencies": frequencies / self.bandwidth, "phases": 2 * math.pi * phases}

    def __call__(self, z: Float[Tensor, "n width"], drawn: Params) -> Float[Tensor, "n num"]:
        """Features of vectors.

        Args:
            z: Vectors, one a row.
            drawn: As from :meth:`draw`.
        """
        frequencies, phases = drawn["frequencies"].to(z), drawn["phases"].to(z)
        return (2 / self.num) ** 0.5 * torch.cos(z @ frequencies + phases)

    def of_seed(self, z: Float[Tensor, "n width"], seed: int) -> Float[Tensor, "n num"]:
        """Features of vectors by the draw of a seed.

        Args:
            z: Vectors, one a row.
            seed: Seed of the draw.
        """
        return self(z, self.draw(z.shape[-1], seed))
