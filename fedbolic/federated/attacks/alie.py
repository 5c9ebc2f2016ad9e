"""A little is enough: an attack of colluding clients that hides among honest updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import as_number
from fedbolic.federated.attacks.attack import Attack


@dataclass(frozen=True)
class ALIE(Attack):
    r"""A little is enough: all attackers send the same delta, some deviations off their mean.

    .. math:: \mu - z \sigma, \quad
        z = \Phi^{-1}\Big(\frac{n - m - s}{n - m}\Big), \quad
        s = \lfloor n / 2 + 1 \rfloor - m

    The mean and the standard deviation (divisor m) of every coordinate are those of the honest
    deltas of the m attackers, which thus estimate those of all n clients without seeing them. A
    single attacker has no deviation and sends its honest delta.

    Args:
        z: Number of standard deviations, at least 0; ``None`` for the formula, which gives the
            largest one at which s honest clients are expected to lie further out.

    Raises:
        ValueError: If ``z`` is negative, or (from ``craft``) it is ``None`` and the formula gives
            no finite number: the attackers are a majority, or there are two clients or fewer.

    References:
        Baruch et al. (2019), Algorithm 3, arXiv:1902.06156.

    Example:
        >>> honest = {0: {"w": torch.tensor([1.0])}, 1: {"w": torch.tensor([3.0])}}
        >>> ALIE(z=1.5).craft(honest, 10, Rng(0))
        {0: {'w': tensor([0.5000])}, 1: {'w': tensor([0.5000])}}
    """

    z: float | None = None

    def __post_init__(self) -> None:
        if self.z is not None:
            check.not_negative(z=self.z)

    @override
    def craft(self, honest: Mapping[int, Tree], num_clients: int, rng: Rng) -> dict[int, Tree]:
        z = alie_deviations(num_clients, len(honest)) if self.z is None else self.z

        def displace(*leaves: Tensor | float) -> Tensor | float:
            like = leaves[0]
            if not (isinstance(like, Tensor) and like.is_floating_point()):
                return like
            values = torch.stack([as_number(leaf).double() for leaf in leaves])
            return (values.mean(dim=0) - z * values.std(dim=0, correction=0)).to(like.dtype)

        return dict.fromkeys(honest, tree.map(displace, *honest.values()))


def alie_deviations(num_clients: int, num_attackers: int) -> float:
    """Number of standard deviations z of :class:`ALIE`, by the paper's formula.

    Args:
        num_clients: Number of all clients, n.
        num_attackers: Number of attackers among them, m.

    Raises:
        ValueError: If the formula gives no finite number.

    Example:
        >>> round(alie_deviations(50, 24), 3)
        1.426
    """
    honest = num_clients - num_attackers
    supporters = num_clients // 2 + 1 - num_attackers
    if not 0 < supporters < honest:
        raise ValueError(
            f"ALIE's formula gives no finite z for {num_attackers} attackers among {num_clients} "
            "clients: give z"
        )
    return NormalDist().inv_cdf((honest - supporters) / honest)
