"""Cross-validation by subtraction: hashes and counts are computed once for all folds and decays."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from flynn import bloom


def fold_accuracies(
    winners: Int32[Tensor, "n active"],
    labels: Int64[Tensor, " n"],
    folds: Sequence[Int64[Tensor, " _"]],
    *,
    dim: int,
    num_classes: int,
    decays: Sequence[float],
) -> Float64[Tensor, "num_decays num_folds"]:
    """Cross-validation accuracy on each fold, for each decay.

    The counts of a fold are subtracted from those of all examples, and added back afterwards. This
    is exact: the result is the model trained without the fold.

    Example:
        >>> winners = torch.tensor([[0], [0], [1], [1]], dtype=torch.int32)
        >>> folds = [torch.tensor([0, 2]), torch.tensor([1, 3])]
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> fold_accuracies(winners, labels, folds, dim=2, num_classes=2, decays=[0.5])
        tensor([[1., 1.]], dtype=torch.float64)
    """
    counts = bloom.count(winners, labels, dim=dim, num_classes=num_classes)
    places = labels[:, None] * dim + winners
    found = torch.empty(len(decays), len(folds), dtype=torch.float64)
    for column, fold in enumerate(folds):
        own = places[fold].flatten()
        counts.view(-1).index_add_(0, own, -torch.ones_like(own))
        for row, decay in enumerate(decays):
            scores = bloom.log_scores(counts, winners[fold], decay)
            right = bloom.predictions(scores) == labels[fold]
            found[row, column] = right.double().mean()
        counts.view(-1).index_add_(0, own, torch.ones_like(own))
    return found
