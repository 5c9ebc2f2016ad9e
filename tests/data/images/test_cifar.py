import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from fedbolic.data import CIFAR10, CIFAR100
from fedbolic.data.files.published_files import RemoteFile
from fedbolic.data.images import cifar as module
from fedbolic.data.images.cifar import TEN_BATCHES, read_batch


def text(data):
    return b"T" + struct.pack("<i", len(data)) + data


def batch(rows, labels, key=b"labels"):
    """A batch as Python 2 pickled it (protocol 2), opcode by opcode."""
    n = len(labels)
    made = b"\x80\x02}(" + text(b"data")
    made += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    made += b"\x87R(K\x01M" + struct.pack("<H", n) + b"M" + struct.pack("<H", 3072) + b"\x86"
    made += b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    made += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    made += text(rows.tobytes()) + b"tb"
    made += text(key) + b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return made + text(b"batch_label") + text(b"a batch") + b"u."


def rows(seed, n):
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def write_ten(root):
    contents = {name: batch(rows(i, 2), [i, 9 - i]) for i, name in enumerate(TEN_BATCHES)}
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return contents


def write_tar(path, contents):
    with tarfile.open(path, "w:gz") as file:
        for name, data in reversed(contents.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return hashlib.md5(path.read_bytes()).hexdigest()


def check_ten(parts):
    assert parts.y_train.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert parts.y_test.tolist() == [5, 4]
    assert parts.x_test.shape == (2, 3, 32, 32)
    # a row holds the red plane, then the green and the blue
    assert parts.x_train[2, 1, 0, 5] == rows(1, 2)[0, 1024 + 5]
    assert parts.x_test[1, 2, 31, 0] == rows(5, 2)[1, 2048 + 31 * 32]


def test_a_batch_of_python_2_is_read():
    x, y = read_batch(batch(rows(0, 3), [1, 0, 7]), "b", labels="labels")
    assert y.tolist() == [1, 0, 7]
    assert x.dtype == torch.uint8
    assert (x.flatten(1).numpy() == rows(0, 3)).all()


def test_unpacked_batches_are_read_in_order(tmp_path):
    write_ten(tmp_path)
    check_ten(CIFAR10().read(tmp_path, download=False))


def test_the_archive_is_read_without_unpacking(tmp_path, monkeypatch):
    contents = write_ten(tmp_path / "source")
    (tmp_path / "root").mkdir()
    md5 = write_tar(tmp_path / "root" / "cifar-10-python.tar.gz", contents)
    monkeypatch.setattr(module, "TEN", RemoteFile("cifar-10-python.tar.gz", md5, ()))
    check_ten(CIFAR10().read(tmp_path / "root", download=False))
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["cifar-10-python.tar.gz"]


def test_an_archive_without_a_batch_is_refused(tmp_path, monkeypatch):
    contents = write_ten(tmp_path / "source")
    del contents[TEN_BATCHES[3]]
    md5 = write_tar(tmp_path / "cifar-10-python.tar.gz", contents)
    monkeypatch.setattr(module, "TEN", RemoteFile("cifar-10-python.tar.gz", md5, ()))
    with pytest.raises(ValueError, match="lacks cifar-10-batches-py/data_batch_4"):
        CIFAR10().read(tmp_path, download=False)


def test_an_archive_of_another_checksum_is_refused(tmp_path):
    found = write_tar(tmp_path / "cifar-10-python.tar.gz", {"a": b"b"})
    with pytest.raises(ValueError, match=f"c58f30108f718f92721af3b95e74349a, found {found}"):
        CIFAR10().read(tmp_path, download=False)


def test_the_hundred_have_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(batch(rows(0, 2), [99, 3], key=b"fine_labels"))
    (folder / "test").write_bytes(batch(rows(1, 1), [50], key=b"fine_labels"))
    parts = CIFAR100().read(tmp_path, download=False)
    assert (parts.y_train.tolist(), parts.y_test.tolist()) == ([99, 3], [50])
    assert parts.num_classes == 100


def test_a_label_out_of_range_is_refused(tmp_path):
    write_ten(tmp_path)
    (tmp_path / TEN_BATCHES[-1]).write_bytes(batch(rows(0, 2), [1, 10]))
    with pytest.raises(ValueError, match="CIFAR10: label 10 of test example 1"):
        CIFAR10().read(tmp_path, download=False)


class Dangerous:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_cannot_run_code(protocol, tmp_path):
    trap = tmp_path / "sprung"
    data = pickle.dumps({"data": Dangerous(trap)}, protocol)
    with pytest.raises(ValueError, match=r"b does not hold .* refers to _?io.open"):
        read_batch(data, "b", labels="labels")
    assert not trap.exists()
    pickle.loads(data)["data"].close()
    assert trap.exists()  # so the pickle does contain the command


@pytest.mark.parametrize(
    "name", [b"builtins\neval", b"os\nsystem", b"numpy\nload", b"numpy.core.multiarray\nfromfile"]
)
def test_only_arrays_may_be_named(name):
    module_name = name.replace(b"\n", b".").decode()
    with pytest.raises(ValueError, match=f"it refers to {module_name}"):
        read_batch(b"c" + name + b"\n.", "b", labels="labels")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a pickle",
        batch(rows(0, 2), [1, 2])[:-2000],
        pickle.dumps({b"labels": [1]}),
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": [[1, 2]], b"labels": [1]}),
        batch(rows(0, 2), [1, 2], key=b"others"),
    ],
)
def test_another_kind_of_file_is_refused_by_name(data):
    with pytest.raises(ValueError, match=r"folder/b (is not a CIFAR|does not hold the pub)"):
        read_batch(data, "folder/b", labels="labels")


def test_a_set_of_batches_with_one_missing_is_none(tmp_path):
    write_ten(tmp_path)
    (tmp_path / TEN_BATCHES[2]).unlink()
    with pytest.raises(FileNotFoundError, match="drop root to download"):
        CIFAR10().read(tmp_path, download=False)


def test_missing_batches_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="drop root to download") as caught:
        CIFAR100().read(tmp_path, download=True)
    assert "cifar-100-python.tar.gz" in str(caught.value)
    assert "cifar-100-python/train" in str(caught.value)
