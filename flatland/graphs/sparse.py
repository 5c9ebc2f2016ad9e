"""Constant sparse matrices, and products with them."""

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Int32, Int64
from torch import Tensor
from torch.nn import functional
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class Sparse:
    """Constant sparse matrix in compressed row format (CSR).

    The entries of row i have the positions from ``start[i]`` up to, but excluding,
    ``start[i + 1]``.

    Args:
        start: Position of the first entry of each row, then the number of entries.
        column: Column of each entry.
        value: Value of each entry; receives no gradient.
        width: Number of columns.

    Example:
        >>> eye = Sparse.of(torch.ones(2, dtype=torch.int64), torch.arange(2), torch.ones(2), 2)
        >>> eye.times(torch.tensor([[1.0], [2.0]])).tolist()
        [[1.0], [2.0]]
    """

    start: Int32[Tensor, " rows_and_one"]
    column: Int32[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    width: int

    @classmethod
    def of(
        cls,
        counts: Int64[Tensor, " n"],
        column: Int[Tensor, " entries"],
        value: Float[Tensor, " entries"],
        width: int,
    ) -> "Sparse":
        """Build a matrix from the number of entries in each row."""
        start = functional.pad(counts.cumsum(0), (1, 0))
        return cls(start.int(), column.int(), value, width)

    @functools.cached_property
    def counts(self) -> Int64[Tensor, " n"]:
        """Number of entries in each row."""
        return self.start.long().diff()

    @functools.cached_property
    def row(self) -> Int64[Tensor, " entries"]:
        """Row of each entry."""
        rows = torch.arange(len(self.start) - 1, device=self.start.device)
        return rows.repeat_interleave(self.counts, output_size=len(self.column))

    @functools.cached_property
    def transposed(self) -> "Sparse":
        """The transposed matrix."""
        order = self.column.argsort(stable=True)
        counts = torch.bincount(self.column, minlength=self.width)
        return Sparse.of(counts, self.row[order], self.value[order], len(self.start) - 1)

    @functools.cached_property
    def csr(self) -> Tensor:
        """The matrix as a sparse CSR tensor of PyTorch."""
        with warnings.catch_warnings():  # PyTorch warns that the layout is in beta
            warnings.simplefilter("ignore", UserWarning)
            shape = len(self.start) - 1, self.width
            return torch.sparse_csr_tensor(self.start, self.column, self.value, shape)

    def times(self, x: Float[Tensor, "width k"]) -> Float[Tensor, "n k"]:
        """Product with a dense matrix, without a dense copy of the sparse one.

        Half types, which automatic casts give, are summed in the type of the sparse matrix.
        """
        return _Product.apply(x.to(torch.promote_types(x.dtype, self.value.dtype)), self)


class _Product(torch.autograd.Function):
    """Sparse product with a cached transpose: PyTorch's backward sorts the entries every time."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, matrix: Sparse) -> Tensor:
        ctx.matrix = matrix
        return _gathered(matrix, x)

    @staticmethod
    @override
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(ctx.matrix.transposed, grad[0]), None


def _gathered(matrix: Sparse, x: Tensor) -> Tensor:
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_cpu and x.dtype == torch.float64:  # twice as fast, but only in this case
        return torch.sparse.mm(matrix.csr, x.contiguous(), "sum")
    return functional.embedding_bag(
        matrix.column,
        x.contiguous(),
        matrix.start,
        mode="sum",
        per_sample_weights=matrix.value,
        include_last_offset=True,
    )


def block_diagonal(
    parts: Sequence[Any], n: int, width: int, *, num_blocks: int = 0, num_entries: int = 0
) -> Sparse:
    """Block-diagonal matrix of ``parts``, each with ``width`` columns and padded to ``n`` rows.

    Args:
        parts: Sparse matrices of at most ``n`` rows and ``width`` columns.
        n: Number of rows of each block.
        width: Number of columns of each block.
        num_blocks: Least number of blocks, of which the last ones are empty.
        num_entries: Least number of entries; zeros are added in the first row and column, where a
            node lies, for padding may have gradients that are not finite.
    """
    counts = [functional.pad(part.counts, (0, n - len(part.counts))) for part in parts]
    columns = [i * width + part.column for i, part in enumerate(parts)]
    value = torch.cat([part.value for part in parts])
    count, column = torch.cat(counts), torch.cat(columns)
    if (empty := num_blocks - len(parts)) > 0:
        count = functional.pad(count, (0, empty * n))
    if (zeros := num_entries - len(column)) > 0:
        count[0] += zeros
        column, value = (functional.pad(x, (zeros, 0)) for x in (column, value))
    return Sparse.of(count, column, value, max(num_blocks, len(parts)) * width)
