"""Low-rank adapters of linear layers: LoRA, and HypLoRA on the hyperboloid."""

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.analytic import radial_asinh, radial_sinh
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.functional.space import HyperbolicModule, wide

AdapterKind: TypeAlias = Literal["lora", "hyplora"]
"""Flat or hyperbolic update of a linear layer."""


class LowRankUpdate(nn.Module):
    """Update of ``LoRALinear``: two matrices of low rank, 0 at first.

    Args:
        base: Linear layer to adapt; its widths, device and dtype are those of the matrices.
        rank: Rank, at least 1.
        alpha: Factor, above 0.
    """

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.down, self.up = _matrices(base, rank, alpha)
        self.factor = alpha / rank

    @override
    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        return self.factor * linear(linear(x, self.down), self.up)

    @override
    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, factor={self.factor}"


class HyperbolicLowRankUpdate(HyperbolicModule[Lorentz]):
    """Update of ``HypLoRALinear``: two matrices of low rank act on space coordinates of a point.

    Args:
        base: Linear layer to adapt; its widths, device and dtype are those of the matrices.
        rank: Rank, at least 1.
        alpha: Factor, above 0.
        c: As in ``HypLoRALinear``.
    """

    def __init__(
        self, base: nn.Linear, *, rank: int, alpha: float, c: Curvature | float | None
    ) -> None:
        super().__init__(Lorentz(1 / base.in_features if c is None else c))
        self.down, self.up = _matrices(base, rank, alpha)
        self.factor = alpha / rank

    @override
    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        c = self.c
        point = radial_sinh(wide(x), c).to(x.dtype)
        moved = linear(linear(point, self.down), self.up)
        return (self.factor * radial_asinh(wide(moved), c)).to(moved.dtype)

    @override
    def extra_repr(self) -> str:
        return self.describe(rank=len(self.down), factor=self.factor)


class AdaptedLinear(nn.Module):
    """Base of frozen linear layers with an update.

    Args:
        base: Layer to adapt; its parameters no longer require gradients.
        adapter: Its update.
    """

    def __init__(self, base: nn.Linear, adapter: LowRankUpdate | HyperbolicLowRankUpdate) -> None:
        super().__init__()
        self.base, self.adapter = base.requires_grad_(False), adapter

    @override
    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        return self.base(x) + self.adapter(x)


class LoRALinear(AdaptedLinear):
    r"""Frozen linear layer with the update of LoRA, which changes nothing at first.

    .. math:: y = W x + b + \frac \alpha r B A x

    The parameters of the layer are ``base.weight`` and ``base.bias``, those of the update
    ``adapter.down`` (:math:`A`) and ``adapter.up`` (:math:`B`).

    Args:
        base: Layer to adapt; its parameters no longer require gradients.
        rank: Rank :math:`r` of the update, at least 1.
        alpha: Factor :math:`\alpha`, above 0.

    Shapes:
        Vectors ``(*, base.in_features)`` to vectors ``(*, base.out_features)``.

    Raises:
        ValueError: If a value is out of range.

    References:
        Hu et al. (2022), Sec. 4.1, arXiv:2106.09685.

    Example:
        >>> layer = LoRALinear(nn.Linear(8, 3), rank=2)
        >>> [name for name, p in layer.named_parameters() if p.requires_grad]
        ['adapter.down', 'adapter.up']
    """

    def __init__(self, base: nn.Linear, *, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__(base, LowRankUpdate(base, rank=rank, alpha=alpha))

    def merged(self) -> nn.Linear:
        """One linear layer with the same outputs; a hyperbolic update has none."""
        base, adapter = self.base, self.adapter
        with torch.device(base.weight.device):
            layer = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None)
        layer.to(base.weight.dtype).load_state_dict(base.state_dict())
        with torch.no_grad():
            layer.weight += adapter.factor * adapter.up @ adapter.down
        return layer


class HypLoRALinear(AdaptedLinear):
    r"""Frozen linear layer with the update of HypLoRA, which changes nothing at first.

    .. math:: W x + b + \frac \alpha r \log_0 \bigl[ \sqrt{|y|^2 + 1/c}, \; y \bigr], \qquad
        y = B A \, x_s, \quad x_s = \frac{\sinh(\sqrt c |x|)}{\sqrt c |x|} x

    The logarithm does not undo the exponential, because the matrices act between them on space
    coordinates, not on tangents: long features weigh more, and long updates are damped. For
    :math:`c \to 0` the layer is ``LoRALinear``. By default :math:`c = 1/n`, which puts features of
    mean square 1, such as those after layer norm, one curvature radius from the origin. A learnt
    curvature is the parameter ``adapter.curvature.raw``.

    Args:
        base: Layer to adapt; its parameters no longer require gradients.
        rank: Rank :math:`r` of the update, at least 1.
        alpha: Factor :math:`\alpha`, above 0.
        c: Minus the sectional curvature, a number above 0 or a ``Curvature``; ``None`` for one over
            the number of input features. The paper's :math:`K` is :math:`1/c`.

    Shapes:
        Vectors ``(*, base.in_features)`` to vectors ``(*, base.out_features)``.

    Raises:
        ValueError: If a value is out of range.

    References:
        Yang et al. (2025), Sec. 4, arXiv:2410.04010. Departs from the authors' code, which divides
        features by a constant before the exponential and not back after the logarithm: here the
        constant is in the curvature, so that the flat limit is LoRA at the same step size.

    Example:
        >>> layer = HypLoRALinear(nn.Linear(8, 3), rank=2)
        >>> torch.equal(layer(torch.ones(8)), layer.base(torch.ones(8)))
        True
    """

    def __init__(
        self,
        base: nn.Linear,
        *,
        rank: int = 4,
        alpha: float = 8.0,
        c: Curvature | float | None = None,
    ) -> None:
        super().__init__(base, HyperbolicLowRankUpdate(base, rank=rank, alpha=alpha, c=c))


def add_adapters(
    module: nn.Module,
    names: Iterable[str],
    *,
    rank: int = 4,
    alpha: float = 8.0,
    kind: AdapterKind = "hyplora",
) -> list[str]:
    """Replace linear layers by adapted ones, in place, and freeze all other parameters.

    In a federation the sharing table ``{"*adapter.*": "shared", "*": "fixed"}`` then sends the
    adapters alone: frozen weights are neither sent nor trained. The output projection of
    ``nn.MultiheadAttention`` cannot be adapted, since torch reads its weight and never calls it;
    ``nn.TransformerEncoderLayer`` does the same in its fast path, which
    ``torch.backends.mha.set_fastpath_enabled(False)`` turns off.

    Args:
        module: Network whose submodules are replaced.
        names: Shell patterns over the names of its linear layers; each must match one.
        rank: Rank of the updates, at least 1.
        alpha: Factor of the updates, above 0.
        kind: ``lora`` or ``hyplora``.

    Returns:
        The names of the adapted layers, in the order of the network.

    Raises:
        ValueError: If a pattern matches no linear layer that can be adapted, or a value is out of
            range.

    Example:
        >>> network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> add_adapters(network, ["2"], rank=1)
        ['2']
        >>> [name for name, p in network.named_parameters() if p.requires_grad]
        ['2.adapter.down', '2.adapter.up']
    """
    check.one_of(get_args(AdapterKind), kind=kind)
    adapted = _adapted(module, tuple(names))
    module.requires_grad_(False)
    wrapper = LoRALinear if kind == "lora" else HypLoRALinear
    for parent, key in adapted.values():
        setattr(parent, key, wrapper(getattr(parent, key), rank=rank, alpha=alpha))
    return list(adapted)


def _adapted(module: nn.Module, patterns: Sequence[str]) -> dict[str, tuple[nn.Module, str]]:
    """Module that holds each linear layer to adapt, and the layer's name there, by path."""
    places = {
        f"{path}.{key}" if path else key: (parent, key)
        for path, parent in module.named_modules()
        for key, child in parent.named_children()
        if isinstance(child, nn.Linear) and not isinstance(parent, nn.MultiheadAttention)
    }
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in places):
            raise ValueError(
                f"{pattern!r} matches no linear layer that can be adapted: the layers are "
                f"{', '.join(places) or 'none'}"
            )
    return {n: place for n, place in places.items() if any(fnmatchcase(n, p) for p in patterns)}


def _matrices(base: nn.Linear, rank: int, alpha: float) -> tuple[nn.Parameter, nn.Parameter]:
    """Both matrices of an update: uniform, as ``nn.Linear`` starts, and 0."""
    check.at_least(1, rank=rank)
    check.positive(alpha=alpha)
    down = nn.init.kaiming_uniform_(base.weight.new_empty(rank, base.in_features), a=math.sqrt(5))
    return nn.Parameter(down), nn.Parameter(base.weight.new_zeros(base.out_features, rank))
