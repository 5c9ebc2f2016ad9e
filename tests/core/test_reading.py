"""The layer below all readers: its limit, and texts and arrays that are read as they are."""

import gzip
import io

import numpy as np
import pytest

from fedbolic.core import reading
from fedbolic.data import TableFile


@pytest.fixture
def limit(monkeypatch):
    return lambda size: monkeypatch.setenv(reading.LIMIT, str(size))


def refused(words):
    return pytest.raises(ValueError, match=f"{words}.*takes .* bytes once .*{reading.LIMIT}")


def test_the_limit_holds_for_files_archives_texts_and_tables(limit, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000))
    packed = gzip.compress(bytes(8000))
    rows = "".join(f"{i},{i % 2}\n" for i in range(1000))
    (tmp_path / "t.csv").write_text(f"a,k\n{rows}")
    readers = {
        "a.npz": lambda: reading.read_arrays(tmp_path / "a.npz"),
        "packed": lambda: reading.gunzip(packed, "packed"),
        "text": lambda: list(reading.lines(io.BytesIO(b"a line\n" * 1000), "text")),
        "t.csv": lambda: TableFile(tmp_path / "t.csv", target="k").read(None, download=False),
    }
    for read in readers.values():
        read()
    limit(3000)
    for name, read in readers.items():
        with refused(name):
            read()
    limit(100)
    with refused("a.npz"):
        reading.read_bytes(tmp_path / "a.npz")


@pytest.mark.parametrize("given", ["", "0", "-1", "8 GB", "1e9"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(given, limit):
    limit(given)
    with pytest.raises(ValueError, match=f"{reading.LIMIT} must be a number of bytes above 0"):
        reading.size_limit()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1", "?", "<U3", "<i8"])
def test_arrays_are_those_of_numpy(dtype, order, tmp_path):
    values = np.asarray(np.arange(12).reshape(3, 4) % 2, dtype=dtype, order=order)
    np.savez(tmp_path / "a.npz", a=values, scalar=values[0, 0], empty=values[:0])
    with np.load(tmp_path / "a.npz") as expected:
        found = reading.read_arrays(tmp_path / "a.npz")
        assert found.keys() == set(expected.files)
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_in_python(end):
    text = end.join(["\ufeffä", "", "b", "c"])
    found = list(reading.lines(io.BytesIO(text.encode()), "text"))
    assert found == list(io.StringIO(text.removeprefix("\ufeff"), newline=""))


def test_a_line_that_is_no_text_is_named():
    with pytest.raises(ValueError, match="text, line 3: the text is not UTF-8"):
        list(reading.lines(io.BytesIO(b"a\nb\n\xff\n"), "text"))
