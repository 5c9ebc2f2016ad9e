from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import (
    HOLDOUT,
    IID,
    Arrays,
    Dataset,
    Dirichlet,
    FashionMNIST,
    OfficialParts,
    Partitioned,
    Shards,
)
from fedbolic.data.partitioned import pixels

seeds = st.integers(0, 2**31)
rates = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.99])


@dataclass(frozen=True)
class Numbered(Dataset):
    """Training rows that hold their own index; the test rows count down from -1."""

    num_train: int = 60
    num_test: int = 5

    def read(self, root, *, download):
        y = torch.arange(self.num_train) % 3
        x = torch.arange(float(self.num_train))[:, None]
        test = -1 - torch.arange(float(self.num_test))[:, None]
        return OfficialParts("Numbered", x, y, test, y[: self.num_test], 3)


def rows(split):
    return split.tensors["x"][:, 0].tolist()


@given(st.integers(1, 60), rates, rates, seeds)
def test_every_training_example_is_in_one_split_of_one_client(n, test_rate, validation_rate, seed):
    source = Partitioned(Numbered(), IID(n), test_rate=test_rate, validation_rate=validation_rate)
    data = source.load(Rng(seed))
    held = [
        row
        for client in data.clients
        for split in (client.train, client.validation, client.test)
        for row in rows(split)
    ]
    assert sorted(held) == list(range(60))
    for client in data.clients:
        labels = client.train.tensors["y"].tolist()
        assert labels == [row % 3 for row in rows(client.train)]


@given(st.integers(1, 60), rates, rates, seeds)
def test_every_client_keeps_a_training_example(n, test_rate, validation_rate, seed):
    source = Partitioned(Numbered(), IID(n), test_rate=test_rate, validation_rate=validation_rate)
    data = source.load(Rng(seed))
    assert data.sizes == tuple(client.size for client in data.clients)
    assert min(data.sizes) >= 1


@pytest.mark.parametrize(
    ("test_rate", "validation_rate", "sizes"),
    [(0.25, 0.0, (22, 0, 8)), (0.1, 0.1, (24, 3, 3)), (0.0, 0.5, (15, 15, 0))],
)
def test_shares_are_rounded_up(test_rate, validation_rate, sizes):
    source = Partitioned(Numbered(), IID(2), test_rate=test_rate, validation_rate=validation_rate)
    for client in source.load(Rng(0)).clients:
        assert (len(client.train), len(client.validation), len(client.test)) == sizes


def test_rounding_errors_are_not_rounded_up():
    data = Partitioned(Numbered(100), IID(1), test_rate=0.07).load(Rng(0))
    assert data.sizes == (93,)


def test_clients_hold_out_examples_independently():
    data = Partitioned(Numbered(60), IID(2), test_rate=0.5).load(Rng(0))
    places = []
    for client in data.clients:
        held = sorted(rows(client.train) + rows(client.test))
        places.append([held.index(row) for row in rows(client.test)])
    assert places[0] != places[1]


def test_same_seed_same_data_and_another_seed_another():
    def held(seed):
        data = Partitioned(Numbered(), Dirichlet(4, min_size=4)).load(Rng(seed))
        return [(rows(client.train), rows(client.test)) for client in data.clients]

    torch.manual_seed(1)
    first = held(0)
    torch.manual_seed(2)
    assert held(0) == first
    assert held(1) != first


def test_local_test_share_does_not_move_the_partition():
    def held(test_rate):
        data = Partitioned(Numbered(), Shards(4), test_rate=test_rate).load(Rng(0))
        return [sorted(rows(client.train) + rows(client.test)) for client in data.clients]

    assert held(0.25) == held(0.5)


def test_the_holdout_is_the_official_test_part():
    data = Partitioned(Numbered(), IID(3)).load(Rng(0))
    assert data.holdout.id == HOLDOUT
    assert rows(data.holdout.test) == [-1, -2, -3, -4, -5]
    assert len(data.holdout.train) == len(data.holdout.validation) == 0
    assert data.holdout.test.at(torch.tensor([2]))["y"].tolist() == [2]
    assert data.holdout.meta is data.meta


def test_the_first_examples_are_kept():
    data = Partitioned(Numbered(), IID(2), num_train=10, num_test=2).load(Rng(0))
    held = [row for c in data.clients for row in rows(c.train) + rows(c.test)]
    assert sorted(held) == list(range(10))
    assert rows(data.holdout.test) == [-1, -2]
    assert Partitioned(Numbered(), IID(2), num_test=0).load(Rng(0)).holdout is None


def test_features_are_left_as_they_are():
    data = Partitioned(Numbered(), IID(2)).load(Rng(0))
    assert data.meta.input_shape == (1,)
    assert data.meta.num_classes == 3


@given(st.sampled_from([1, 2, 4]), st.integers(1, 3), seeds)
def test_pixels_are_block_means_in_minus_one_to_one(pool, channels, seed):
    x = np.random.default_rng(seed).integers(0, 256, (2, channels, 8, 4), np.uint8)
    before = x.copy()
    ours = pixels(torch.from_numpy(x), pool=pool)
    blocks = x.reshape(2, channels, 8 // pool, pool, 4 // pool, pool).mean((3, 5))
    np.testing.assert_allclose(ours, blocks / 127.5 - 1, atol=1e-6)
    assert ours.dtype == torch.float32
    assert ours.min() >= -1
    assert ours.max() <= 1
    assert (x == before).all()


def test_floats_and_bytes_give_the_same_pixels():
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    before = (x / 255).clone()
    assert torch.allclose(pixels(before), pixels(x), atol=1e-6)
    assert torch.equal(before, x / 255)


def test_local_files_become_a_federation(write_idx):
    root, _, made = write_idx("FashionMNIST", num_train=30)
    data = Partitioned(FashionMNIST(), IID(3), root=root, pool=2).load(Rng(0))
    assert data.meta.input_shape == (1, 2, 2)
    assert data.sizes == (7, 7, 7)
    labels = [
        label
        for client in data.clients
        for split in (client.train, client.test)
        for label in split.tensors["y"].tolist()
    ]
    assert sorted(labels) == sorted(made["y_train"])
    first = made["x_t10k"][:, :2, :2].mean((1, 2)) / 127.5 - 1
    np.testing.assert_allclose(data.holdout.test.tensors["x"][:, 0, 0, 0], first, atol=1e-6)


def test_the_embedded_default_needs_no_file():
    data = Partitioned(download=False).load(Rng(3))
    assert data.meta.num_clients == 10
    assert data.meta.input_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"test_rate": 1.0}, r"test_rate must lie in \[0, 1\), got 1.0"),
        ({"test_rate": -0.1}, r"test_rate must lie in \[0, 1\), got -0.1"),
        ({"validation_rate": 2.0}, r"validation_rate must lie in \[0, 1\), got 2.0"),
        ({"pool": 0}, "pool must be at least 1, got 0"),
        ({"num_train": 0}, "num_train must be at least 1, got 0"),
        ({"num_test": -1}, "num_test must be at least 0, got -1"),
    ],
)
def test_wrong_fields_are_refused_before_anything_is_read(fields, message):
    with pytest.raises(ValueError, match=message):
        Partitioned(**fields)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Partitioned(Numbered(), IID(61)), "61 clients cannot share 60 examples"),
        (Partitioned(Numbered(), IID(2), num_train=61), "num_train is 61, but there are 60"),
        (Partitioned(Numbered(), IID(2), num_test=6), "num_test is 6, but there are 5"),
        (Partitioned(Numbered(), IID(2), pool=2), "pool is 2, but the examples are not images"),
        (Partitioned(pool=3), "pool must divide height 8 and width 8, got 3"),
        (
            Partitioned(Numbered(), Dirichlet(30, 0.01, min_size=0)),
            r"client \d+ got no example: use fewer clients",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(source, message):
    with pytest.raises(ValueError, match=message):
        source.load(Rng(0))


@pytest.mark.data
def test_fashion_mnist_in_twenty_parts(data_root):
    source = Partitioned(FashionMNIST(), Dirichlet(20, 0.5), root=data_root / "torchvision")
    data = source.load(Rng(0))
    splits = [split for client in data.clients for split in (client.train, client.test)]
    labels = torch.cat([split.tensors["y"] for split in splits])
    assert labels.bincount().tolist() == [6000] * 10
    assert all(len(client.train) + len(client.test) >= 40 for client in data.clients)
    assert len(data.holdout.test) == 10_000
    # the widely quoted mean, 0.2860 in [0, 1]
    total = sum(split.tensors["x"].double().sum() for split in splits)
    assert abs(float(total) / (60_000 * 784) - (2 * 0.2860 - 1)) < 2e-4


@pytest.mark.data
def test_the_folder_of_the_environment_is_found(data_root, monkeypatch):
    monkeypatch.setenv("FEDBOLIC_DATA", str(data_root))
    for dataset in (FashionMNIST(), Arrays(Path("cifar100_subset.npz"))):
        data = Partitioned(dataset, IID(2), num_train=20, num_test=10, download=False).load(Rng(0))
        assert data.sizes == (7, 7)
