import numpy as np
import torch

from benchmarks.nearest import simhash
from benchmarks.nearest.simhash import simhash_accuracies


def test_a_class_is_that_of_the_fewest_ones_it_has_not_seen():
    x, y = clusters()
    folds = np.arange(90) % 5
    planes = torch.randn(6, 40, generator=torch.Generator().manual_seed(7)).numpy()
    expected = []
    for fold in range(5):
        right = []
        for i in np.flatnonzero(folds == fold):
            learned = [np.flatnonzero((folds != fold) & (y == label)) for label in range(3)]
            seen = [{b for j in own for b in ones(x[j] @ planes)} for own in learned]
            right.append(np.argmin([len(ones(x[i] @ planes) - bits) for bits in seen]) == y[i])
        expected.append(np.mean(right))
    parts = [torch.from_numpy(np.flatnonzero(folds == fold)) for fold in range(5)]
    settings = {"dims": [40], "num_classes": 3, "seed": 7}
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    found = simhash_accuracies(x, y, parts, **settings)
    np.testing.assert_allclose(found, [expected])
    assert max(expected) > 0.4


def test_lengths_share_what_they_can_and_are_those_of_one_at_a_time(monkeypatch):
    monkeypatch.setattr(simhash, "_CELLS", 90 * 8)  # 8 planes are drawn at a time
    monkeypatch.setattr(simhash, "CACHED", 90 * 3)
    x, y = (torch.from_numpy(of) for of in clusters())
    parts, dims = torch.arange(90).split(30), [20, 1, 8, 10, 16, 4, 24]
    sizes = {"num_classes": 3, "seed": 7}
    found = simhash_accuracies(x, y, parts, dims=dims, **sizes)
    expected = [simhash_accuracies(x, y, parts, dims=[dim], **sizes)[0] for dim in dims]
    assert torch.equal(found, torch.stack(expected))
    assert len(found.unique(dim=0)) > 3


def clusters():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    return (rng.normal(size=(3, 6))[y] + rng.normal(size=(90, 6))).astype(np.float32), y


def ones(values):
    return set(np.flatnonzero(values > 0))
