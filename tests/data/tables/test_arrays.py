from pathlib import Path

import numpy as np
import pytest
import torch

from fedbolic.data import Arrays


@pytest.fixture
def save(tmp_path):
    def save(**changes):
        made = {
            "x_train": np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5),
            "y_train": np.array([0, 1, 2, 1]),
            "x_test": np.zeros((2, 6, 5), dtype=np.uint8),
            "y_test": np.array([1, 0]),
        } | changes
        np.savez(tmp_path / "f.npz", **{k: v for k, v in made.items() if v is not None})
        return tmp_path / "f.npz"

    return save


def read(path, root=None):
    return Arrays(path).read(root, download=False)


def test_grey_images_get_a_channel(save):
    parts = read(save())
    assert parts.x_train.shape == (4, 1, 6, 5)
    assert parts.x_train.flatten().tolist() == list(range(120))
    assert parts.y_train.tolist() == [0, 1, 2, 1]
    assert parts.num_classes == 3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_channels_come_first_wherever_they_were(channels, axes, save):
    images = np.random.default_rng(0).integers(0, 256, (4, channels, 5, 6), np.uint8)
    x = np.ascontiguousarray(images.transpose(axes))
    parts = read(save(x_train=x, x_test=x[:2]))
    assert torch.equal(parts.x_train, torch.tensor(images))
    assert torch.equal(parts.x_test, torch.tensor(images[:2]))


def test_class_names_say_how_many_classes(save):
    assert read(save(class_names=np.array(list("abcde")))).num_classes == 5


def test_features_are_rows_of_float32(save):
    x = np.linspace(-5, 5, 8).reshape(4, 2)
    parts = read(save(x_train=x, x_test=x[:2]))
    assert parts.x_train.dtype == torch.float32
    assert np.allclose(parts.x_train, x)


def test_floating_images_are_kept(save):
    x = np.random.default_rng(0).random((4, 3, 5, 5))
    parts = read(save(x_train=x, x_test=x[:2]))
    assert parts.x_train.dtype == torch.float32
    assert np.allclose(parts.x_train, x)


def test_a_relative_path_lies_in_the_data_folder(save, tmp_path, monkeypatch):
    save()
    assert read(Path("f.npz"), root=tmp_path).num_classes == 3
    with pytest.raises(FileNotFoundError, match=r"f.npz is not in"):
        read(Path("f.npz"), root=tmp_path / "else")
    monkeypatch.setenv("FEDBOLIC_DATA", str(tmp_path))
    assert read(Path("f.npz")).num_classes == 3
    monkeypatch.delenv("FEDBOLIC_DATA")
    monkeypatch.chdir(tmp_path)
    assert read(Path("f.npz")).num_classes == 3


IMAGES = np.zeros((4, 6, 5), np.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"y_train": np.array([0, 1, 2, -1])}, "f.npz: label -1 of train example 3"),
        ({"class_names": np.array(["a", "b"])}, "f.npz: label 2 of train example 2"),
        ({"y_train": np.zeros(3, int)}, "train part has 4 examples but 3 labels"),
        ({"y_train": np.zeros((4, 1), int)}, "must be one axis of integers"),
        ({"y_train": np.zeros(4)}, "must be one axis of integers, got float64"),
        ({"x_test": np.zeros((2, 6, 6), np.uint8)}, "they must agree"),
        ({"x_train": IMAGES.astype(np.int64)}, "images must be uint8 or floats"),
        ({"x_train": IMAGES.astype(complex)}, "images must be uint8 or floats"),
        ({"x_train": np.full((4, 6, 5), 1.5)}, r"spans 1.5 .. 1.5: scale it to \[0, 1\]"),
        ({"x_train": np.full((4, 6, 5), np.nan)}, r"scale it to \[0, 1\]"),
        ({"x_train": np.zeros((4, 6, 5, 2), np.uint8)}, "is 1 or 3 channels"),
        ({"x_train": np.zeros((4, 3, 5, 3), np.uint8)}, "is 1 or 3 channels"),
        ({"x_train": np.zeros(4, np.uint8)}, "images must be|channels"),
        ({"y_train": np.array([0, 1, None, 2])}, "not an .npz of plain arrays"),
    ],
)
def test_wrong_arrays_are_refused_by_name(save, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(save(**changes))
    assert "f.npz" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 300, -1])
def test_a_damaged_file_is_refused_by_name(save, keep):
    path = save()
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"f.npz is damaged or not an .npz"):
        read(path)


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "f.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"not an \.npz"):
        read(tmp_path / "f.npy")


@pytest.mark.data
def test_the_subset_of_cifar_is_read(data_root):
    parts = Arrays(Path("cifar10_subset.npz")).read(data_root, download=False)
    assert parts.x_train.shape == (10_000, 3, 32, 32)
    assert parts.x_test.shape == (5_000, 3, 32, 32)
    assert parts.y_train[:5].tolist() == [6, 9, 9, 4, 1]
    assert parts.num_classes == 10
