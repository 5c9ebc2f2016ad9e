"""Unrelated nodes, drawn at random to contrast with the related pairs of a graph."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.pair_keys import contains_pair


@dataclass(frozen=True)
class NegativeSampler:
    r"""Random nodes for each node, with a mask of those that are unrelated to it.

    .. math:: v \sim q, \quad q_v \propto f_v^\alpha, \qquad m = [v \ne u, \; (u, v) \notin D]

    for the node :math:`u`, the known pairs :math:`D` and the counts :math:`f`; with
    :math:`\alpha = 0` the draws are uniform. Draws are independent and with replacement. A related
    node is masked instead of redrawn, so the shapes are fixed and nothing waits for a device.

    The pairs have a direction: if ancestors are the related nodes of their descendants, the
    descendants of :math:`u` are negatives for it, as ``rank_and_map`` ranks its ancestors against
    them. For a symmetric relation give both orders of each pair.

    Args:
        num_negatives: Number of draws for each node, at least 1.
        power: Power :math:`\alpha` of the counts, 0 or more: 0 for uniform draws, 0.75 in word2vec.

    Raises:
        ValueError: If a setting is out of range; when called, if there is no candidate, or the
            counts are missing, unused, of the wrong shape, or no distribution.

    References:
        Nickel and Kiela (2017), Sec. 4.1, arXiv:1705.08039; Mikolov et al. (2013), Sec. 2.2,
        arXiv:1310.4546, for the power of the counts.

    Example:
        >>> from fedbolic.nn import pair_keys
        >>> known = pair_keys(torch.tensor([[0, 1], [0, 2]]), num_nodes=4)
        >>> negatives, mask = NegativeSampler(num_negatives=100)(
        ...     torch.tensor([0]), known, num_nodes=4, generator=torch.Generator().manual_seed(0)
        ... )
        >>> negatives.shape, negatives[mask].unique()
        (torch.Size([1, 100]), tensor([3]))
    """

    num_negatives: int = 20
    power: float = 0.0

    def __post_init__(self) -> None:
        check.at_least(1, num_negatives=self.num_negatives)
        check.not_negative(power=self.power)

    def __call__(
        self,
        nodes: Int[Tensor, "*batch"],
        known: Int[Tensor, " keys"],
        *,
        num_nodes: int,
        generator: torch.Generator,
        candidates: Int[Tensor, " m"] | None = None,
        counts: Float[Tensor, " m"] | Int[Tensor, " m"] | None = None,
    ) -> tuple[Int[Tensor, "*batch k"], Bool[Tensor, "*batch k"]]:
        """Draw nodes for each of ``nodes``; the mask is true where a draw is a negative.

        Args:
            nodes: First nodes ``u`` of the pairs of a batch.
            known: Related pairs ``(u, v)``, from ``pair_keys``.
            num_nodes: Number of all nodes.
            generator: Source of the draws; on the CPU it gives the same draws for every device.
            candidates: Nodes to draw from; ``None`` for all nodes.
            counts: Weight of each candidate before the power, 0 or more; with ``power`` above 0.
        """
        negatives = self.draw(
            tuple(nodes.shape), num_nodes, generator=generator, candidates=candidates, counts=counts
        ).to(nodes.device)
        return negatives, self.mask(nodes, negatives, known=known, num_nodes=num_nodes)

    def draw(
        self,
        shape: tuple[int, ...],
        num_nodes: int,
        *,
        generator: torch.Generator,
        candidates: Int[Tensor, " m"] | None = None,
        counts: Float[Tensor, " m"] | Int[Tensor, " m"] | None = None,
    ) -> Int[Tensor, "*batch k"]:
        """Draw nodes without a mask, on the device of the candidates or else of the generator.

        Draw for all clients before ``vmap`` and call ``mask`` inside it. Arguments and errors are
        those of a call, with the shape of ``nodes`` instead of the nodes.
        """
        num_candidates = num_nodes if candidates is None else len(candidates)
        if num_candidates < 1:
            raise ValueError("a negative needs a node to draw, got no candidates: give one or more")
        shape = (*shape, self.num_negatives)
        weights = self._weights(counts, num_candidates)
        if weights is None:
            drawn = torch.randint(
                num_candidates, shape, generator=generator, device=generator.device
            )
        else:
            number = torch.Size(shape).numel()
            weights = weights.to(generator.device)
            # multinomial refuses to draw 0 numbers for an empty batch
            drawn = weights.multinomial(max(number, 1), replacement=True, generator=generator)
            drawn = drawn[:number].reshape(shape)
        return drawn if candidates is None else candidates.long()[drawn.to(candidates.device)]

    @staticmethod
    def mask(
        nodes: Int[Tensor, "*batch"],
        negatives: Int[Tensor, "*batch k"],
        *,
        known: Int[Tensor, " keys"],
        num_nodes: int,
    ) -> Bool[Tensor, "*batch k"]:
        """Mask that is true where a draw is neither the node itself nor related to it.

        It is pure and works under ``vmap`` with one set of known pairs for each client.
        """
        first = nodes.unsqueeze(-1)
        related = contains_pair(known, first, negatives, num_nodes=num_nodes)
        return ~related & (negatives != first)

    def _weights(self, counts: Tensor | None, num_candidates: int) -> Tensor | None:
        """Weights of the candidates in float64, or ``None`` if all are alike."""
        if (counts is None) != (self.power == 0):
            had = "no counts" if counts is None else "counts"
            raise ValueError(
                f"counts and a power above 0 go together, got {had} with a power of {self.power}"
            )
        if counts is None:
            return None
        if counts.shape != (num_candidates,):
            raise ValueError(
                f"counts must have one number for each of the {num_candidates} candidates, got "
                f"shape {tuple(counts.shape)}"
            )
        weights = counts.detach().double()
        if not bool((weights >= 0).all() & weights.isfinite().all() & (weights > 0).any()):
            raise ValueError("counts must be finite, 0 or more, and not all 0")
        return (weights / weights.amax()) ** self.power
