"""Pooling of points."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import timed_points
from fedbolic.nn.layers.image_convolution import Window


class CentroidPool(HyperbolicModule[Lorentz | Poincare]):
    r"""Centroid of the points along one axis, which is removed.

    .. math:: y = \frac{m}{\sqrt{c} \, \sqrt{-\langle m, m \rangle}}, \quad
        m = \sum_i w_i \, t_i^q \, x_i, \quad t_i = \cosh(\sqrt c \, d(0, x_i))

    on the hyperboloid, and the corresponding point in the ball. With PyG's batch vector, the output
    has one centroid per graph, like the means of ``global_mean_pool``. With a ``power`` :math:`q`
    of 1 or more it is the outward Einstein midpoint of Madhu et al. with their :math:`p = q - 1`,
    in which points far from the origin weigh more.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        dim: Axis of the points; not the last, which holds the coordinates.
        power: The power :math:`q` of the time coordinates, 0 or more.

    Shapes:
        Points ``(*, n, coordinates)`` with weights ``(*, n)`` to points ``(*, coordinates)``, for
        ``dim=-2``; with ``batch``, points ``(n, coordinates)`` to ``(graphs, coordinates)``.

    Raises:
        ValueError: If ``dim`` is -1, ``power`` is negative or the space is refused.

    References:
        Law et al. (2019), PMLR 97; Madhu et al. (2026), arXiv:2602.07739, Section 4.3.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5]])
        >>> CentroidPool(Poincare(c=1.0))(x[:2])
        tensor([0., 0.])
        >>> CentroidPool(Poincare(c=1.0))(x, batch=torch.tensor([0, 0, 1]))
        tensor([[0.0000, 0.0000],
                [0.0000, 0.5000]])
    """

    def __init__(self, manifold: Lorentz | Poincare, dim: int = -2, *, power: float = 0.0) -> None:
        super().__init__(manifold)
        check.not_negative(power=power)
        if dim == -1:
            raise ValueError("dim must be an axis of points, got -1: the last axis has coordinates")
        self.dim, self.power = dim, power

    @override
    def forward(
        self,
        x: Float[Tensor, "*batch ambient"],
        weights: Float[Tensor, "*#points"] | None = None,
        *,
        batch: Int[Tensor, " n"] | None = None,
        size: int | None = None,
    ) -> Float[Tensor, "*pooled ambient"]:
        """Centroids of the points along ``dim``, or of the points of each graph in ``batch``.

        Args:
            x: Points.
            weights: One weight per point, 0 or more; all equal by default.
            batch: PyG's batch vector: the graph index of each point, in any order, for ``x`` of
                shape (nodes, coordinates). The axis of points becomes one of graphs.
            size: Number of graphs, above the largest index in ``batch``; by default one more than
                it. The centroid of a graph without points is the origin.

        Raises:
            ValueError: If ``x`` has no axis ``dim`` of points, or no point along it, ``weights``
                has the wrong shape or an integer dtype, ``batch`` is not one int64 index below
                ``size`` per point, or ``size`` is given without ``batch``.
        """
        self.check(x)
        if weights is not None:
            _check_weights(weights, x)
        if size is not None and batch is None:
            raise ValueError(f"size goes with batch, got size {size} alone: pass batch as well")
        axis = self.dim % x.ndim
        if not -x.ndim <= self.dim < x.ndim - 1:
            raise ValueError(
                f"x must have an axis {self.dim} before that of coordinates, got shape "
                f"{tuple(x.shape)}: choose dim between {-x.ndim} and {x.ndim - 2}"
            )
        if batch is not None:
            return self._of_graphs(x, weights, batch, size)
        if not x.shape[axis]:
            raise ValueError(
                f"x must have one or more points along axis {self.dim}, got shape "
                f"{tuple(x.shape)}: pass batch and size for sets that may be empty"
            )
        moved = None if weights is None else weights.movedim(axis, -1)
        y = self._centroid((wide(x) if self.power else x).movedim(axis, -2), moved)
        return self.rounded(y, x) if self.power else y

    def _centroid(self, x: Tensor, weights: Tensor | None) -> Tensor:
        """Centroids of sets; powers of times are shares of the largest, which do not overflow."""
        if not self.power:
            return self.manifold.centroid(x, weights)
        time = timed_points(self.manifold, x)[1].squeeze(-1)
        known = time.detach()
        known = known if weights is None else known.where(weights != 0, 1.0)
        limit = torch.finfo(x.dtype).max ** (0.5 / self.power)  # of points that weigh nothing
        share = (time / known.amax(-1, keepdim=True)).clamp(max=limit) ** self.power
        return self.manifold.centroid(x, share if weights is None else share * weights)

    def _of_graphs(
        self, x: Tensor, weights: Tensor | None, batch: Tensor, size: int | None
    ) -> Tensor:
        """Centroids of graphs, computed on one row of points per graph, padded with origins."""
        if x.ndim != 2 or batch.shape != x.shape[:1] or batch.dtype != torch.int64:
            raise ValueError(
                f"batch must be int64 with one graph index per row of x {tuple(x.shape)}, got "
                f"{batch.dtype} of shape {tuple(batch.shape)}"
            )
        counts = batch.bincount(minlength=size or 0)
        if size is not None and len(counts) > size:
            raise ValueError(f"size must be above {len(counts) - 1}, the largest index, got {size}")
        order = batch.argsort(stable=True)
        graph = batch[order]
        place = torch.arange(len(x), device=x.device) - (counts.cumsum(0) - counts)[graph]
        shape = len(counts), max([1, *counts.tolist()])
        space, points = self.manifold, wide(x)
        rows = space.origin(*shape, x.shape[1], dtype=points.dtype, device=x.device)
        rows = rows.index_put((graph, place), points[order])
        given = torch.ones_like(points[:, 0]) if weights is None else weights.to(points.dtype)
        shares = points.new_zeros(shape).index_put((graph, place), given[order])
        # a row without points holds origins only: weights of 1 make the origin its centroid
        shares = shares.masked_fill((counts == 0).unsqueeze(1), 1.0)
        return self.rounded(self._centroid(rows, shares), x)

    @override
    def extra_repr(self) -> str:
        return self.describe(dim=self.dim, **({"power": self.power} if self.power else {}))


class CentroidPool2d(HyperbolicModule[Lorentz | Poincare]):
    r"""Centroids of the windows of images whose pixels are points.

    .. math:: y = \frac{m}{\sqrt{c} \, \sqrt{-\langle m, m \rangle}}, \quad
        m = \sum_{i \in \mathrm{window}} x_i

    on the hyperboloid. In the ball it is the corresponding point, the Einstein midpoint. Padding
    does not count. An image is (height, width, coordinates). For one centroid of a whole image, use
    ``nn.Flatten(-3, -2)`` and ``CentroidPool``.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        kernel_size: Height and width of a window, at least 1.
        stride: Step between two windows, at least 1; by default ``kernel_size``.
        padding: Rows and columns on each side that do not count, at most half of ``kernel_size``.

    Shapes:
        Images of points ``(*, height, width, coordinates)`` to images ``(*, new height, new width,
        coordinates)``, sizes as in ``nn.AvgPool2d``.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            are no images with room for a window.

    References:
        Law et al. (2019), PMLR 97; Bdeir et al. (2024), arXiv:2303.15919; van Spengler et al.
        (2023), arXiv:2303.14027, for the midpoint in the ball.

    Example:
        >>> x = torch.tensor([[0.5], [-0.5], [0.2], [0.2]]).reshape(1, 4, 1).expand(2, 4, 1)
        >>> CentroidPool2d(Poincare(c=1.0), 2)(x).flatten()
        tensor([0.0000, 0.2000])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        kernel_size: int,
        *,
        stride: int | None = None,
        padding: int = 0,
    ) -> None:
        super().__init__(manifold)
        self.window = Window(
            kernel_size, kernel_size if stride is None else stride, padding
        ).checked()
        if padding > kernel_size // 2:
            raise ValueError(
                f"padding must be at most half of kernel_size {kernel_size}, got {padding}: a "
                "window without pixels has no centroid"
            )

    @override
    def forward(
        self, x: Float[Tensor, "*batch height width ambient"]
    ) -> Float[Tensor, "*batch _ _ ambient"]:
        self.check(x)
        self.window.check_image(x)
        weights = None
        if self.window.padding:
            shape = (1,) * (x.ndim - 3) + (*x.shape[-3:-1], 1)
            weights = self._windows(torch.ones(shape, dtype=x.dtype, device=x.device)).squeeze(-1)
        return self.manifold.centroid(self._windows(x), weights)

    def _windows(self, x: Tensor) -> Tensor:
        """Pixels of all windows, (..., height, width, window, coordinates)."""
        size, stride, padding, _ = self.window
        x = functional.pad(x, (0, 0, *(padding,) * 4))
        return x.unfold(-3, size, stride).unfold(-3, size, stride).flatten(-2).mT

    @override
    def extra_repr(self) -> str:
        size, stride, padding, _ = self.window
        return self.describe(kernel_size=size, stride=stride, padding=padding)


def _check_weights(weights: Tensor, x: Tensor) -> None:
    if not weights.is_floating_point():
        raise ValueError(
            f"weights must be floating, got {weights.dtype}: pass a batch vector as batch=, "
            "and convert counts with weights.float()"
        )
    if weights.shape != x.shape[:-1]:
        raise ValueError(
            f"weights must have the shape {tuple(x.shape[:-1])} of the points, got "
            f"{tuple(weights.shape)}: use expand"
        )
