"""One point of many."""

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.space import Curved


class CentroidPool(Curved[Lorentz | Poincare]):
    r"""The centroid of the points along one axis, which goes.

    .. math:: y = \frac{m}{\sqrt{c} \, \sqrt{-\langle m, m \rangle}}, \quad
        m = \sum_i w_i x_i

    on the sheet, and the same point in the ball.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        dim: The axis of the points; not the last one, which is that of the coordinates.
        curvature: Minus the sectional curvature, a number (0 is flat space) or a module.

    Raises:
        ValueError: If ``dim`` is the last axis; when called, if there is no such axis.

    References:
        Law et al. (2019), PMLR 97.

    Example:
        >>> import torch
        >>> CentroidPool(Poincare)(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
        tensor([0., 0.])
    """

    def __init__(
        self,
        kind: type[Lorentz] | type[Poincare],
        dim: int = -2,
        *,
        curvature: Curvature | float = 1.0,
    ) -> None:
        super().__init__(kind, curvature)
        if dim == -1:
            raise ValueError("dim must be an axis of points, got -1: the last axis has coordinates")
        self.dim = dim

    @override
    def forward(
        self,
        x: Float[Tensor, "*batch ambient"],
        weights: Float[Tensor, "*#points"] | None = None,
    ) -> Float[Tensor, "*pooled ambient"]:
        """The centroids.

        Args:
            x: Points.
            weights: 0 or more, with the axes of ``x`` but the last; all equal if not given.

        Raises:
            ValueError: If there is no axis of points, or ``weights`` has other axes.
        """
        self.check(x)
        axis = self.dim % x.ndim
        if not -x.ndim <= self.dim < x.ndim - 1:
            raise ValueError(
                f"x must have an axis {self.dim} before that of coordinates, got shape "
                f"{tuple(x.shape)}: choose dim between {-x.ndim} and {x.ndim - 2}"
            )
        if weights is None:
            return self.manifold.centroid(x.movedim(axis, -2))
        if weights.shape != x.shape[:-1]:
            raise ValueError(
                f"weights must have the shape {tuple(x.shape[:-1])} of the points, got "
                f"{tuple(weights.shape)}: use expand"
            )
        return self.manifold.centroid(x.movedim(axis, -2), weights.movedim(axis, -1))

    @override
    def extra_repr(self) -> str:
        return self.describe(dim=self.dim)
