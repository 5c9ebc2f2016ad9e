"""SimHash Bloom filter classifier: the paper's ablation of FlyNN with dense hashes."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from flynn.bloom import predictions

_CELLS = 2**25
"""Limit of examples times bits whose hyperplanes are drawn in one step."""

CACHED = 2**18
"""Limit of examples times bits that are processed at once; they fit into a level-2 cache."""


def simhash_accuracies(
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    folds: Sequence[Int64[Tensor, " _"]],
    *,
    dims: Sequence[int],
    num_classes: int,
    seed: int,
) -> Float64[Tensor, "num_dims num_folds"]:
    r"""Cross-validation accuracy on each fold, for each hash length.

    .. math:: h(x) = 1[R x > 0], \qquad
        \hat y(x) = \arg\min_l |\{i : h(x)[i] = 1,\; c_l[i] = 0\}|

    with independent normal entries of R: the prediction is the class with the fewest ones of h(x)
    that none of its examples outside the fold has.

    References:
        Ram and Sinha (2022), Appendix D.5, arXiv:2112.07157; Charikar (2002), Section 3.
    """
    generator = torch.Generator().manual_seed(seed)
    order, sizes = torch.cat(list(folds)), [len(fold) for fold in folds]  # grouped by fold
    x, labels = x[order].float(), labels[order]
    cells = torch.arange(len(folds)).repeat_interleave(torch.tensor(sizes)) * num_classes + labels
    found = torch.empty(len(dims), len(folds), dtype=torch.float64)
    unseen = sums = torch.zeros(len(x), num_classes)
    step = max(1, _CELLS // len(x))
    for start in range(0, max(dims), step):
        state = generator.get_state()  # every width starts here: no length depends on the others
        for width in sorted({min(dim - start, step) for dim in dims if dim > start}):
            planes = torch.randn(x.shape[1], width, generator=generator.set_state(state))
            sums = unseen + _unseen(x, planes, cells, sizes, num_classes)
            right = (predictions(sums) == labels).double().split(sizes)
            accuracies = torch.stack([some.mean() for some in right])
            found[[k for k, dim in enumerate(dims) if dim - start == width]] = accuracies
        unseen = sums  # the last width is the full step if another step follows
    return found


def _unseen(x: Tensor, planes: Tensor, cells: Tensor, sizes: list[int], num_classes: int) -> Tensor:
    """Number of ones, by example and class, that no example of the class in other folds has."""
    found = torch.zeros(len(x), num_classes)
    for some in planes.split(max(1, CACHED // len(x)), dim=1):
        bits = (x @ some).gt_(0)
        counts = bits.new_zeros(len(sizes) * num_classes, bits.shape[1]).index_add_(0, cells, bits)
        counts = counts.view(len(sizes), num_classes, -1)
        empty = (counts.sum(dim=0) == counts).float()  # no ones in any other fold
        for of, ones, new in zip(found.split(sizes), bits.split(sizes), empty, strict=True):
            of += ones @ new.T
    return found
