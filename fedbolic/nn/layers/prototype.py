"""Logits from distances to one prototype per class, inside the space or at its boundary."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent
from fedbolic.nn.functional.space import Head, rounded, wide
from fedbolic.nn.layers.busemann import scaled_busemann


class PrototypeHead(Head):
    r"""Logits that are minus the squared distances to one learnt prototype per class.

    .. math:: l_k = -d(x, \exp_0(w_k))^2

    The tangents ``weight`` are Euclidean parameters. They start normal with variance
    ``1 / in_features``, which puts the prototypes about one unit of length from the origin.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``. Both take the
            same tangents to the same points.
        in_features: Dimensions of the input space, without time.
        num_classes: Number of logits, at least 1.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features)``, on the hyperboloid ``(*, in_features + 1)``, to logits ``(*,
        num_classes)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        Snell et al. (2017), arXiv:1703.05175; Khrulkov et al. (2020), arXiv:1904.02239.

    Example:
        >>> from fedbolic.nn import ToManifold
        >>> space = Lorentz(c=1.0)
        >>> entry, head = ToManifold(space, mode="space"), PrototypeHead(space, 3, num_classes=10)
        >>> head(entry(torch.randn(5, 3))).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        num_classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, in_features, num_classes, bias=False, device=device, dtype=dtype)

    @override
    def begin(self) -> None:
        nn.init.normal_(self.weight, std=self.in_features**-0.5)

    @property
    def prototypes(self) -> Float[Tensor, "classes ambient"]:
        """One point per class."""
        return from_tangent(self.manifold, self.weight)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch classes"]:
        self.check(x, self.in_features, self.weight)
        flat = wide(x).reshape(-1, x.shape[-1])
        distances = self.manifold.cdist(flat, from_tangent(self.manifold, wide(self.weight)))
        logits = -distances.square().reshape(*x.shape[:-1], len(self.weight))
        return rounded(logits, torch.promote_types(x.dtype, self.weight.dtype))

    @override
    def extra_repr(self) -> str:
        return self.describe(in_features=self.in_features, num_classes=self.out_features)


class BusemannHead(Head):
    r"""Busemann function of one ideal point per class, scaled and shifted.

    .. math:: l_k = b_k - |z_k| \, B_k(x), \quad B_k(x) = \frac{1}{\sqrt c}
        \log \bigl( \sqrt c \, x_0 - \sqrt c \, \hat z_k \cdot x_s \bigr)

    :math:`B_k` is the Busemann function of the ideal point in the direction of :math:`z_k`: the
    distance from :math:`x` to that point minus the distance from the origin to it, as a limit. In
    the ball it is :math:`\log (|\hat z_k - \sqrt c \, x|^2 / (1 - c |x|^2)) / \sqrt c`. Near the
    origin the head is a linear layer, and all parameters start as in ``nn.Linear``, uniform within
    ``1 / sqrt(in_features)``. More than 5 radii from the origin (14 in float64), rounding hides how
    close a point is to the ray to its ideal point; :math:`B_k` is therefore bounded below by minus
    the distance from the origin.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        in_features: Dimensions of the input space, without time.
        num_classes: Number of logits, at least 1.
        bias: Whether to learn the bias ``b``.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features)``, on the hyperboloid ``(*, in_features + 1)``, to logits ``(*,
        num_classes)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        Ghadimi Atigh et al. (2021), arXiv:2106.14472; Chen et al. (2026), arXiv:2602.18858.

    Example:
        >>> from fedbolic.nn import ToManifold
        >>> space = Poincare(c=1.0)
        >>> head = BusemannHead(space, 3, num_classes=10)
        >>> head(ToManifold(space)(torch.randn(5, 3))).shape
        torch.Size([5, 10])
    """

    @override
    def reset_parameters(self) -> None:
        self.begin()
        if self.bias is not None:
            nn.init.uniform_(self.bias, -self.bound, self.bound)

    @override
    def begin(self) -> None:
        nn.init.uniform_(self.weight, -self.bound, self.bound)

    @property
    def bound(self) -> float:
        """Bound of initial values."""
        return self.in_features**-0.5

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch classes"]:
        self.check(x, self.in_features, self.weight)
        logits = scaled_busemann(self.manifold, x, self.weight)
        logits = logits if self.bias is None else logits + wide(self.bias)
        return rounded(logits, torch.promote_types(x.dtype, self.weight.dtype))
