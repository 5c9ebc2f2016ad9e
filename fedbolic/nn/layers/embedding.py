"""Embedding tables of points."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent
from fedbolic.nn.functional.space import HyperbolicModule

START = 1e-3
"""Bound of the initial coordinates of the tangents, in units of length."""


class HyperbolicEmbedding(HyperbolicModule[Lorentz | Poincare]):
    r"""Table of points, one per index, learnt as tangents at the origin.

    .. math:: y_i = \exp_0(w_i), \quad d(0, y_i) = |w_i|

    The tangents are Euclidean parameters, so any PyTorch optimiser works. Their coordinates start
    uniform within 0.001, so all points start close to the origin, or normal.

    With ``sparse`` the gradient holds only the rows of the batch. ``torch.optim.SparseAdam`` or
    ``fedbolic.optim.modules.RiemannianAdam`` then moves only these rows, at a cost that does not
    depend on ``num_embeddings``.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``. Both take the
            same tangents to the same points.
        num_embeddings: Number of points, at least 1.
        embedding_dim: Dimensions of the space, without time.
        std: Standard deviation of normal coordinates at the start, in units of length; ``None`` for
            uniform ones.
        sparse: Whether the gradient of the table is a sparse tensor.
        device: Device of the parameters.
        dtype: Data type of the parameters and the points.

    Shapes:
        Indices ``(*)`` to points ``(*, embedding_dim)``, on the hyperboloid ``(*, embedding_dim +
        1)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the indices are
            not integers.

    References:
        Nickel and Kiela (2017), arXiv:1705.08039, for the initialisation.

    Example:
        >>> HyperbolicEmbedding(Lorentz(c=1.0), 10, 3)(torch.tensor([[0, 9]])).shape
        torch.Size([1, 2, 4])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        num_embeddings: int,
        embedding_dim: int,
        *,
        std: float | None = None,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        shape = num_embeddings, embedding_dim
        self.sparse, self.std = sparse, std
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Re-initialise the parameters."""
        if self.std is None:
            nn.init.uniform_(self.weight, -START, START)
        else:
            nn.init.normal_(self.weight, std=self.std)

    @override
    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch ambient"]:
        if index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"index must be of integers, got {index.dtype}: use index.long()")
        tangents = functional.embedding(index, self.weight, sparse=self.sparse)
        return from_tangent(self.manifold, tangents)

    @override
    def extra_repr(self) -> str:
        num_embeddings, embedding_dim = self.weight.shape
        sizes = {"num_embeddings": num_embeddings, "embedding_dim": embedding_dim}
        return self.describe(**sizes, **({"sparse": True} if self.sparse else {}))
