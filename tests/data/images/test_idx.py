import gzip
import hashlib
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedbolic.data import MNIST, EMNISTLetters, FashionMNIST
from fedbolic.data.files.published_files import RemoteFile
from fedbolic.data.images import idx as module
from fedbolic.data.images.idx import LETTERS_STEMS, read_idx


def idx(array):
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=3, max_side=5)))
def test_what_is_written_is_read(array):
    assert torch.equal(read_idx(idx(array), "f", num_axes=array.ndim), torch.tensor(array))


@given(st.integers(0, 27))
def test_a_truncated_file_is_refused_with_both_lengths(length):
    data = idx(np.ones((2, 3, 2)))
    with pytest.raises(ValueError, match=r"here/f .*expected .* found") as caught:
        read_idx(data[:length], "here/f", num_axes=3)
    if length >= 16:
        assert f"expected 28 bytes, found {length}" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx(np.ones((2, 3, 2))) + b"x", "expected 28 bytes, found 29"),
        (b"\x1f\x8b\x08\x00 compressed", "begin with 00000803, found 1f8b0800"),
        (b"\0\0\x0d\x03" + idx(np.ones((2, 3, 2)))[4:], "found 00000d03"),  # floats
        (idx(np.ones(4)), "with 3 axes: .* found 00000801"),  # labels for images
        (b"", "found nothing"),
    ],
)
def test_another_kind_of_file_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        read_idx(data, "f", num_axes=3)


@pytest.mark.parametrize("dataset", [MNIST(), FashionMNIST()])
def test_unpacked_files_are_read(dataset, write_idx):
    root, _, made = write_idx(type(dataset).__name__)
    parts = dataset.read(root, download=False)
    assert parts.x_train.shape == (12, 1, 4, 4)
    assert (parts.x_train[:, 0].numpy() == made["x_train"]).all()
    assert (parts.y_train.numpy() == made["y_train"]).all()
    assert (parts.x_test[:, 0].numpy() == made["x_t10k"]).all()
    assert parts.y_test.dtype == torch.int64
    assert parts.num_classes == 10


def test_a_packed_file_of_another_checksum_is_refused(write_idx):
    root, raw, _ = write_idx("FashionMNIST")
    wrong = raw / "t10k-labels-idx1-ubyte.gz"
    wrong.write_bytes(gzip.compress(b"another"))
    found = hashlib.md5(wrong.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="expected md5 bb300cfdad3c16e7a12a480ee83cd310") as caught:
        FashionMNIST().read(root, download=False)
    assert str(wrong) in str(caught.value)
    assert f"found {found}" in str(caught.value)


def test_a_missing_file_is_named_and_download_proposed(write_idx):
    root, raw, _ = write_idx("FashionMNIST")
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="drop root to download") as caught:
        FashionMNIST().read(root, download=True)
    assert "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz" in str(caught.value)
    assert str(root) in str(caught.value)


def test_truncated_labels_are_refused_by_name(write_idx):
    root, raw, _ = write_idx("MNIST")
    file = raw / "train-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="expected 20 bytes, found 19") as caught:
        MNIST().read(root, download=False)
    assert str(file) in str(caught.value)


def test_a_label_out_of_range_is_refused_by_name(write_idx):
    root, raw, _ = write_idx("MNIST")
    (raw / "t10k-labels-idx1-ubyte").write_bytes(idx([0, 1, 10, 3, 4, 5]))
    with pytest.raises(ValueError, match=r"MNIST: label 10 of test example 2 .* 0 \.\. 9"):
        MNIST().read(root, download=False)


def test_too_few_labels_are_refused(write_idx):
    root, raw, _ = write_idx("MNIST")
    (raw / "t10k-labels-idx1-ubyte").write_bytes(idx([0, 1]))
    with pytest.raises(ValueError, match="test part has 6 examples but 2 labels"):
        MNIST().read(root, download=False)


def letters(labels=(1, 26, 3)):
    x = np.arange(3 * 4).reshape(3, 2, 2)
    return dict(zip(LETTERS_STEMS, (idx(x), idx(labels), idx(x[:1]), idx([26])), strict=True))


def write_letters(root, form, monkeypatch, **kwargs):
    raw = root / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    if form == "zip":
        path = raw / "gzip.zip"
        with zipfile.ZipFile(path, "w") as file:
            for stem, data in letters(**kwargs).items():
                file.writestr(f"gzip/{stem}.gz", gzip.compress(data))
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        monkeypatch.setattr(module, "EMNIST", RemoteFile("EMNIST/raw/gzip.zip", md5, ()))
    for stem, data in letters(**kwargs).items():
        if form == "plain":
            (raw / stem).write_bytes(data)
        if form == "gz":
            (raw / f"{stem}.gz").write_bytes(gzip.compress(data))
    return raw


@pytest.mark.parametrize("form", ["plain", "gz", "zip"])
def test_letters_are_numbered_from_zero_however_they_are_packed(form, tmp_path, monkeypatch):
    write_letters(tmp_path, form, monkeypatch)
    parts = EMNISTLetters().read(tmp_path, download=False)
    assert parts.y_train.tolist() == [0, 25, 2]
    assert parts.y_test.tolist() == [25]
    assert parts.x_train.flatten().tolist() == list(range(12))
    assert parts.num_classes == 26


@pytest.mark.parametrize("form", ["plain", "gz", "zip"])
def test_a_letter_numbered_zero_is_refused(form, tmp_path, monkeypatch):
    write_letters(tmp_path, form, monkeypatch, labels=(1, 0, 2))
    with pytest.raises(ValueError, match="EMNISTLetters: label -1 of train example 1"):
        EMNISTLetters().read(tmp_path, download=False)


@pytest.mark.parametrize("keep", [0, 5, 20, -1])
def test_a_truncated_packed_file_is_refused_by_name(keep, tmp_path, monkeypatch):
    raw = write_letters(tmp_path, "gz", monkeypatch)
    file = raw / f"{LETTERS_STEMS[1]}.gz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"truncated or damaged|found nothing") as caught:
        EMNISTLetters().read(tmp_path, download=False)
    assert str(file) in str(caught.value)


def test_a_zip_of_another_checksum_is_refused(tmp_path):
    path = tmp_path / "EMNIST" / "raw" / "gzip.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match="expected md5 58c8d27c78d21e728a6bc7b3cc06412e"):
        EMNISTLetters().read(tmp_path, download=False)


@pytest.mark.data
@pytest.mark.parametrize("dataset", [MNIST(), FashionMNIST()])
def test_the_published_files_are_whole(dataset, data_root):
    parts = dataset.read(data_root / "torchvision", download=False)
    assert parts.x_train.shape == (60_000, 1, 28, 28)
    assert parts.x_test.shape == (10_000, 1, 28, 28)
    if isinstance(dataset, FashionMNIST):
        assert parts.y_train.bincount().tolist() == [6000] * 10
        assert parts.y_test.bincount().tolist() == [1000] * 10
        assert parts.y_train[:5].tolist() == [9, 0, 0, 3, 0]
    else:
        assert parts.y_train[:5].tolist() == [5, 0, 4, 1, 9]
        # the widely quoted mean and standard deviation
        scaled = parts.x_train.double() / 255
        assert abs(float(scaled.mean()) - 0.1307) < 1e-4
        assert abs(float(scaled.std()) - 0.3081) < 1e-4
