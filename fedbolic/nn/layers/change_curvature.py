"""Layer between two curvatures of the same model."""

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare, change_curvature
from fedbolic.nn.functional.space import HyperbolicModule, checked, value_of


class ChangeCurvature(HyperbolicModule[Lorentz | Poincare]):
    r"""Map from one curvature to another within a model, which keeps every length in radii.

    .. math:: y = x \sqrt{c / c'}, \quad \sqrt{c'} \, d'(y_1, y_2) = \sqrt c \, d(x_1, x_2)

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        old: Minus the sectional curvature of the inputs, above 0: a number or a ``Curvature``.
        new: Minus the sectional curvature of the outputs, likewise.

    Raises:
        ValueError: If a curvature is 0 or invalid for ``kind``.

    Example:
        >>> import torch
        >>> ChangeCurvature(Poincare, old=1.0, new=0.25)(torch.tensor([0.5]))
        tensor([1.])
    """

    def __init__(
        self,
        kind: type[Lorentz] | type[Poincare],
        *,
        old: Curvature | float,
        new: Curvature | float,
    ) -> None:
        super().__init__(kind, new)
        self.old = checked(kind, old)
        for name, c in (("old", old), ("new", new)):
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
        return change_curvature(x, self.kind(self.input_c), self.manifold)

    @override
    def extra_repr(self) -> str:
        return self.describe(**{} if isinstance(self.old, Curvature) else {"old": self.old})
