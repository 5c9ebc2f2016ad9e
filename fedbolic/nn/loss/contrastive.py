"""Contrastive losses of paired embeddings: by distance with entailment (MERU), and flat (CLIP)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz, Poincare, entailment_loss
from fedbolic.manifolds.curvature import load_numbers, without_axis
from fedbolic.manifolds.manifold import Manifold


class LogitScale(nn.Module):
    r"""Learnable factor :math:`1 / \tau` of logits, stored as its logarithm and bounded above.

    The gradient does not see the bound, so a temperature that has reached it can rise again.

    Args:
        temperature: Initial temperature :math:`\tau`, at least ``lowest``.
        lowest: Least temperature, above 0.

    Shapes:
        Nothing to one number.

    Raises:
        ValueError: If a value is out of range.

    References:
        Radford et al. (2021), Sec. 2.5, arXiv:2103.00020: 0.07 at first, 0.01 at least.

    Example:
        >>> scale = LogitScale(0.5)
        >>> scale()
        tensor(2., grad_fn=<ExpBackward0>)
    """

    def __init__(self, temperature: float = 0.07, *, lowest: float = 0.01) -> None:
        super().__init__()
        check.positive(temperature=temperature, lowest=lowest)
        if temperature < lowest:
            raise ValueError(f"temperature must be at least {lowest}, got {temperature}")
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))
        load_numbers(self)
        self.lowest = lowest

    @override
    def forward(self) -> Float[Tensor, ""]:
        """The factor, at most ``1 / lowest``."""
        log_scale = without_axis(self.log_scale)
        excess = (log_scale + math.log(self.lowest)).relu()
        return (log_scale - excess.detach()).exp()

    @override
    def extra_repr(self) -> str:
        return f"lowest={self.lowest}"


class DistanceContrast(nn.Module):
    r"""Symmetric contrastive loss of pairs, with minus distances over a temperature as logits.

    .. math:: \ell_i = -\frac 1 2 \Bigl( \log \frac{e^{-d(x_i, y_i) / \tau}}
        {\sum_j e^{-d(x_i, y_j) / \tau}} + \log \frac{e^{-d(x_i, y_i) / \tau}}
        {\sum_j e^{-d(x_j, y_i) / \tau}} \Bigr)

    Every other pair of the batch is a negative. In flat space (``Euclidean``) this is the loss over
    minus Euclidean distances, and on the hyperboloid the contrastive loss of MERU.

    Args:
        temperature: Initial temperature :math:`\tau`, learnt as in ``LogitScale``.

    Shapes:
        Points ``(*, n, coordinates)`` of either side, the pairs in the same place, to losses ``(*,
        n)``.

    Raises:
        ValueError: If the temperature is below 0.01; when called, if the pairs do not fit.

    References:
        Desai et al. (2023), Sec. 3, arXiv:2304.09172.

    Example:
        >>> space = Lorentz()
        >>> x = space.expmap0(space.lift(torch.eye(2)))
        >>> DistanceContrast(1.0)(space, x, x.flip(0)).detach()
        tensor([1.7124, 1.7124])
    """

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        self.scale = LogitScale(temperature)

    @override
    def forward(
        self,
        space: Manifold,
        x: Float[Tensor, "*batch n ambient"],
        y: Float[Tensor, "*batch n ambient"],
    ) -> Float[Tensor, "*batch n"]:
        """One loss for each pair.

        Args:
            space: Space of the points.
            x: One point of each pair.
            y: The other point of each pair.
        """
        _check_pairs(x, y)
        # mm64 in float32: the close pairs are those that count
        mode = "mm64" if x.dtype == torch.float32 else "broadcast"
        return _symmetric(-self.scale() * space.cdist(x, y, mode=mode))


class EntailmentContrast(nn.Module):
    r"""Loss of MERU: pairs contrasted by distance, and images inside the cones of their texts.

    .. math:: \ell_i = \ell_i^{\text{contrast}}
        + \lambda \max(0, \Xi(t_i, x_i) - \psi(t_i))

    with the exterior angle :math:`\Xi` and the half aperture :math:`\psi` of ``entailment_loss``. A
    text is the more general concept, so it entails its image. Features enter through
    ``ToManifold(Lorentz, radius=math.inf)`` after a learnt scale that starts at
    :math:`1 / \sqrt n`; the paper learns :math:`c` from 1 within [0.1, 10], which is
    ``Curvature(1.0, bounds=(0.1, 10.0))``.

    Args:
        temperature: Initial temperature :math:`\tau`, learnt as in ``LogitScale``.
        weight: Weight :math:`\lambda` of entailment, 0 or more.
        k: The constant of ``half_aperture``, above 0.

    Shapes:
        Points ``(*, n, coordinates)`` of images and of texts, the pairs in the same place, to
        losses ``(*, n)``.

    Raises:
        ValueError: If a value is out of range; when called, if the pairs do not fit.

    References:
        Desai et al. (2023), Sec. 3 and Eq. (6), arXiv:2304.09172. The bound of the temperature is
        that of ``LogitScale``, where the authors' code clamps the parameter in place.

    Example:
        >>> space = Lorentz()
        >>> texts = space.expmap0(space.lift(torch.eye(2)))
        >>> images = space.expmap0(space.lift(2 * torch.eye(2)))
        >>> EntailmentContrast(1.0)(space, images, texts).detach()
        tensor([0.2118, 0.2118])
    """

    def __init__(self, temperature: float = 0.07, *, weight: float = 0.2, k: float = 0.1) -> None:
        super().__init__()
        check.not_negative(weight=weight)
        check.positive(k=k)
        self.contrast = DistanceContrast(temperature)
        self.weight, self.k = weight, k

    @override
    def forward(
        self,
        space: Lorentz | Poincare,
        images: Float[Tensor, "*batch n ambient"],
        texts: Float[Tensor, "*batch n ambient"],
    ) -> Float[Tensor, "*batch n"]:
        """One loss for each pair.

        Args:
            space: Space of the points.
            images: Points of the images, the more specific concepts.
            texts: Points of their texts, the more general ones.
        """
        outside = entailment_loss(space, texts, images, k=self.k)
        return self.contrast(space, images, texts) + self.weight * outside

    @override
    def extra_repr(self) -> str:
        return f"weight={self.weight}, k={self.k}"


class CosineContrast(nn.Module):
    r"""Loss of CLIP, the flat control: pairs contrasted by the cosine of features.

    .. math:: \ell_i = -\frac 1 2 \Bigl( \log \frac{e^{s_{ii} / \tau}}{\sum_j e^{s_{ij} / \tau}}
        + \log \frac{e^{s_{ii} / \tau}}{\sum_j e^{s_{ji} / \tau}} \Bigr), \qquad
        s_{ij} = \frac{x_i \cdot y_j}{|x_i| \, |y_j|}

    Args:
        temperature: Initial temperature :math:`\tau`, learnt as in ``LogitScale``.

    Shapes:
        Vectors ``(*, n, dim)`` of either side, the pairs in the same place, to losses ``(*, n)``.

    Raises:
        ValueError: If the temperature is below 0.01; when called, if the pairs do not fit.

    References:
        Radford et al. (2021), Fig. 3, arXiv:2103.00020.

    Example:
        >>> CosineContrast(1.0)(torch.eye(2), torch.eye(2)).detach()
        tensor([0.3133, 0.3133])
    """

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        self.scale = LogitScale(temperature)

    @override
    def forward(
        self, x: Float[Tensor, "*batch n dim"], y: Float[Tensor, "*batch n dim"]
    ) -> Float[Tensor, "*batch n"]:
        """One loss for each pair.

        Args:
            x: Features of one side, of any length.
            y: Features of the other side.
        """
        _check_pairs(x, y)
        return _symmetric(self.scale() * normalize(x, dim=-1) @ normalize(y, dim=-1).mT)


def _check_pairs(x: Tensor, y: Tensor) -> None:
    """Check that both sides have one row for each pair.

    Raises:
        ValueError: If the shapes differ or have no axis of pairs.
    """
    if x.shape != y.shape or x.ndim < 2:
        raise ValueError(
            "both sides must have the same shape, a row for each pair, got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )


def _symmetric(logits: Tensor) -> Tensor:
    """Mean cross entropies of the diagonal among its row and among its column."""
    right = torch.arange(logits.shape[-1], device=logits.device)
    right = right.expand(logits.shape[:-1]).flatten()
    by_row, by_column = (
        cross_entropy(of.flatten(0, -2), right, reduction="none") for of in (logits, logits.mT)
    )
    return ((by_row + by_column) / 2).reshape(logits.shape[:-1])
