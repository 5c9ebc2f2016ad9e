"""Losses of a related pair's distance against distances to unrelated nodes."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check


class RankingLoss(nn.Module):
    r"""Cross entropy of the related node among its negatives, with minus distances as logits.

    .. math:: \ell = -\log \frac{e^{-d}}{e^{-d} + \sum_j m_j e^{-d_j}}

    for the distance :math:`d` of a related pair, the distances :math:`d_j` to the negatives and
    their mask :math:`m`. The related node itself is in the denominator, so the loss is positive;
    without any negative it is 0, and so is its gradient.

    Shapes:
        Distances ``(*)`` of pairs and ``(*, k)`` to their negatives, to losses ``(*)``.

    Raises:
        ValueError: When called, if the shapes do not fit.

    References:
        Nickel and Kiela (2017), Eq. (6), arXiv:1705.08039.

    Example:
        >>> RankingLoss()(torch.tensor([1.0]), torch.tensor([[1.0, 1.0, 1.0]])).exp()
        tensor([4.])
    """

    @override
    def forward(
        self,
        positive: Float[Tensor, "*batch"],
        negatives: Float[Tensor, "*batch k"],
        *,
        mask: Bool[Tensor, "*batch k"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """One loss for each pair.

        Args:
            positive: Distances of the related pairs.
            negatives: Distances from the first node of each pair to its negatives.
            mask: True where a negative counts; ``None`` if all do.
        """
        gaps = _gaps(positive, negatives, mask)
        # differences first: the loss keeps its digits where all distances are long
        return torch.cat((torch.zeros_like(gaps[..., :1]), gaps), -1).logsumexp(-1)


class MarginLoss(nn.Module):
    r"""Mean hinge by which negatives are not farther than the related node by a margin.

    .. math:: \ell = \frac{\sum_j m_j \max(0, \gamma + d - d_j)}{\max(1, \sum_j m_j)}

    for the distance :math:`d` of a related pair, the distances :math:`d_j` to the negatives and
    their mask :math:`m`. Without any negative the loss is 0, and so is its gradient.

    Args:
        margin: Margin :math:`\gamma` in units of length, above 0.

    Shapes:
        Distances ``(*)`` of pairs and ``(*, k)`` to their negatives, to losses ``(*)``.

    Raises:
        ValueError: If the margin is not positive; when called, if the shapes do not fit.

    References:
        Bordes et al. (2013), Eq. (1), NeurIPS 26, which sums over the negatives.

    Example:
        >>> MarginLoss(margin=0.5)(torch.tensor([1.0]), torch.tensor([[1.0, 2.0]]))
        tensor([0.2500])
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        check.positive(margin=margin)
        self.margin = margin

    @override
    def forward(
        self,
        positive: Float[Tensor, "*batch"],
        negatives: Float[Tensor, "*batch k"],
        *,
        mask: Bool[Tensor, "*batch k"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """One loss for each pair; arguments are those of ``RankingLoss``."""
        hinge = (_gaps(positive, negatives, mask) + self.margin).relu()
        if mask is None:
            return hinge.mean(-1)
        return hinge.sum(-1) / mask.sum(-1).clamp(min=1)

    @override
    def extra_repr(self) -> str:
        return f"margin={self.margin}"


def _gaps(positive: Tensor, negatives: Tensor, mask: Tensor | None) -> Tensor:
    """The differences ``d - d_j``, minus infinity where masked."""
    if negatives.shape[:-1] != positive.shape or not negatives.ndim or not negatives.shape[-1]:
        raise ValueError(
            f"negatives must have the shape of positive, {tuple(positive.shape)}, and one more "
            f"axis of at least 1 distance, got shape {tuple(negatives.shape)}"
        )
    gaps = positive.unsqueeze(-1) - negatives
    if mask is None:
        return gaps
    if mask.shape != gaps.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be bool of shape {tuple(gaps.shape)}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}"
        )
    return gaps.masked_fill(~mask, -math.inf)
