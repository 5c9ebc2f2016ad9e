r"""Convolutions of images whose pixels are points.

An image has the shape (height, width, coordinates): its pixels lie along the last axis like the
points of every other layer. A window of ``K`` pixels in ``n`` dimensions is concatenated to one
point in ``K n`` dimensions, to which a linear layer is applied. A linear layer multiplies its input
by coefficients, the space coordinates of a concatenation are those of the pixels, up to a factor
per window, and its time coordinate follows from the sum of their squares. So the windows are never
built: torch's convolution computes the products.
"""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.formulas.numerics import root, square
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.convolution import prefers_im2col, stacked_convolution, strided_pixels
from fedbolic.nn.functional.space import HyperbolicModule, rounded, wide
from fedbolic.nn.functional.tangent import exp_factors, points_to_tangents
from fedbolic.nn.layers.linear import Linear, LorentzFC

Concatenation: TypeAlias = Literal["direct", "log_radius", "beta"]
"""Concatenation of points in ``Conv2d``: the first two on the hyperboloid, the last in the ball."""


class Window(NamedTuple):
    """Geometry of a convolution, equal for height and width.

    Args:
        size: Pixels along a side, at least 1.
        stride: Step between two windows, at least 1.
        padding: Rows and columns of origins on each side, at least 0.
        dilation: Step between two pixels of a window, at least 1.
    """

    size: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def checked(self) -> "Window":
        """The window itself.

        Raises:
            ValueError: If a number is out of range.
        """
        check.at_least(1, kernel_size=self.size, stride=self.stride, dilation=self.dilation)
        check.at_least(0, padding=self.padding)
        return self

    @property
    def span(self) -> int:
        """Pixels from the first to the last one along a side."""
        return self.dilation * (self.size - 1) + 1

    def check_image(self, x: Tensor) -> None:
        """Check that a batch of images has an axis of height and of width, and room for a window.

        Raises:
            ValueError: If ``x`` is no image, or smaller than a window.
        """
        if x.ndim < 3:
            raise ValueError(
                f"x must be images (..., height, width, coordinates), got shape {tuple(x.shape)}"
            )
        height, width = x.shape[-3:-1]
        if min(height, width) + 2 * self.padding < self.span:
            raise ValueError(
                f"x must be images of {self.span} or more pixels in height and width with the "
                f"padding of {self.padding}, got {height} x {width}: use a smaller kernel or more "
                "padding"
            )

    def sums(self, x: Float[Tensor, "n height width"]) -> Float[Tensor, "n _ _"]:
        """Sums over the windows, which count 0 for padding.

        A convolution would round to 10 bits on a GPU with TF32, and to 8 under autocast.
        """
        x = functional.pad(x, (self.padding,) * 4)
        for _ in range(2):  # columns, then rows
            steps = (x.shape[-1] - self.span) // self.stride
            starts = range(0, self.span, self.dilation)
            shifted = [x[..., i : i + steps * self.stride + 1 : self.stride] for i in starts]
            x = torch.stack(shifted).sum(0).mT
        return x.clamp(max=torch.finfo(x.dtype).max)

    def convolve(
        self,
        x: Float[Tensor, "n height width inputs"],
        rows: Float[Tensor, "outputs columns"],
    ) -> Float[Tensor, "n _ _ outputs"]:
        """Products of windows with rows of coefficients, of a column for each pixel and channel."""
        kernels = rows.unflatten(1, (self.size, self.size, -1)).permute(0, 3, 1, 2)
        images, stride, padding = x.permute(0, 3, 1, 2), self.stride, self.padding
        if self.size == 1 and stride > 1:
            images, stride, padding = strided_pixels(images, stride=stride, padding=padding), 1, 0
        if self.dilation == 1 and prefers_im2col(rows):
            y = stacked_convolution(images, kernels, None, stride=stride, padding=padding)
        else:
            y = functional.conv2d(images, kernels, None, stride, padding, self.dilation)
        return y.permute(0, 2, 3, 1)


class Conv2d(HyperbolicModule[Lorentz | Poincare]):
    r"""Convolution of images whose pixels are points: a linear layer of concatenated windows.

    On the hyperboloid, with the pixels :math:`x_1, \dots, x_K` of a window,

    .. math:: y = f(z), \quad z_s = \lambda \, (x_{1, s}, \dots, x_{K, s}), \quad
        z_0 = \sqrt{1 / c + |z_s|^2}

    The direct concatenation has :math:`\lambda = 1`, so :math:`z_0^2 = \sum_i x_{i, 0}^2 - (K - 1)
    / c`. Its space coordinates are :math:`\sqrt K` times as long as those of a pixel.
    ``log_radius`` takes this out, :math:`\lambda = e^{(\psi(n / 2) - \psi(K n / 2)) / 2}` with the
    digamma function :math:`\psi`: if space coordinates are normal with equal variances, the
    expected logarithm of :math:`|z_s|` is then that of a pixel. In the ball,

    .. math:: z = \exp_0 \Bigl( \frac{\beta_{K n}}{\beta_n} (\log_0 x_1, \dots, \log_0 x_K) \Bigr),
        \quad \beta_m = B(m / 2, 1 / 2)

    with the beta function :math:`B`. The factor keeps the expected length of a tangent that has a
    uniform direction, for any number of dimensions.

    Padding consists of origins, so that a window is a point wherever it lies.
    ``images.movedim(-3, -1)`` converts torch's layout. On a GPU, torch's setting for TF32 applies
    to the products as in ``nn.Conv2d``, not to time coordinates.

    For the direct concatenation, ``weight`` starts ``1 / kernel_size`` times as large as in the
    linear layer. With either, :math:`|y_s|^2` is on average about that of a pixel.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)`` of inputs and outputs; ``c`` may be a
            ``Curvature``.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        kernel_size: Height and width of a window, at least 1.
        stride: Step between two windows, at least 1.
        padding: Rows and columns of origins on each side, at least 0.
        dilation: Step between two pixels of a window, at least 1.
        layer: Class of the linear layer :math:`f`: ``Linear`` or ``LorentzFC``.
        concatenation: ``direct`` or ``log_radius`` on the hyperboloid, ``beta`` in the ball;
            ``None`` for the first of them.
        bias: Whether the linear layer learns a bias.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Images of points ``(*, height, width, in_features)`` to images
        ``(*, new height, new width, out_features)``, sizes as in ``nn.Conv2d``; on the hyperboloid
        with one more coordinate, time first.

    Raises:
        ValueError: If a number is out of range, ``concatenation`` is not one of the space, or the
            space is refused; when called, if the inputs have the wrong width or dtype, or are no
            images with room for a window.

    References:
        Bdeir et al. (2024), arXiv:2303.15919, for the direct concatenation; Shi et al. (2026),
        arXiv:2602.23981, for the log-radius, whose factor is derived here from the condition above;
        van Spengler et al. (2023), arXiv:2303.14027, and Shimizu et al. (2021), arXiv:2006.08210,
        for the ball.

    Example:
        >>> layer = Conv2d(Lorentz(c=1.0), 3, 8, 3, padding=1)
        >>> x = layer.manifold.expmap0(layer.manifold.lift(torch.randn(2, 6, 6, 3)))
        >>> layer(x).shape
        torch.Size([2, 6, 6, 9])
        >>> Conv2d(Poincare(c=1.0), 3, 8, 3, stride=2)(torch.zeros(2, 7, 7, 3)).shape
        torch.Size([2, 3, 3, 8])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        out_features: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        layer: type[Linear] | type[LorentzFC] = Linear,
        concatenation: Concatenation | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        self.window = Window(kernel_size, stride, padding, dilation).checked()
        check.at_least(1, in_features=in_features)
        ways = ("direct", "log_radius") if self.model is Lorentz else ("beta",)
        self.concatenation = ways[0] if concatenation is None else concatenation
        check.one_of(ways, concatenation=self.concatenation)
        self.in_features = in_features
        make: Any = layer  # LorentzFC itself refuses the ball
        self.linear: Linear | LorentzFC = make(
            manifold, kernel_size**2 * in_features, out_features,
            bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        self.scale = SCALES[self.concatenation](in_features, kernel_size**2)
        self._shorten()

    def reset_parameters(self) -> None:
        """Re-initialise the parameters."""
        self.linear.reset_parameters()
        self._shorten()

    def _shorten(self) -> None:
        """Make up for the length of a direct concatenation."""
        if self.concatenation == "direct":
            with torch.no_grad():
                self.linear.weight.div_(self.window.size)

    def _concatenated(
        self, x: Float[Tensor, "n height width ambient"]
    ) -> tuple[Tensor, Tensor | float, Tensor]:
        """Vectors of the pixels; the factor to the space coordinates of each window; its time."""
        space = self.manifold
        if isinstance(space, Lorentz):
            s = x[..., 1:]
            q = self.window.sums(square(self.scale * wide(s)).squeeze(-1))
            return s, self.scale, (q + 1 / space.c).sqrt().unsqueeze(-1)
        v = self.scale * points_to_tangents(space, x)
        length = root(self.window.sums(square(v).squeeze(-1))).unsqueeze(-1)
        info = torch.finfo(length.dtype)
        return v, *exp_factors(self.c, length.clamp(info.tiny**0.5, info.max**0.5))

    @override
    def forward(
        self, x: Float[Tensor, "*batch height width ambient"]
    ) -> Float[Tensor, "*batch _ _ out"]:
        """Images of new points.

        Args:
            x: Images of points, with any number of axes before height and width.

        Raises:
            ValueError: If ``x`` has the wrong number of coordinates or dtype, or is no image with
                room for a window.
        """
        weight = self.linear.weight
        self.check(x, self.in_features, weight)
        self.window.check_image(x)
        lead = x.shape[:-3]
        vectors, factor, time = self._concatenated(x.reshape(math.prod(lead), *x.shape[-3:]))

        def products(rows: Tensor, bias: Tensor | None) -> Tensor:
            inner = factor * wide(self.window.convolve(rounded(vectors, x.dtype), rows[:, 1:]))
            inner = torch.addcmul(inner, time, wide(rows[:, 0]))
            return inner if bias is None else inner + wide(bias)

        y = self.rounded(self.linear.mapped(products), x, weight)
        return y.reshape(*lead, *y.shape[1:])

    @override
    def extra_repr(self) -> str:
        size, stride, padding, dilation = self.window
        return self.describe(
            in_features=self.in_features,
            out_features=self.linear.out_features,
            kernel_size=size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            concatenation=self.concatenation,
        )


def log_radius_scale(num_features: int, num_points: int) -> float:
    """Factor of concatenated points that keeps the expected logarithm of their length.

    Args:
        num_features: Dimensions of each point, at least 1.
        num_points: Number of concatenated points, at least 1.

    Example:
        >>> log_radius_scale(2, 1)
        1.0
    """
    halves = torch.tensor([1, num_points], dtype=torch.float64, device="cpu") * num_features / 2
    one, all_of_them = halves.digamma().tolist()
    return math.exp((one - all_of_them) / 2)


def beta_scale(num_features: int, num_points: int) -> float:
    """Factor of the beta-concatenation, ``B(K n / 2, 1 / 2) / B(n / 2, 1 / 2)``.

    Args:
        num_features: Dimensions ``n`` of each point, at least 1.
        num_points: Number ``K`` of concatenated points, at least 1.

    Example:
        >>> beta_scale(2, 1)
        1.0
    """
    sizes = num_features, num_points * num_features
    one, all_of_them = (math.lgamma(n / 2) - math.lgamma((n + 1) / 2) for n in sizes)
    return math.exp(all_of_them - one)


SCALES = {"direct": lambda *_: 1.0, "log_radius": log_radius_scale, "beta": beta_scale}
"""Factor of each concatenation, from the dimensions of a pixel and the pixels of a window."""
