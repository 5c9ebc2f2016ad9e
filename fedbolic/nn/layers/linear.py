"""Fully connected layers between hyperbolic spaces."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.functional.coordinates import ball_point, clamp_norm, hyperboloid_point
from fedbolic.nn.functional.hyperplane import Hyperplanes
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.layers.activation import Pointwise, SpaceActivation, named


class LorentzLinear(HyperbolicModule[Lorentz]):
    r"""Linear map of all coordinates to new space coordinates; time is computed from these.

    .. math:: y_s = W x + b, \quad y_0 = \sqrt{1 / c + |y_s|^2}

    This is the cheapest layer on the hyperboloid, and it can represent any Lorentz boost or
    rotation. The distance of an output from the origin grows only with the logarithm of ``W`` and
    ``b``; in ``LorentzFC`` it grows linearly with the bias.

    The time coordinate is :math:`1 / \sqrt c` or more, so a gradient step along the time column of
    ``W`` moves outputs at least :math:`1 / c` times as far as the same step along ``b``. For a
    space that is nearly flat, c = 0.01 trains with usual step sizes, and c = 1e-6 does not.

    Outputs beyond the range of the hyperboloid (41 radii in float32) are finite, and the operations
    clamp them. Clamping them here would cost a pass over all coordinates.

    The time column of ``W`` and ``b`` start as 0, the other weights normal with variance
    ``1 / out_features``. The origin is then mapped to the origin, and :math:`|y_s|^2` is
    :math:`|x_s|^2` on average, so points keep their distance from the origin.

    Args:
        in_features: Dimensions of the input space; an input has one more coordinate, time.
        out_features: Dimensions of the output space.
        curvature: Minus the sectional curvature of both spaces: a number or a ``Curvature``.
        bias: Whether to learn the bias ``b``.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or ``curvature`` is invalid; when called, if the inputs
            have the wrong width or dtype.

    References:
        Chen et al. (2022), arXiv:2105.14686; Yang et al. (2024), arXiv:2407.01290.

    Example:
        >>> layer = LorentzLinear(3, 2)
        >>> x = layer.manifold.origin(5, 4)
        >>> layer(x).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        curvature: Curvature | float = 1.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(Lorentz, curvature)
        check.at_least(1, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        options = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(out_features, in_features + 1, **options))
        self.bias = nn.Parameter(torch.empty(out_features, **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Re-initialise the parameters."""
        with torch.no_grad():
            nn.init.zeros_(self.weight)
            nn.init.normal_(self.weight[:, 1:], std=self.out_features**-0.5)
            if self.bias is not None:
                nn.init.zeros_(self.bias)

    def rows(self) -> Float[Tensor, "out ambient"]:
        """Coefficients of time and space coordinates, one row per output."""
        return self.weight

    def points(self, products: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch out"]:
        """Outputs of the layer from the products of its inputs with ``rows``, plus the bias."""
        return hyperboloid_point(self.manifold, products)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        self.check(x, self.in_features, self.weight)
        s = wide(functional.linear(x, self.weight, self.bias))
        return self.rounded(self.points(s), x, self.weight)

    @override
    def extra_repr(self) -> str:
        return self.describe(
            in_features=self.in_features,
            out_features=self.weight.shape[0],
            bias=self.bias is not None,
        )


class LorentzFC(Hyperplanes[Lorentz]):
    r"""Fully connected layer: space coordinates are the ``sinh`` of distances to hyperplanes.

    .. math:: y_k = \frac{|z_k|}{\sqrt c} \sinh(\sqrt c \, d_k(x)), \quad
        y_0 = \sqrt{1 / c + |y|^2}

    with :math:`d_k` the signed distance to the hyperplane that lies :math:`a_k` from the origin in
    the direction of :math:`z_k`. It is computed as the product with the coefficients
    :math:`(-|z_k| \sinh(\sqrt c \, a_k), \cosh(\sqrt c \, a_k) \, z_k)`. As these grow with
    :math:`e^{\sqrt c \, a_k}`, the distance of an output from the origin grows linearly with the
    :math:`a_k`.

    All :math:`a_k` start as 0 and ``weight`` normal with variance ``1 / out_features``. The origin
    is then mapped to the origin, and points keep their distance from it as in ``LorentzLinear``.

    An ``activation`` acts on the space coordinates before the time coordinate is computed, so that
    it costs one pass instead of a layer. :meth:`folded` gives a layer for inference that does not
    compute the coefficients again in every call.

    Args:
        in_features: Dimensions of the input space; an input has one more coordinate, time.
        out_features: Dimensions of the output space.
        curvature: Minus the sectional curvature of both spaces: a number or a ``Curvature``.
        activation: Pointwise function or module of the space coordinates; ``None`` for none.
        bias: Whether to learn the offsets :math:`a_k`, in units of length.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or ``curvature`` is invalid; when called, if the inputs
            have the wrong width or dtype.

    References:
        van der Klis et al. (2026), arXiv:2601.21529, also for the activation and the cache;
        :math:`|z_k|` scales the ``sinh`` here.

    Example:
        >>> layer = LorentzFC(3, 2)
        >>> layer(layer.manifold.origin(4)).detach()
        tensor([1., 0., 0.])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        curvature: Curvature | float = 1.0,
        activation: Pointwise | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check.at_least(1, in_features=in_features, out_features=out_features)
        super().__init__(
            Lorentz, in_features, out_features,
            curvature=curvature, bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        self.activation = activation

    @override
    def begin(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[0] ** -0.5)

    def rows(self) -> Float[Tensor, "out ambient"]:
        """Coefficients of time and space coordinates, one row per output."""
        return self.coefficients(self.manifold, wide(self.weight), self.length)

    def points(self, products: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch out"]:
        """Outputs of the layer from the products of its inputs with ``rows``."""
        space = self.manifold
        s = products if self.activation is None else self.activation(products)
        return hyperboloid_point(space, clamp_norm(space, s))

    def folded(self) -> nn.Sequential:
        """Layers for inference with the same outputs, whose coefficients are computed once.

        A ``LorentzLinear`` has the products with the current hyperplanes as weights, at the current
        curvature; a ``SpaceActivation`` follows if the layer has an activation. Later changes to
        this layer do not reach them.

        Example:
            >>> layer = LorentzFC(3, 2, activation=torch.relu)
            >>> x = layer.manifold.expmap0(layer.manifold.lift(torch.randn(5, 3)))
            >>> torch.allclose(layer.folded()(x), layer(x), atol=1e-5)
            True
        """
        out_features = len(self.weight)
        c = self.c.item() if isinstance(self.c, Tensor) else self.c
        options = {"device": self.weight.device, "dtype": self.weight.dtype}
        linear = LorentzLinear(self.in_features, out_features, curvature=c, bias=False, **options)
        with torch.no_grad():
            linear.weight.copy_(self.rows())
        parts: list[nn.Module] = [linear.requires_grad_(False)]
        if self.activation is not None:
            parts.append(SpaceActivation(Lorentz, self.activation, curvature=c))
        return nn.Sequential(*parts)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        products = self.products(self.manifold, x, wide(self.weight), self.length)
        return self.rounded(self.points(products), x, self.weight)

    @override
    def describe(self, **settings: object) -> str:
        return super().describe(**settings, **named(self.activation) if self.activation else {})


class PoincareLinear(Hyperplanes[Poincare]):
    r"""Fully connected layer of the ball, by signed distances to learnt hyperplanes.

    .. math:: y = \frac{w}{1 + \sqrt{1 + c |w|^2}}, \quad
        w_k = \frac{1}{\sqrt c} \sinh(\sqrt c \, v_k), \quad v_k = 2 |z_k| \, d_k(x)

    with :math:`d_k` the signed distance to the hyperplane that lies :math:`a_k` from the origin in
    the direction of :math:`z_k` (:math:`a_k = 2 r_k` in the paper). Then :math:`v_k` is the signed
    distance from :math:`y` to the hyperplane through the origin with the axis :math:`k` as normal.
    In flat space (``c = 0``) the output is :math:`2 W x - |z| \, a`.

    All :math:`a_k` start as 0 and ``weight`` normal with variance ``1 / (4 out_features)``. The
    origin is then mapped to the origin, and near it :math:`|y|^2` is :math:`|x|^2` on average. (The
    paper's variance, ``1 / (2 in_features out_features)``, shrinks points towards the origin in
    every layer.)

    Args:
        in_features: Dimensions of the input space.
        out_features: Dimensions of the output space.
        curvature: Minus the sectional curvature of both spaces, a number (0 for flat space) or a
            ``Curvature``.
        bias: Whether to learn the offsets :math:`a_k`, in units of length.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or ``curvature`` is invalid; when called, if the inputs
            have the wrong width or dtype.

    References:
        Shimizu et al. (2021), arXiv:2006.08210.

    Example:
        >>> layer = PoincareLinear(3, 2)
        >>> layer(torch.zeros(4, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        curvature: Curvature | float = 1.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check.at_least(1, in_features=in_features, out_features=out_features)
        super().__init__(
            Poincare, in_features, out_features,
            curvature=curvature, bias=bias, device=device, dtype=dtype,
        )  # fmt: skip

    @override
    def begin(self) -> None:
        nn.init.normal_(self.weight, std=0.5 * self.weight.shape[0] ** -0.5)

    def rows(self) -> Float[Tensor, "out ambient"]:
        """Coefficients of time in radii and of space coordinates, one row per output."""
        length = self.length
        unit = wide(self.weight) / length.unsqueeze(-1)
        return self.coefficients(self.manifold, unit, torch.ones_like(length))

    def points(self, products: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch out"]:
        """Outputs of the layer from the products of its inputs with ``rows``."""
        return self._points(products, self.length)

    def _points(self, products: Tensor, length: Tensor) -> Tensor:
        space = self.manifold
        distances = 2 * length * asinh_ratio(products, space.c)
        return ball_point(space, sinh_ratio(distances, space.c))

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        length = self.length
        y = self._points(self.sinh(self.manifold, x, length), length)
        return self.rounded(y, x, self.weight)
