"""Files of embedded hierarchies against other readers and damage."""

import contextlib
import csv
import importlib
import json
import logging
import math
import random

import numpy as np
import pytest
import torch

from fedbolic.core.reading import LIMIT
from fedbolic.hierarchies import Embedding
from fedbolic.manifolds import PolarPlaces
from tests.hierarchies.embeddings import (
    ODD,
    ball,
    embedding,
    every_kind,
    half_space,
    hyperboloid,
    polar,
)


@every_kind
def test_a_table_has_every_name_and_exact_coordinates(kind, tmp_path):
    found = embedding(kind)
    found.to_csv(tmp_path / "x.csv", formulas=True)
    with (tmp_path / "x.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert tuple(row[0] for row in rows) == ODD
    parents = dict(found.parents.tolist())
    expected = [ODD[parents[i]] if i in parents else "" for i in range(len(ODD))]
    assert head[1] == "parent"
    assert [row[1] for row in rows] == expected
    whole = torch.cat(
        [x.double().reshape(len(ODD), -1) for x in found.places.tensors().values()], 1
    )
    if kind is polar:
        assert [int(row[2]) for row in rows] == found.places.turns.tolist()
    assert np.array_equal([[float(x) for x in row[2:]] for row in rows], whole.numpy())


def test_a_spreadsheet_runs_no_name(tmp_path, caplog):
    found = embedding()
    with caplog.at_level(logging.WARNING, "fedbolic"):
        found.to_csv(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    assert not [cell for row in rows for cell in row[:2] if cell[:1] in tuple("=+-@\uff1d\t\r\n")]
    assert [row[0].removeprefix("'") for row in rows] == [name.removeprefix("'") for name in ODD]
    assert "7 of 20 names" in caplog.text


def test_several_parents_are_a_list(tmp_path):
    pairs = torch.tensor([[0, 1], [0, 2]])
    Embedding(tuple("abc"), ball(3, 0), pairs).to_csv(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [json.loads(row["parents"]) for row in rows] == [["b", "c"], [], []]


@every_kind
def test_another_reader_finds_the_table_in_parquet(kind, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = embedding(kind)
    found.to_parquet(tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet").to_pydict()
    assert tuple(table.pop("name")) == ODD
    parents = dict(found.parents.tolist())
    assert table.pop("parents") == [[ODD[parents[i]]] if i in parents else [] for i in range(20)]
    columns = [c for x in found.places.tensors().values() for c in x.reshape(20, -1).T.tolist()]
    assert list(table.values()) == columns


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@every_kind
def test_a_saved_embedding_is_the_same(kind, suffix, tmp_path):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    found = embedding(kind)
    found.save(tmp_path / f"x{suffix}", {"made": "here"})
    again = Embedding.load(tmp_path / f"x{suffix}")
    assert again.names == found.names
    assert torch.equal(again.parents, found.parents)
    assert type(again.places) is type(found.places)
    for name, tensor in found.places.tensors().items():
        assert torch.equal(again.places.tensors()[name], tensor)
    assert again.nearest("plain") == found.nearest("plain")
    bare = Embedding(found.names, found.places)
    bare.save(tmp_path / f"y{suffix}")
    assert Embedding.load(tmp_path / f"y{suffix}").parents is None


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_damaged_file_is_refused_or_read(suffix, tmp_path):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    file = tmp_path / f"x{suffix}"
    embedding(polar).save(file)
    whole, generator, read = file.read_bytes(), random.Random(0), 0
    cut = [whole[: generator.randrange(len(whole))] for _ in range(40)]
    swapped = [bytearray(whole) for _ in range(80)]
    for content in swapped:
        content[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
    for content in (*cut, *swapped, b"", b"text"):
        file.write_bytes(content)
        with contextlib.suppress(ValueError):
            Embedding.load(file)
            read += 1
    assert read < 80


def rewritten(file, **changes):
    arrays = dict(np.load(file))
    for name, edit in changes.items():
        arrays[name] = edit(arrays[name]) if callable(edit) else edit
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})


def head(**changes):
    return lambda given: np.array(json.dumps(json.loads(str(given)) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"name_ends": lambda ends: ends[:-1]},
        {"name_ends": lambda ends: ends[::-1].copy()},
        {"name_ends": lambda ends: 0 * ends},
        {"name_ends": lambda ends: ends.astype(float)},
        {"names": lambda text: text[:-1]},
        {"names": lambda text: 0 * text + 255},
        {"names": lambda text: 0 * text + 65},
        {"parents": lambda pairs: pairs + 19},
        {"parents": lambda pairs: pairs.astype(float)},
        {"parents": lambda pairs: pairs.ravel()},
        {"turns": lambda turns: turns.astype(float)},
        {"turns": None},
        {"radii": lambda radii: radii * math.nan},
        {"radii": lambda radii: -1 - radii},
        {"more": np.zeros(3)},
        {"fedbolic": np.array("{")},
        {"fedbolic": np.array("[" * 9999)},
        {"fedbolic": head(format=2)},
        {"fedbolic": head(places="Path")},
        {"fedbolic": head(places=["PolarPlaces"])},
        {"fedbolic": head(places="ManifoldPlaces", manifold="Lorentz", c=-1)},
        {"fedbolic": None},
    ],
)  # fmt: skip
def test_a_forged_file_is_refused(changes, tmp_path):
    file = tmp_path / "x.npz"
    embedding(polar).save(file)
    rewritten(file, **changes)
    with pytest.raises(ValueError, match=r"x\.npz holds no embedding that can be read"):
        Embedding.load(file)


def test_a_file_of_another_ending_or_with_names_that_are_no_text_is_not_written(tmp_path):
    found = embedding()
    with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):
        found.save(tmp_path / "x.pkl")
    lone = Embedding(("\ud800", "b"), ball(2, 0))
    for write in (lone.to_csv, lone.save):
        with pytest.raises(ValueError, match="surrogates"):
            write(tmp_path / "x.npz")
    assert not list(tmp_path.iterdir())


READ_AGAIN = {"polar": polar, "half-space": half_space, "hyperboloid": hyperboloid}


def assert_equal_embeddings(found, expected, *, names=None):
    assert found.names == (names or expected.names)
    assert found.parents.tolist() == sorted(expected.parents.tolist())
    assert type(found.places) is type(expected.places)
    for name, tensor in expected.places.tensors().items():
        again = found.places.tensors()[name]
        assert torch.equal(again, tensor)
        assert again.dtype == tensor.dtype
    assert math.isclose(found.distance(*found.names[:2]), expected.distance(*expected.names[:2]))


@pytest.mark.parametrize("kind", READ_AGAIN.values(), ids=READ_AGAIN)
def test_a_table_is_read_again(kind, tmp_path):
    found = embedding(kind)
    found.to_csv(tmp_path / "x.csv", formulas=True)
    assert_equal_embeddings(Embedding.load(tmp_path / "x.csv"), found)


def test_names_are_those_of_the_table_and_parents_are_found(tmp_path):
    pairs = torch.tensor([[0, 1], [0, 2], [1, 2]])
    found = Embedding(("=1", "-x", "c"), polar(3, 0), pairs)
    found.to_csv(tmp_path / "x.csv")
    again = Embedding.load(tmp_path / "x.csv")
    assert_equal_embeddings(again, found, names=("'=1", "'-x", "c"))
    assert again.ancestors("'=1") == ["'-x", "c"]


@every_kind
def test_parquet_is_read_again(kind, tmp_path):
    pytest.importorskip("pyarrow.parquet")
    found = embedding(kind)
    found.to_parquet(tmp_path / "x.parquet")
    assert_equal_embeddings(Embedding.load(tmp_path / "x.parquet"), found)


@pytest.mark.parametrize("width", [torch.int32, torch.int64])
def test_parquet_keeps_the_bits_of_turns(width, tmp_path):
    pytest.importorskip("pyarrow.parquet")
    found = Embedding(
        ("a", "b"), PolarPlaces(torch.tensor([0, 5], dtype=width), torch.ones(2).double())
    )
    found.to_parquet(tmp_path / "x.parquet")
    assert Embedding.load(tmp_path / "x.parquet").places.turns.dtype == width


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name,parent,poincare_0,poincare_1\na,,0.1,0.2\n", "in which space"),
        ("name,parent,turns,radii\na,,5,1.0\n", "32 or 64 bits"),
        ("name,parent,lorentz_0,lorentz_1\na,,1e8,1e8\n", "too far out"),
        ("name,parent,turns,radii\na,,0,nan\n", "finite"),
        ("name,parent,turns,radii\na,b,0,1.0\n", "'b'"),
        ("name,parent,turns,radii\na,,0\n", ""),
        ("name,parent,turns,radii\na,,0.5,1.0\n", ""),
        ("name,parent,turns,radii\na,,99999999999999999999,1.0\n", ""),
        ('name,parents,turns,radii\na,"""b""",0,1.0\nb,[],0,1.0\n', "list"),
        ("name,parent,turns,radii\na,,0,1.0\na,,0,2.0\n", ""),
        ("name,parents,turns,radii\na,[,0,1.0\n", ""),
        ("name,parent,turns,radii\n", ""),
        ("", ""),
    ],
)
def test_a_table_that_says_too_little_is_refused(text, why, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.csv holds no embedding.*{why}"):
        Embedding.load(tmp_path / "x.csv")


def test_parquet_that_repeats_one_long_name_is_refused_while_it_is_decoded(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "x.parquet"
    embedding().to_parquet(file)
    table = parquet.read_table(file).slice(0, 1)
    arrow = importlib.import_module("pyarrow")
    row = table.set_column(0, "name", [["n" * 10_000]])
    parquet.write_table(arrow.concat_tables([row] * 20_000), file)
    assert file.stat().st_size < 1_000_000
    monkeypatch.setenv(LIMIT, "20000000")
    with pytest.raises(ValueError, match="once it is decoded"):
        Embedding.load(file)


def test_damaged_parquet_is_refused(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "x.parquet"
    embedding().to_parquet(file)
    whole = file.read_bytes()
    for cut in range(0, len(whole), 97):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="holds no embedding"):
            Embedding.load(file)
    file.write_bytes(whole)
    parquet.write_table(parquet.read_table(file).replace_schema_metadata({}), file)
    with pytest.raises(ValueError, match="holds no embedding"):
        Embedding.load(file)
