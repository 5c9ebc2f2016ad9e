"""ValidationFold against a count by hand: the official test part is out of reach."""

from collections import Counter
from dataclasses import dataclass

import torch

from fedbolic.data import Dataset, Digits, OfficialParts, ValidationFold


def rows(x):
    return Counter(map(tuple, x.flatten(1).tolist()))


def test_its_parts_are_those_of_the_training_part_and_none_of_the_test_part():
    whole, fold = (d.read(None, download=False) for d in (Digits(), ValidationFold()))
    assert rows(fold.x_train) + rows(fold.x_test) == rows(whole.x_train)
    assert not rows(fold.x_test) & rows(whole.x_test)


def test_every_fourth_example_of_each_class_tests():
    whole, fold = (d.read(None, download=False) for d in (Digits(), ValidationFold()))
    for label in range(10):
        ours = whole.x_train[whole.y_train == label]
        torch.testing.assert_close(fold.x_test[fold.y_test == label], ours[3::4])


@dataclass(frozen=True)
class Owned(Dataset):
    """Six examples of three clients, of whom the second holds the fourth example alone."""

    def read(self, root, *, download):
        x, y = torch.arange(6.0)[:, None], torch.zeros(6, dtype=torch.int64)
        owners = torch.tensor([0, 0, 0, 1, 2, 2])
        return OfficialParts("owned", x, y, x[:1], y[:1], num_classes=1, owners=owners)


def test_a_client_without_training_examples_is_left_out():
    fold = ValidationFold(Owned()).read(None, download=False)
    assert fold.x_train.flatten().tolist() == [0, 1, 2, 4, 5]
    assert fold.x_test.flatten().tolist() == [3]
    assert fold.owners.tolist() == [0, 0, 0, 1, 1]
