"""Fully connected layer by Busemann functions, the distances to points at infinity."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.formulas.numerics import bounded, root, square
from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import on_hyperboloid, with_space_part
from fedbolic.nn.functional.hyperplane import lengths
from fedbolic.nn.functional.space import OutputRows, rounded, wide
from fedbolic.nn.functional.tangent import exp_factors, from_origin, length_of, with_time
from fedbolic.nn.layers.activation import Pointwise, named


class BusemannLinear(OutputRows[Lorentz | Poincare]):
    r"""Fully connected layer whose outputs lie at given distances from hyperplanes.

    .. math:: y_{s, k} = \frac{1}{\sqrt c} \sinh(\sqrt c \, v_k), \quad
        v_k = f \bigl( b_k - |z_k| \, B_k(x) \bigr)

    with the space coordinates :math:`y_s` of the output and the Busemann function :math:`B_k` of
    the ideal point in the direction of :math:`z_k`, as in ``BusemannHead``. All points with the
    same :math:`B_k` form a horosphere, where the fully connected layers of hyperplanes have points
    at the same distance from a hyperplane. :math:`v_k` is the signed distance from the output to
    the hyperplane through the origin whose normal is the axis :math:`k`. In the ball, the output is
    the corresponding point :math:`y_s / (1 + \sqrt{1 + c |y_s|^2})`. With ``gyro_bias``, the output
    is translated as the origin is moved to :math:`\exp_0 t`.

    The bias starts at 0 and ``weight`` normal with variance ``1 / out_features``. The origin is
    then mapped to the origin, and points near it keep their distance from it on average.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``. Both take the
            same parameters to the same points.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        activation: Pointwise function or module :math:`f` of the distances; ``None`` for none.
        bias: Whether to learn the bias ``b``, in units of length.
        gyro_bias: Whether to learn the tangent :math:`t` at the origin; it starts at 0.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features)`` to points ``(*, out_features)``; on the hyperboloid ``(*,
        in_features + 1)`` to ``(*, out_features + 1)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        Chen et al. (2026), arXiv:2602.18858; the norm of a row of ``weight`` is the scale here,
        which has a separate parameter in the paper.

    Example:
        >>> layer = BusemannLinear(Lorentz(c=1.0), 3, 2, activation=torch.relu)
        >>> layer(Lorentz().origin(4)).detach()
        tensor([1., 0., 0.])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        out_features: int,
        *,
        activation: Pointwise | None = None,
        bias: bool = True,
        gyro_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation = activation
        self.gyro_bias = nn.Parameter(self.weight.new_zeros(out_features)) if gyro_bias else None

    @override
    def reset_parameters(self) -> None:
        super().reset_parameters()
        gyro_bias = getattr(self, "gyro_bias", None)  # not there yet at the first call
        if gyro_bias is not None:
            nn.init.zeros_(gyro_bias)

    @override
    def begin(self) -> None:
        nn.init.normal_(self.weight, std=self.out_features**-0.5)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        self.check(x, self.in_features, self.weight)
        space = self.manifold
        distances = scaled_busemann(space, x, self.weight)
        distances = distances if self.bias is None else distances + wide(self.bias)
        distances = distances if self.activation is None else self.activation(distances)
        s = sinh_ratio(distances, space.c)
        if self.gyro_bias is not None:
            v = bounded(wide(self.gyro_bias))
            factor, time = exp_factors(space.c, length_of(v))
            s = from_origin(space.c, with_time(space, s), (factor * v, time))
        return self.rounded(with_space_part(space, s), x, self.weight)

    @override
    def describe(self, **settings: object) -> str:
        settings["gyro_bias"] = self.gyro_bias is not None
        return super().describe(**settings, **named(self.activation))


def scaled_busemann(
    space: Lorentz | Poincare,
    x: Float[Tensor, "*batch ambient"],
    weight: Float[Tensor, "m n"],
) -> Float[Tensor, "*batch m"]:
    """Minus the Busemann functions of ideal points, times the norms of the rows that give them.

    Args:
        space: Space of the points.
        x: Points.
        weight: Directions of the ideal points, in the dtype of the points.

    Returns:
        Numbers in float32 or float64.
    """
    length = lengths(wide(weight))
    ideal = wide(weight) / length.unsqueeze(-1)
    if isinstance(space, Lorentz):
        time, s = wide(x[..., :1]) * space.c**0.5, x[..., 1:]
    else:
        time, s = on_hyperboloid(space, x)
    toward = wide(functional.linear(s.to(x.dtype), rounded(ideal, weight.dtype)))
    return -length * _busemann(time, wide(s), toward, space.c)


def _busemann(
    time: Float[Tensor, "*batch 1"],
    s: Float[Tensor, "*batch n"],
    toward: Float[Tensor, "*batch m"],
    c: Tensor | float,
) -> Float[Tensor, "*batch m"]:
    """Busemann functions of hyperboloid points; never below minus the distance from the origin.

    Args:
        time: Time coordinates of the points, in radii.
        s: Space coordinates of the points.
        toward: Inner products of ``s`` with the directions of the ideal points.
        c: Minus the sectional curvature.
    """
    q, scale = square(s), c**0.5
    size, later = root(q), scale * q / (1 + time)  # later = (time - 1) / sqrt(c)
    nearest = 1 / (time + scale * size)  # lower bound of t = exp(sqrt(c) B)
    tiny = torch.finfo(s.dtype).tiny  # at the origin both are 0; the gradient is of the first
    u = torch.maximum(later - toward, -(later + size) * nearest - tiny)  # (t - 1) / sqrt(c)
    t = torch.maximum(time - scale * toward, nearest)
    return asinh_ratio(u * (1 + t) / (2 * t), c)  # log t = asinh((t - 1 / t) / 2)
