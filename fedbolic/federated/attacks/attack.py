"""The interface of attacks on updates, and attacks of clients that act alone."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree


class Attack(ABC):
    """A rule by which malicious clients replace what they would send; for experiments only."""

    @abstractmethod
    def craft(self, honest: Mapping[int, Tree], num_clients: int, rng: Rng) -> dict[int, Tree]:
        """Malicious parts of the payloads, by client id; only floating tensors differ.

        Args:
            honest: Parts that the attackers would send if they were honest, by client id, at least
                one. The attackers collude: each may use all of these parts, but nothing of the
                other clients.
            num_clients: Number of all clients that deliver in this exchange.
            rng: Random stream of the attack in this exchange.
        """


@dataclass(frozen=True)
class SignFlip(Attack):
    r"""Sign flipping: every attacker sends :math:`-s \Delta_k` in place of its delta.

    Args:
        scale: Factor s, above 0; with 1, norms do not betray the attackers.

    Raises:
        ValueError: If ``scale`` is not positive.

    References:
        Li et al. (2019), sign-flipping attack, arXiv:1811.03761.

    Example:
        >>> honest = {4: {"w": torch.tensor([1.0, -2.0])}}
        >>> SignFlip(scale=3.0).craft(honest, 10, Rng(0))
        {4: {'w': tensor([-3.,  6.])}}
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check.positive(scale=self.scale)

    @override
    def craft(self, honest: Mapping[int, Tree], num_clients: int, rng: Rng) -> dict[int, Tree]:
        def flip(leaf: Tensor) -> Tensor:
            return leaf * -self.scale if leaf.is_floating_point() else leaf

        return {client_id: tree.map_tensors(flip, part) for client_id, part in honest.items()}


@dataclass(frozen=True)
class GaussianNoise(Attack):
    r"""Gaussian noise: every attacker sends :math:`\Delta_k + \sigma \xi`, with normal xi.

    The noise of an attacker is independent of that of all others.

    Args:
        std: Standard deviation of every coordinate, sigma, in units of the deltas, above 0.

    Raises:
        ValueError: If ``std`` is not positive.

    References:
        Blanchard et al. (2017), Gaussian attack, arXiv:1703.02757 (there without the delta).

    Example:
        >>> sent = GaussianNoise(std=0.1).craft({4: {"w": torch.zeros(10_000)}}, 10, Rng(0))
        >>> round(float(sent[4]["w"].std()), 2)
        0.1
    """

    std: float

    def __post_init__(self) -> None:
        check.positive(std=self.std)

    @override
    def craft(self, honest: Mapping[int, Tree], num_clients: int, rng: Rng) -> dict[int, Tree]:
        sent = {}
        for client_id, part in honest.items():
            generator = rng.at("client", client_id).generator()

            def disturb(leaf: Tensor, generator: torch.Generator = generator) -> Tensor:
                if not leaf.is_floating_point():
                    return leaf
                # drawn on the CPU, so that every device sees the same numbers
                noise = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
                return leaf + self.std * noise.to(leaf.device)

            sent[client_id] = tree.map_tensors(disturb, part)
        return sent
