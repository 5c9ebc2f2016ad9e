"""The SimHash Bloom filter classifier: the paper's ablation, with dense hashes in FlyNN's place."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from flynn.bloom import predictions

CELLS = 2**25
"""Numbers of bits whose planes are drawn at once."""

CACHED = 2**18
"""Bits that are worked on at once: they fit into a second-level cache."""


def fold_accuracies(
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    folds: Sequence[Int64[Tensor, " _"]],
    *,
    dim: int,
    num_classes: int,
    seed: int,
) -> Float64[Tensor, " num_folds"]:
    r"""The accuracy on every fold of the filters of all other folds.

    .. math:: h(x) = 1[R x > 0], \qquad
        \hat y(x) = \arg\min_l |\{i : h(x)[i] = 1,\; c_l[i] = 0\}|

    with R of independent normal entries: the class with the fewest ones that no example of it has.

    Args:
        x: Examples.
        labels: Integers below ``num_classes``.
        folds: Positions of the examples of every fold; disjoint and covering.
        dim: Bits of a hash.
        num_classes: Number of classes.
        seed: Of R.

    References:
        Ram and Sinha (2022), Appendix D.5, arXiv:2112.07157; Charikar (2002), Section 3.
    """
    generator = torch.Generator().manual_seed(seed)
    order, sizes = torch.cat(list(folds)), [len(fold) for fold in folds]  # fold by fold
    x, labels = x[order].float(), labels[order]
    fold_of = torch.arange(len(folds)).repeat_interleave(torch.tensor(sizes))
    cells = fold_of * num_classes + labels
    new = torch.zeros(len(x), num_classes)
    step, width = max(1, CELLS // len(x)), max(1, CACHED // len(x))
    for start in range(0, dim, step):
        planes = torch.randn(x.shape[1], min(step, dim - start), generator=generator)
        for some in planes.split(width, dim=1):
            bits = (x @ some > 0).float()
            counts = torch.zeros(len(folds) * num_classes, bits.shape[1]).index_add_(0, cells, bits)
            counts = counts.view(len(folds), num_classes, -1)
            empty = (counts.sum(dim=0) == counts).float()  # in all folds but one
            for of, ones, unseen in zip(new.split(sizes), bits.split(sizes), empty, strict=True):
                of += ones @ unseen.T
    right = predictions(new) == labels
    return torch.stack([some.double().mean() for some in right.split(sizes)])
