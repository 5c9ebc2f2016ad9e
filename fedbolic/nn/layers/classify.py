"""Multinomial logistic regression: logits from signed distances to one hyperplane per class."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.functional.hyperplane import Hyperplanes


class LorentzMLR(Hyperplanes[Lorentz]):
    r"""Multinomial logistic regression on the hyperboloid: signed, scaled distances to hyperplanes.

    .. math:: l_k = |z_k| \, d_k(x) = \frac{|z_k|}{\sqrt c} \operatorname{asinh} \sqrt c \Bigl(
        \cosh(\sqrt c \, a_k) \, \hat z_k \cdot x_s - \sinh(\sqrt c \, a_k) \, x_0 \Bigr)

    The hyperplane of class :math:`k` lies :math:`a_k` from the origin in the direction of
    :math:`z_k`. Near the origin with :math:`a = 0` the head is a linear layer. ``weight`` starts as
    in ``nn.Linear``, uniform within ``1 / sqrt(in_features)``, and ``bias`` (:math:`a`) as 0.

    Args:
        in_features: Dimensions of the input space; an input has one more coordinate, time.
        num_classes: Number of logits, at least 1.
        curvature: Minus the sectional curvature, a number or a learnable ``Curvature``.
        bias: Whether to learn the offsets :math:`a_k`, in units of length.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or ``curvature`` is invalid; when called, if the inputs
            have the wrong width or dtype.

    References:
        Bdeir et al. (2024), arXiv:2303.15919; their norm of the normal equals :math:`|z|` exactly.

    Example:
        >>> from fedbolic.nn import ToManifold
        >>> head = torch.nn.Sequential(ToManifold(Lorentz), LorentzMLR(3, num_classes=10))
        >>> head(torch.randn(5, 3)).shape
        torch.Size([5, 10])
    """

    planes = "num_classes"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        curvature: Curvature | float = 1.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check.at_least(1, in_features=in_features, num_classes=num_classes)
        super().__init__(
            Lorentz, in_features, num_classes,
            curvature=curvature, bias=bias, device=device, dtype=dtype,
        )  # fmt: skip

    @override
    def begin(self) -> None:
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch classes"]:
        return self.logits(x, 1.0)


class PoincareMLR(Hyperplanes[Poincare]):
    r"""Multinomial logistic regression in the ball: signed, scaled distances to hyperplanes.

    .. math:: l_k = 2 |z_k| \, d_k(x) = \frac{2 |z_k|}{\sqrt c} \operatorname{asinh} \Bigl(
        \lambda_x \sqrt c \, \hat z_k \cdot x \cosh(\sqrt c \, a_k)
        - (\lambda_x - 1) \sinh(\sqrt c \, a_k) \Bigr), \quad \lambda_x = \frac{2}{1 - c |x|^2}

    The hyperplane of class :math:`k` lies :math:`a_k` from the origin in the direction of
    :math:`z_k` (:math:`a_k = 2 r_k` in the paper). Near the origin with :math:`a = 0` the logit is
    :math:`4 \, z_k \cdot x`. ``weight`` starts uniform within ``1 / (2 sqrt(in_features))``, so
    that the head starts like ``nn.Linear`` on the tangent :math:`2 x`; ``bias`` (:math:`a`) starts
    as 0.

    Args:
        in_features: Dimensions of the input space.
        num_classes: Number of logits, at least 1.
        curvature: Minus the sectional curvature, a number (0 for flat space) or a ``Curvature``.
        bias: Whether to learn the offsets :math:`a_k`, in units of length.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or ``curvature`` is invalid; when called, if the inputs
            have the wrong width or dtype.

    References:
        Shimizu et al. (2021), arXiv:2006.08210.

    Example:
        >>> from fedbolic.nn import ToManifold
        >>> head = torch.nn.Sequential(ToManifold(Poincare), PoincareMLR(3, num_classes=10))
        >>> head(torch.randn(5, 3)).shape
        torch.Size([5, 10])
    """

    planes = "num_classes"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        curvature: Curvature | float = 1.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check.at_least(1, in_features=in_features, num_classes=num_classes)
        super().__init__(
            Poincare, in_features, num_classes,
            curvature=curvature, bias=bias, device=device, dtype=dtype,
        )  # fmt: skip

    @override
    def begin(self) -> None:
        bound = 0.5 * self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch classes"]:
        return self.logits(x, 2.0)
