"""Published graphs: citation networks, co-purchases and ogbn-arxiv, read as PyG reads them."""

import dataclasses
import functools
import gzip
import hashlib
import importlib
import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.io import read_planetoid_data

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Amazon, Arxiv, Graphs, Metis, Planetoid
from fedbolic.data.files.pickled import unpickle
from fedbolic.data.graphs import arxiv, planetoid
from fedbolic.data.graphs.graph_sets import from_data


def planetoid_files(folder, name, n=504):
    """Files of a ring graph in the published format; its last two nodes are the test part.

    The ring is long because PyG takes the 500 nodes after the labelled ones for its validation.
    """
    folder.mkdir(parents=True)
    x, y = np.eye(n, 4, dtype=np.float32), np.eye(3, dtype=np.int32)[np.arange(n) % 3]
    x[:, 0] = 1.0
    rows = {"x": slice(0, 2), "allx": slice(0, n - 2), "tx": slice(n - 2, n)}
    labels = {"y": slice(0, 2), "ally": slice(0, n - 2), "ty": slice(n - 2, n)}
    parts = {
        **{part: scipy.sparse.csr_matrix(x[of]) for part, of in rows.items()},
        **{part: y[of] for part, of in labels.items()},
        "graph": {i: [(i + 1) % n, (i - 1) % n] for i in range(n)},
    }
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value))
    (folder / f"ind.{name}.test.index").write_text(f"{n - 2}\n{n - 1}\n")
    return x, y.argmax(1)


def published(folder, name, monkeypatch):
    """Register the checksums of the given files as those of the published ones."""
    checksums = {
        file.name.removeprefix(f"ind.{name.lower()}."): hashlib.sha256(file.read_bytes())
        for file in folder.iterdir()
    }
    of_name = {part: checksum.hexdigest() for part, checksum in checksums.items()}
    monkeypatch.setattr(planetoid, "CHECKSUMS", {name: of_name})


def test_files_of_planetoid_are_read(tmp_path, monkeypatch):
    folder = tmp_path / "planetoid" / "Cora" / "raw"
    x, y = planetoid_files(folder, "cora")
    published(folder, "Cora", monkeypatch)
    whole = Planetoid("Cora").read(Rng(0), tmp_path, download=False)
    assert torch.equal(whole.features, torch.from_numpy(x))
    assert whole.labels.tolist() == y.tolist()
    assert (whole.num_edges, whole.degrees.unique().tolist()) == (len(x), [2])


@pytest.mark.parametrize("shuffled", [False, True])
def test_files_of_planetoid_are_read_as_pyg_does(shuffled, tmp_path, monkeypatch):
    """The test part comes in any order; as in CiteSeer, some nodes are in no file."""
    folder = tmp_path / "planetoid" / "CiteSeer" / "raw"
    n = 510
    planetoid_files(folder, "citeseer", n)
    words = np.random.default_rng(0).random((n, 4)).astype(np.float32)
    index = [508, 506] if shuffled else [506, 508]  # no file describes 507 and 509
    parts = {"x": words[:2], "allx": words[:506], "tx": words[506:508]}
    hot = np.eye(3, dtype=np.int32)[np.arange(n) % 3]
    labels = {"y": hot[:2], "ally": hot[:506], "ty": hot[506:508]}
    rows = {part: scipy.sparse.csr_matrix(of) for part, of in parts.items()}
    graph = {i: [(i + 1) % 509, i, i] for i in range(509)}
    for part, value in {**rows, **labels, "graph": graph}.items():
        (folder / f"ind.citeseer.{part}").write_bytes(pickle.dumps(value))
    (folder / "ind.citeseer.test.index").write_text("".join(f"{i}\n" for i in index))
    published(folder, "CiteSeer", monkeypatch)
    ours = Planetoid("CiteSeer").read(Rng(0), tmp_path, download=False)
    assert_same_graph(ours, read_planetoid_data(str(folder), "citeseer"))


def assert_same_graph(ours, data):
    theirs = from_data(data)
    assert torch.equal(ours.features.to_dense(), theirs.features.to_dense())
    assert torch.equal(ours.edges, theirs.edges)
    assert torch.equal(ours.labels, theirs.labels)
    for name in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(ours.masks[name], data[name])


@pytest.mark.data
@pytest.mark.parametrize("name", planetoid.CHECKSUMS)
def test_the_published_files_are_read_as_pyg_does(name, data_root):
    raw = data_root / "planetoid" / name / "raw"
    if not raw.is_dir():
        pytest.skip(f"{name} is not there")
    ours = Planetoid(name).read(Rng(0), data_root, download=False)
    assert_same_graph(ours, read_planetoid_data(str(raw), name.lower()))


class Spell:
    """An object whose pickle calls a function with arguments as soon as it is loaded."""

    def __init__(self, function, *arguments):
        self.told = function, arguments

    def __reduce__(self):
        return self.told


SPELLS = {
    "a command": lambda file: Spell(os.system, f"touch {file}"),
    "an opened file": lambda file: Spell(open, str(file), "w"),
    "python": lambda file: Spell(exec, f"open({str(file)!r}, 'w')"),
    "an attribute": lambda file: Spell(getattr, file, "touch"),
    "a method": lambda file: Spell(Path.touch, file),
    "a module": lambda file: Spell(importlib.import_module, "antigravity"),
    "a partial": lambda file: Spell(functools.partial, os.mkdir, str(file)),
    "numpy's loader": lambda file: Spell(np.save, str(file), np.zeros(2)),
    "an inner one": lambda file: {1: [Spell(os.mkdir, str(file))]},
    "an array of objects": lambda file: np.array([Spell(os.mkdir, str(file))], dtype=object),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("spell", SPELLS)
def test_reading_a_pickle_runs_nothing_of_it(spell, protocol, tmp_path):
    file, done = tmp_path / "ind.cora.graph", tmp_path / "done"
    file.write_bytes(pickle.dumps(SPELLS[spell](done), protocol))
    with pytest.raises(ValueError, match="does not hold the published numbers"):
        unpickle(file.read_bytes(), str(file))
    assert not done.exists()
    assert "antigravity" not in sys.modules


def test_a_file_of_planetoid_with_another_checksum_is_refused_before_it_is_read(tmp_path):
    planetoid_files(tmp_path / "planetoid" / "Cora" / "raw", "cora")
    with pytest.raises(ValueError, match="expected sha256 23cfa55d"):
        Planetoid("Cora").read(Rng(0), tmp_path, download=False)


def test_files_of_amazon_are_read(tmp_path):
    folder = tmp_path / "amazon" / "Photo" / "raw"
    folder.mkdir(parents=True)
    x = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32))
    edges = scipy.sparse.csr_matrix(([1.0, 1.0], ([0, 1], [1, 2])), shape=(3, 3))
    arrays = {
        f"{kind}_{part}": getattr(matrix, part)
        for kind, matrix in (("attr", x), ("adj", edges))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez(folder / "amazon_electronics_photo.npz", labels=np.array([0, 1, 0]), **arrays)
    whole = Amazon("Photo").read(Rng(0), tmp_path, download=False)
    assert torch.equal(whole.features, torch.eye(3))
    assert whole.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert whole.labels.tolist() == [0, 1, 0]


def test_reading_arrays_of_amazon_runs_nothing_of_them(tmp_path):
    """These files have no published checksum."""
    folder = tmp_path / "amazon" / "Photo" / "raw"
    folder.mkdir(parents=True)
    done = tmp_path / "done"
    objects = np.array([Spell(os.mkdir, str(done))], dtype=object)
    names = ["attr_data", "attr_indices", "attr_indptr", "attr_shape", "labels"]
    np.savez(folder / "amazon_electronics_photo.npz", **dict.fromkeys(names, objects))
    with pytest.raises(ValueError, match="Python objects, which are pickles"):
        Amazon("Photo").read(Rng(0), tmp_path, download=False)
    assert not done.exists()


ARXIV = {
    "edge": "0,1\n1,2\n2,1\n3,3\n",
    "node-feat": "1.5,-2\n0.25,1\n3,4e-1\n1,1\n",
    "node-label": "0\n39\n4\n4\n",
}


def arxiv_files(**contents):
    """Files in the published format: gzip content by name."""
    return {
        f"raw/{name}.csv.gz": gzip.compress(text.encode())
        for name, text in {**ARXIV, **contents}.items()
    }


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_arxiv_are_read(packed, tmp_path, monkeypatch):
    folder = tmp_path / "ogbn_arxiv"
    (folder / "raw").mkdir(parents=True)
    for name, data in arxiv_files().items():
        (folder / name).write_bytes(data)
    if packed:
        archive = folder / "arxiv.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for name, data in arxiv_files().items():
                file.writestr(f"arxiv/{name}", data)
                (folder / name).unlink()
        checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
        published = dataclasses.replace(arxiv.ARCHIVE, checksum=checksum)
        monkeypatch.setattr(arxiv, "ARCHIVE", published)
    whole = Arxiv().read(Rng(0), tmp_path, download=False)
    expected = torch.tensor([[1.5, -2.0], [0.25, 1.0], [3.0, 0.4], [1.0, 1.0]])
    assert torch.equal(whole.features, expected)
    assert whole.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert whole.labels.tolist() == [0, 39, 4, 4]


def test_an_archive_of_arxiv_with_another_checksum_is_refused(tmp_path):
    (tmp_path / "ogbn_arxiv").mkdir()
    (tmp_path / "ogbn_arxiv" / "arxiv.zip").write_bytes(b"something else")
    with pytest.raises(ValueError, match="expected sha256 49f85c80"):
        Arxiv().read(Rng(0), tmp_path, download=False)


def test_a_file_of_arxiv_without_numbers_is_named(tmp_path):
    folder = tmp_path / "ogbn_arxiv"
    (folder / "raw").mkdir(parents=True)
    for name, data in arxiv_files(**{"node-label": "cs.LG\n"}).items():
        (folder / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"node-label.csv.gz is not as published"):
        Arxiv().read(Rng(0), tmp_path, download=False)


@pytest.mark.parametrize("graph", [Planetoid("PubMed"), Amazon("Computers"), Arxiv()])
def test_files_that_are_missing_are_named(graph, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"(are|is) not in .*place (them|it) there"):
        graph.read(Rng(0), tmp_path, download=True)
    with pytest.raises(FileNotFoundError, match="set download"):
        graph.read(Rng(0), None, download=False)


@pytest.mark.data
def test_cora_and_its_parts_have_the_published_sizes(data_root):
    pytest.importorskip("pymetis")
    data = Graphs(Planetoid("Cora"), Metis(10), root=data_root).load(Rng(0))
    whole = data.holdout.test.graph
    assert (len(whole), 2 * whole.num_edges, data.meta.num_classes) == (2485, 10138, 7)
    assert whole.features.is_sparse
    mean_edges = sum(2 * c.train.graph.num_edges for c in data.clients) / 10
    assert abs(mean_edges - 891) < 0.03 * 891  # Table 2 of the paper


@pytest.mark.data
def test_photo_has_the_published_size(data_root):
    data = Graphs(Amazon("Photo"), IID(10), root=data_root).load(Rng(0))
    whole = data.holdout.test.graph
    assert (len(whole), 2 * whole.num_edges, data.meta.num_classes) == (7487, 238086, 8)
