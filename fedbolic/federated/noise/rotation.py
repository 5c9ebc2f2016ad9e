"""Random rotations that spread a vector evenly over its coordinates."""

import torch
from jaxtyping import Float64
from torch import Tensor

from fedbolic.core.rng import Rng


def padded_size(size: int) -> int:
    """The smallest power of two that is at least ``size``.

    Args:
        size: Number of coordinates, at least 1.

    Example:
        >>> padded_size(5), padded_size(8)
        (8, 8)
    """
    return 1 << (size - 1).bit_length()


def rotate(x: Float64[Tensor, " dim"], rng: Rng) -> Float64[Tensor, " dim"]:
    r"""Random rotation of a vector, after which no coordinate is likely to be large.

    .. math:: x \mapsto \tfrac{1}{\sqrt d} H D x

    D is a diagonal of random signs and H the Walsh-Hadamard matrix. Every coordinate of the result
    is sub-Gaussian with variance :math:`\|x\|^2 / d`.

    Args:
        x: Vector whose length is a power of two.
        rng: Public random stream of the signs.

    References:
        Kairouz, Liu and Steinke (2021), Algorithm 1, arXiv:2102.06387.

    Example:
        >>> rotate(torch.tensor([3.0, 0.0, 0.0, 0.0]).double(), Rng(0)).abs()
        tensor([1.5000, 1.5000, 1.5000, 1.5000], dtype=torch.float64)
    """
    return _hadamard(x * _signs(len(x), rng))


def unrotate(x: Float64[Tensor, " dim"], rng: Rng) -> Float64[Tensor, " dim"]:
    """Inverse of :func:`rotate`.

    Args:
        x: Rotated vector.
        rng: The same stream.
    """
    return _hadamard(x) * _signs(len(x), rng)


def _signs(dim: int, rng: Rng) -> Float64[Tensor, " dim"]:
    return torch.randint(0, 2, (dim,), generator=rng.generator()).double() * 2 - 1


def _hadamard(x: Float64[Tensor, " dim"]) -> Float64[Tensor, " dim"]:
    """Product with the orthonormal Walsh-Hadamard matrix, in ``d log d`` operations."""
    size, half = len(x), 1
    while half < size:
        pairs = x.view(-1, 2, half)
        first, second = pairs[:, 0], pairs[:, 1]
        x = torch.stack([first + second, first - second], dim=1).view(-1)
        half *= 2
    return x / size**0.5
