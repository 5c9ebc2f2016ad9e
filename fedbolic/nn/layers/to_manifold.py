"""The entry from Euclidean features to points of a hyperbolic space."""

import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.numerics import bounded, scale_down
from fedbolic.formulas.sinh_ratio import sinh_ratio
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent, with_space_part
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import length_of, points_at

EntryMode: TypeAlias = Literal["hard", "soft", "space"]
"""Map of ``ToManifold`` from features to points."""

CLIP_RADIUS = 2.3
"""Default bound of ``ToManifold`` in curvature radii: heads were level with ``nn.Linear`` at 2.1 to
2.5, and lost accuracy further out (section *Twins* of the benchmarks)."""


class ToManifold(HyperbolicModule[Lorentz | Poincare]):
    r"""Points of a hyperbolic space from Euclidean features, at a bounded distance from the origin.

    .. math:: x = \exp_0(v'), \quad d(0, x) = |v'|, \quad v' = \begin{cases}
        \min(1, \rho / |v|) \, v & \text{hard} \\
        \tanh(|v| / \rho) \, \rho \, v / |v| & \text{soft} \end{cases},
        \qquad x_s = v \quad \text{(space)}

    with :math:`\rho = r / \sqrt c`. Nothing else bounds the features that a backbone learns. At 8
    radii from the origin, where Adam takes them, the logits of a hyperbolic head hardly differ
    between classes, and accuracy drops. The module belongs between the backbone and the first
    hyperbolic layer from the first training step on.

    Both models give the same points, so the bound of the ball's own tangents is :math:`\rho / 2`;
    the radius 1 in Guo et al. is 2 here. With ``mode="space"`` the features are the space
    coordinates on the hyperboloid: the distance :math:`\operatorname{asinh}(\sqrt c |v|) / \sqrt c`
    has no bound and grows with the logarithm of the features.

    Half types are mapped in float32. Under autocast the points are float32, as autocast computes
    exponentials; otherwise they have the dtype of the features.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``. In flat space,
            ``Poincare(0)``, nothing is clipped.
        mode: ``hard`` clips the length, ``soft`` saturates it, ``space`` takes the features as
            space coordinates.
        radius: Bound :math:`r` of the distance from the origin in curvature radii, above 0; by
            default 2.3. ``math.inf`` gives the unbounded exponential map. ``None`` for ``space``.

    Shapes:
        Features ``(*, n)`` to points ``(*, n)``, on the hyperboloid ``(*, n + 1)``.

    Raises:
        ValueError: If ``mode`` is unknown, ``radius`` is out of range or given for ``space``, or
            the space is refused; when called, if the features are not floating or have no axis.

    References:
        Guo et al. (2022), arXiv:2107.11472, for the hard clip.

    Example:
        >>> entry = ToManifold(Lorentz(c=1.0))
        >>> features = torch.tensor([[0.3, 0.4], [30.0, 40.0]])
        >>> entry.manifold.dist0(entry(features))
        tensor([0.5000, 2.3000])
        >>> entry.length(features)
        tensor([ 0.5000, 50.0000])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        *,
        mode: EntryMode = "hard",
        radius: float | None = None,
    ) -> None:
        super().__init__(manifold)
        check.one_of(("hard", "soft", "space"), mode=mode)
        if mode == "space" and radius is not None:
            raise ValueError(
                f"radius must be None for mode='space', which has no bound, got {radius}"
            )
        self.mode = mode
        self.radius = CLIP_RADIUS if radius is None else float(radius)
        if not self.radius > 0:
            raise ValueError(
                f"radius must be above 0, got {radius}: math.inf is the map without a bound"
            )

    @override
    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch ambient"]:
        _check(x)
        y = self._point(self.manifold, scale_down(bounded(x)))
        as_is = y.dtype == x.dtype or torch.is_autocast_enabled(x.device.type)
        return y if as_is else self.rounded(y, x)

    def length(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
        """Lengths of features before the clip, a score for the detection of foreign data.

        The distance of a point from the origin is such a score only without the hard clip, which
        moves most points to the bound.

        Args:
            x: Features, as given to the module.
        """
        _check(x)
        return torch.linalg.vector_norm(wide(x), dim=-1)

    def _point(self, space: Lorentz | Poincare, v: Tensor) -> Tensor:
        """Points of features in float32 or float64."""
        if self.mode == "space":
            return with_space_part(space, v)
        c = space.c
        if math.isinf(self.radius) or (not isinstance(c, Tensor) and c == 0):
            return from_tangent(space, v)
        length, bound = length_of(v), self.radius / c**0.5
        soft = self.mode == "soft"
        distance = bound * (length / bound).tanh() if soft else length.clamp(max=bound)
        return points_at(space, v * (sinh_ratio(distance, c) / length))

    @override
    def extra_repr(self) -> str:
        return self.describe(mode=self.mode, **self._bound)

    @property
    def _bound(self) -> dict[str, float]:
        return {} if self.mode == "space" else {"radius": self.radius}


def _check(x: Tensor) -> None:
    """Check that features can be read as vectors.

    Raises:
        ValueError: If ``x`` is not floating or has no axis of features.
    """
    if not x.is_floating_point():
        raise ValueError(f"x must be floating, got {x.dtype}: use x.float()")
    if not x.ndim or not x.shape[-1]:
        raise ValueError(
            f"x must have features along its last axis, got shape {tuple(x.shape)}: "
            "unsqueeze(-1) makes a number a vector"
        )
