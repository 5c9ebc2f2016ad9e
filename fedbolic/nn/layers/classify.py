"""Multinomial logistic regression: logits from signed distances to one hyperplane per class."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic import kernels
from fedbolic.formulas.registrar import replaced_by
from fedbolic.formulas.sinh_ratio import asinh_ratio
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.hyperplane import hyperplane_logits, lengths, timed, unit_normals
from fedbolic.nn.functional.space import Head, rounded, wide


def _takes(head: "MLR", space: Lorentz | Poincare, x: Tensor) -> bool:
    """True if the kernels take points and hyperplanes; products in half types are torch's."""
    del space
    if not (kernels.run_on(x) and kernels.run_on(head.weight)):
        return False
    full = x.dtype == head.weight.dtype and x.dtype in (torch.float32, torch.float64)
    exact = torch.get_float32_matmul_precision() == "highest"
    return full and exact and not torch.is_autocast_enabled(x.device.type)


def _by_kernel(head: "MLR", space: Lorentz | Poincare, x: Tensor) -> Tensor:
    weight, model = head.weight, {"hyperboloid": isinstance(space, Lorentz)}
    offset = weight.new_zeros(len(weight)) if head.bias is None else head.bias
    flat = x.reshape(-1, x.shape[-1])
    logits = hyperplane_logits(flat, weight, offset, space.c, factor=head.factor, **model)
    return logits.reshape(*x.shape[:-1], len(weight))


class MLR(Head):
    r"""Multinomial logistic regression: signed, scaled distances to hyperplanes.

    .. math:: l_k = f |z_k| \, d_k(x) = \frac{f |z_k|}{\sqrt c} \operatorname{asinh} \sqrt c \Bigl(
        \cosh(\sqrt c \, a_k) \, \hat z_k \cdot x_s - \sinh(\sqrt c \, a_k) \, x_0 \Bigr)

    with :math:`f = 1` on the hyperboloid. The hyperplane of class :math:`k` lies :math:`a_k` from
    the origin in the direction of :math:`z_k`. In the ball :math:`f = 2`, as lengths at the origin
    are twice the Euclidean ones, :math:`x_s = \lambda x` and :math:`\sqrt c \, x_0 = \lambda - 1`
    with :math:`\lambda = 2 / (1 - c |x|^2)`; :math:`a_k` is :math:`2 r_k` in the paper.

    Near the origin with :math:`a = 0` the head is a linear layer, :math:`z_k \cdot x` on the
    hyperboloid and :math:`4 \, z_k \cdot x` in the ball. ``weight`` starts as in ``nn.Linear``,
    uniform within ``1 / sqrt(in_features)``, in the ball within half of it, so that both start like
    ``nn.Linear`` on tangents; ``bias`` (:math:`a`) starts as 0.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        in_features: Dimensions of the input space, without time.
        num_classes: Number of logits, at least 1.
        bias: Whether to learn the offsets :math:`a_k`, in units of length.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features)``, on the hyperboloid ``(*, in_features + 1)``, to logits
        ``(*, num_classes)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        Bdeir et al. (2024), arXiv:2303.15919, whose norm of the normal equals :math:`|z|` exactly;
        Shimizu et al. (2021), arXiv:2006.08210, for the ball.

    Example:
        >>> from fedbolic.nn import ToManifold
        >>> space = Lorentz(c=1.0)
        >>> head = torch.nn.Sequential(ToManifold(space), MLR(space, 3, num_classes=10))
        >>> head(torch.randn(5, 3)).shape
        torch.Size([5, 10])
    """

    @property
    def factor(self) -> float:
        """The number :math:`f`."""
        return 1.0 if self.model is Lorentz else 2.0

    @override
    def begin(self) -> None:
        bound = self.in_features**-0.5 / self.factor
        nn.init.uniform_(self.weight, -bound, bound)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch classes"]:
        self.check(x, self.in_features, self.weight)
        space = self.manifold
        return self._logits(space, timed(space, x))

    @replaced_by(_by_kernel, _takes)
    def _logits(self, space: Lorentz | Poincare, x: Tensor) -> Tensor:
        length = lengths(wide(self.weight))
        scale = length if self.factor == 1.0 else self.factor * length
        rows = unit_normals(space, self.weight, length, self.bias)
        sinh = wide(functional.linear(x, rows))
        logits = scale * asinh_ratio(sinh, space.c)
        return rounded(logits, torch.promote_types(x.dtype, self.weight.dtype))
