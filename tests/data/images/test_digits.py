import torch
from sklearn.datasets import load_digits

from fedbolic.data import Digits


def test_every_digit_is_there_once():
    parts = Digits().read(None, download=False)
    ours = torch.cat([parts.x_train, parts.x_test]).reshape(-1, 64)
    pixels, labels = load_digits(return_X_y=True)
    theirs = torch.tensor(pixels / 16, dtype=torch.float32)
    rows = [
        sorted((*row.tolist(), int(label)) for row, label in zip(x, y, strict=True))
        for x, y in ((ours, torch.cat([parts.y_train, parts.y_test])), (theirs, labels))
    ]
    assert rows[0] == rows[1]


def test_the_test_part_is_a_quarter_of_every_class():
    parts = Digits().read(None, download=False)
    train, test = parts.y_train.bincount(minlength=10), parts.y_test.bincount(minlength=10)
    assert (((train + test) / 4 - test).abs() < 1).all()
