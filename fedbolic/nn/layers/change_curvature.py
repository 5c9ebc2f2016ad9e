"""Layer between two curvatures of the same model."""

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare, change_curvature
from fedbolic.manifolds.curvature import value_of
from fedbolic.nn.functional.space import HyperbolicModule, checked


class ChangeCurvature(HyperbolicModule[Lorentz | Poincare]):
    r"""Map from one curvature to another within a model, which keeps every length in radii.

    .. math:: y = x \sqrt{c / c'}, \quad \sqrt{c'} \, d'(y_1, y_2) = \sqrt c \, d(x_1, x_2)

    Args:
        old: ``Lorentz(c)`` or ``Poincare(c)`` of the inputs, with ``c`` above 0, which may be a
            ``Curvature``.
        new: The same model with the curvature of the outputs, likewise.

    Shapes:
        Points ``(*, coordinates)`` to points of the same shape.

    Raises:
        ValueError: If a space is refused or flat, or the models differ.

    Example:
        >>> import torch
        >>> ChangeCurvature(Poincare(c=1.0), Poincare(c=0.25))(torch.tensor([0.5]))
        tensor([1.])
    """

    def __init__(self, old: Lorentz | Poincare, new: Lorentz | Poincare) -> None:
        super().__init__(new)
        self.old = checked(old, (self.model,))
        for name, c in (("old", self.old), ("new", self.curvature)):
            if c == 0:
                raise ValueError(f"{name} must be above 0, got 0: flat space has no unit of length")

    @property
    @override
    def curvatures(self) -> dict[str, Curvature | float]:
        return {"old": self.old, **super().curvatures}

    @property
    @override
    def input_c(self) -> Tensor | float:
        return value_of(self.old)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        return change_curvature(x, self.model(self.input_c), self.manifold)

    @override
    def extra_repr(self) -> str:
        return self.describe(**{} if isinstance(self.old, Curvature) else {"old": self.old})
