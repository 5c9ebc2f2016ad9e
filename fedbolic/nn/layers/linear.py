"""Fully connected layers between hyperbolic spaces."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import ball_point, clamp_norm, hyperboloid_point
from fedbolic.nn.functional.hyperplane import lengths, normals, timed, unit_normals
from fedbolic.nn.functional.space import OutputRows, Space, rounded, wide
from fedbolic.nn.layers.activation import Pointwise, SpaceActivation, named

Products = Callable[[Tensor, Tensor | None], Tensor]
"""Products of inputs, time first, with rows of coefficients, plus a bias, in float32 or float64."""


class FullyConnected(OutputRows[Space], ABC):
    """Base of layers whose outputs are functions of products of points with rows of coefficients.

    Arguments and errors are those of ``OutputRows``.
    """

    @abstractmethod
    def mapped(self, products: Products) -> Float[Tensor, "*batch out"]:
        """Outputs of the layer in float32 or float64.

        Args:
            products: Called once, with one row per output. The coefficients of time are for units
                of length on the hyperboloid and for radii in the ball.
        """

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        self.check(x, self.in_features, self.weight)
        inputs = x if self.model is Lorentz else timed(self.manifold, x)
        y = self.mapped(lambda rows, bias: wide(functional.linear(inputs, rows, bias)))
        return self.rounded(y, x, self.weight)


class Linear(FullyConnected[Lorentz | Poincare]):
    r"""Fully connected layer, the simplest of each model.

    On the hyperboloid it is a linear map of all coordinates to new space coordinates; time is
    computed from these:

    .. math:: y_s = W x + b, \quad y_0 = \sqrt{1 / c + |y_s|^2}

    This is the cheapest layer, and it can represent any Lorentz boost or rotation. The distance of
    an output from the origin grows only with the logarithm of ``W`` and ``b``; in ``LorentzFC`` it
    grows linearly with the bias. The time coordinate is :math:`1 / \sqrt c` or more, so a gradient
    step along the time column of ``W`` moves outputs at least :math:`1 / c` times as far as the
    same step along ``b``. For a space that is nearly flat, c = 0.01 trains with usual step sizes,
    and c = 1e-6 does not. Outputs beyond the range of the hyperboloid (41 radii in float32) are
    finite, and the operations clamp them. Clamping them here would cost a pass over all
    coordinates.

    In the ball it is given by signed distances to learnt hyperplanes:

    .. math:: y = \frac{w}{1 + \sqrt{1 + c |w|^2}}, \quad
        w_k = \frac{1}{\sqrt c} \sinh(\sqrt c \, v_k), \quad v_k = 2 |z_k| \, d_k(x)

    with :math:`d_k` the signed distance to the hyperplane that lies :math:`a_k` from the origin in
    the direction of :math:`z_k` (:math:`a_k = 2 r_k` in the paper). Then :math:`v_k` is the signed
    distance from :math:`y` to the hyperplane through the origin with the axis :math:`k` as normal.
    In flat space (``c = 0``) the output is :math:`2 W x - |z| \, a`.

    The time column and all biases start as 0, the other weights normal with variance
    ``1 / out_features`` on the hyperboloid and ``1 / (4 out_features)`` in the ball. The origin is
    then mapped to the origin, and points keep their distance from it on average: exactly on the
    hyperboloid, near the origin in the ball. (The paper's variance,
    ``1 / (2 in_features out_features)``, shrinks points towards the origin in every layer.)

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)`` of inputs and outputs; ``c`` may be a
            ``Curvature``.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        activation: Pointwise function or module of the space coordinates, on the hyperboloid or of
            its images in the ball, before time is computed; ``None`` for none.
        bias: Whether to learn ``b`` on the hyperboloid, the offsets :math:`a_k`, in units of
            length, in the ball.
        std: Standard deviation of the initial weights, in the ball of twice the weights; by default
            the one above.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features)`` to points ``(*, out_features)``; on the hyperboloid
        ``(*, in_features + 1)`` to ``(*, out_features + 1)``, and ``weight`` has a time column.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        Chen et al. (2022), arXiv:2105.14686, and Yang et al. (2024), arXiv:2407.01290, for the
        hyperboloid; Shimizu et al. (2021), arXiv:2006.08210, for the ball.

    Example:
        >>> layer = Linear(Lorentz(c=1.0), 3, 2)
        >>> layer(layer.manifold.origin(5, 4)).shape
        torch.Size([5, 3])
        >>> Linear(Poincare(c=1.0), 3, 2)(torch.zeros(4, 3)).shape
        torch.Size([4, 2])
    """

    weighs_time = True

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        out_features: int,
        *,
        activation: Pointwise | None = None,
        bias: bool = True,
        std: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if std is not None:
            check.positive(std=std)
        self.std = std
        super().__init__(manifold, in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation = activation

    @override
    def begin(self) -> None:
        std = self.out_features**-0.5 if self.std is None else self.std
        if self.model is Lorentz:
            nn.init.zeros_(self.weight)
            nn.init.normal_(self.weight[:, 1:], std=std)
        else:
            nn.init.normal_(self.weight, std=0.5 * std)

    @override
    def mapped(self, products: Products) -> Float[Tensor, "*batch out"]:
        space = self.manifold
        if isinstance(space, Lorentz):
            return hyperboloid_point(space, self._activated(products(self.weight, self.bias)))
        length = lengths(wide(self.weight))
        sinh = products(unit_normals(space, self.weight, length, self.bias), None)
        s = sinh_ratio(2 * length * asinh_ratio(sinh, space.c), space.c)
        return ball_point(space, self._activated(s))

    def space_coordinates(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch n"]:
        """Space coordinates of the outputs on the hyperboloid, in float32 or float64.

        Args:
            x: Points of the hyperboloid, which are not checked.
        """
        return self._activated(wide(functional.linear(x, self.weight, self.bias)))

    def _activated(self, s: Tensor) -> Tensor:
        return s if self.activation is None else self.activation(s)

    @override
    def describe(self, **settings: object) -> str:
        return super().describe(**settings, **named(self.activation))


class LorentzFC(FullyConnected[Lorentz]):
    r"""Fully connected layer: space coordinates are the ``sinh`` of distances to hyperplanes.

    .. math:: y_k = \frac{|z_k|}{\sqrt c} \sinh(\sqrt c \, d_k(x)), \quad
        y_0 = \sqrt{1 / c + |y|^2}

    with :math:`d_k` the signed distance to the hyperplane that lies :math:`a_k` from the origin in
    the direction of :math:`z_k`. It is computed as the product with the coefficients
    :math:`(-|z_k| \sinh(\sqrt c \, a_k), \cosh(\sqrt c \, a_k) \, z_k)`. As these grow with
    :math:`e^{\sqrt c \, a_k}`, the distance of an output from the origin grows linearly with the
    :math:`a_k`.

    All :math:`a_k` start as 0 and ``weight`` normal with variance ``1 / out_features``. The origin
    is then mapped to the origin, and points keep their distance from it as in ``Linear``.

    An ``activation`` acts on the space coordinates before the time coordinate is computed, so that
    it costs one pass instead of a layer. :meth:`folded` gives a layer for inference that does not
    compute the coefficients again in every call.

    Args:
        manifold: ``Lorentz(c)`` of inputs and outputs; ``c`` may be a ``Curvature``.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        activation: Pointwise function or module of the space coordinates; ``None`` for none.
        bias: Whether to learn the offsets :math:`a_k`, in units of length.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features + 1)`` to points ``(*, out_features + 1)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        van der Klis et al. (2026), arXiv:2601.21529, also for the activation and the cache;
        :math:`|z_k|` scales the ``sinh`` here.

    Example:
        >>> layer = LorentzFC(Lorentz(c=1.0), 3, 2)
        >>> layer(layer.manifold.origin(4)).detach()
        tensor([1., 0., 0.])
    """

    models = (Lorentz,)

    def __init__(
        self,
        manifold: Lorentz,
        in_features: int,
        out_features: int,
        *,
        activation: Pointwise | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation = activation

    @override
    def begin(self) -> None:
        nn.init.normal_(self.weight, std=self.out_features**-0.5)

    def rows(self) -> Float[Tensor, "out ambient"]:
        """Coefficients of time and space coordinates, one row per output."""
        weight = wide(self.weight)
        return rounded(
            normals(self.manifold, weight, lengths(weight), self.bias), self.weight.dtype
        )

    @override
    def mapped(self, products: Products) -> Float[Tensor, "*batch out"]:
        s = products(self.rows(), None)
        s = s if self.activation is None else self.activation(s)
        space = self.manifold
        return hyperboloid_point(space, clamp_norm(space, s))

    def folded(self) -> nn.Sequential:
        """Layers for inference with the same outputs, whose coefficients are computed once.

        A ``Linear`` has the products with the current hyperplanes as weights, at the current
        curvature; a ``SpaceActivation`` follows if the layer has an activation. Later changes to
        this layer do not reach them.

        Example:
            >>> layer = LorentzFC(Lorentz(c=1.0), 3, 2, activation=torch.relu)
            >>> x = layer.manifold.expmap0(layer.manifold.lift(torch.randn(5, 3)))
            >>> torch.allclose(layer.folded()(x), layer(x), atol=1e-5)
            True
        """
        space = Lorentz(self.c.item() if isinstance(self.c, Tensor) else self.c)
        options = {"device": self.weight.device, "dtype": self.weight.dtype}
        linear = Linear(space, self.in_features, self.out_features, bias=False, **options)
        with torch.no_grad():
            linear.weight.copy_(self.rows())
        parts: list[nn.Module] = [linear.requires_grad_(False)]
        if self.activation is not None:
            parts.append(SpaceActivation(space, self.activation))
        return nn.Sequential(*parts)

    @override
    def describe(self, **settings: object) -> str:
        return super().describe(**settings, **named(self.activation))
