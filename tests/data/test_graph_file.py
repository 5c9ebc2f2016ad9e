"""Graphs in files of users: read as PyG reads them, or refused by name without running code."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import remove_self_loops, to_undirected

from fedbolic.data import GraphFile
from fedbolic.rng import Rng

N = 7


def example():
    """A directed multigraph with a self loop and an isolated node."""
    pairs = torch.tensor([[0, 1], [1, 0], [1, 2], [1, 2], [3, 3], [5, 4], [4, 2]])
    masks = torch.arange(N) % 3 == torch.arange(3)[:, None]
    return Data(
        x=torch.randn(N, 4, generator=torch.Generator().manual_seed(0)),
        edge_index=pairs.T.contiguous(),
        y=torch.arange(N) % 3,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )


def as_arrays(data, **changes):
    arrays = {name: value.numpy() for name, value in data.to_dict().items()} | changes
    return {name: array for name, array in arrays.items() if array is not None}


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def read(path, root=None):
    return GraphFile(path).read(Rng(0), root, download=False)


def assert_reads(path, data):
    """The file gives the features, edges, labels and masks that PyG has of ``data``."""
    graph = read(path)
    assert torch.equal(graph.features.to_dense(), data.x)
    expected = to_undirected(remove_self_loops(data.edge_index)[0], num_nodes=len(data.x))
    assert torch.equal(graph.edges, expected)
    assert torch.equal(graph.labels, data.y)
    for name in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(graph.masks[name], data[name])


def as_csr(name):
    def parts_of(data):
        rows = scipy.sparse.csr_array(data.x.numpy())
        parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
        named = {f"{name}_{part}": array for part, array in parts.items()}
        return {"x": None, **named, f"{name}_shape": np.array(rows.shape)}

    return parts_of


FORMS = {
    "as PyG names them": lambda data: {},
    "features": lambda data: {"x": None, "features": data.x.numpy()},
    "float64": lambda data: {"x": data.x.double().numpy()},
    "big-endian": lambda data: {"x": data.x.numpy().astype(">f4")},
    "rows of pairs": lambda data: {"edge_index": None, "edges": data.edge_index.T.numpy()},
    "unsigned": lambda data: {"edge_index": data.edge_index.numpy().astype(np.uint32)},
    "small labels": lambda data: {"y": None, "labels": data.y.numpy().astype(np.uint8)},
    "sparse x": as_csr("x"),
    "sparse features": as_csr("features"),
    "names of classes": lambda data: {"names": np.array(["a", None], dtype=object)},
}


@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_read(form, tmp_path):
    data = example()
    assert_reads(save(tmp_path / "g.npz", **as_arrays(data, **FORMS[form](data))), data)


def test_a_sparse_matrix_stays_sparse(tmp_path):
    eye = Data(x=torch.eye(40), edge_index=torch.zeros(2, 0).long(), y=torch.zeros(40).long())
    path = save(tmp_path / "g.npz", **as_arrays(eye, **as_csr("x")(eye)))
    assert read(path).features.is_sparse
    assert torch.equal(read(path).features.to_dense(), torch.eye(40))


@pytest.mark.parametrize("dictionary", [False, True])
def test_data_of_pyg_are_read(dictionary, tmp_path):
    data = example()
    data.name, data.num_hops, data.weights = "seven", 2, [0.5, {"a": None}]
    torch.save(data.to_dict() if dictionary else data, tmp_path / "g.pt")
    assert_reads(tmp_path / "g.pt", data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_tensors_of_any_number_type_and_layout_are_read(dtype, tmp_path):
    data = example()
    whole = torch.arange(8 * N).reshape(8, N).to(dtype)
    data.x, data.y = whole[1:5].T, (torch.arange(2 * N)[::2] % 3).to(torch.int16)
    data.edge_index = data.edge_index.int().T.contiguous().T
    torch.save(data, tmp_path / "g.pt")
    graph = read(tmp_path / "g.pt")
    assert torch.equal(graph.features.to_dense(), data.x.float())
    assert torch.equal(graph.labels, data.y.long())


def test_data_of_pyg_1_are_read(tmp_path):
    """An old ``Data`` kept its tensors in its own dictionary."""
    data = example()
    old = Data.__new__(Data)
    old.__dict__.clear()
    old.__dict__.update(data.to_dict())
    torch.save(old, tmp_path / "g.pt")
    assert_reads(tmp_path / "g.pt", data)


def test_a_relative_path_lies_in_the_data_folder(tmp_path, monkeypatch):
    save(tmp_path / "g.npz", **as_arrays(example()))
    assert len(read(Path("g.npz"), root=tmp_path)) == N
    with pytest.raises(FileNotFoundError, match=r"g.npz is not in .*give the path of an existing"):
        read(Path("g.npz"), root=tmp_path / "else")
    monkeypatch.setenv("FEDBOLIC_DATA", str(tmp_path))
    assert len(read(Path("g.npz"))) == N
    monkeypatch.delenv("FEDBOLIC_DATA")
    monkeypatch.chdir(tmp_path)
    assert len(read(Path("g.npz"))) == N


WRONG = {
    "no features": ({"x": None}, "holds none of x, features.*save exactly one"),
    "features twice": ({"features": np.eye(N)}, "holds x and features .*save exactly one"),
    "no edges": ({"edge_index": None}, "holds none of edge_index, edges"),
    "edges twice": ({"edges": np.zeros((3, 2), int)}, "holds edge_index and edges"),
    "no labels": ({"y": None}, "holds none of y, labels"),
    "no nodes": (
        {"x": np.zeros((0, 2)), "y": np.zeros(0, int), "edge_index": np.zeros((2, 0), int)},
        "at least one node",
    ),
    "a vector of features": ({"x": np.zeros(N)}, "one row per node"),
    "text": ({"x": np.full((N, 2), "a")}, "x is <U1: save numbers"),
    "objects": ({"x": np.full((N, 2), None)}, "not an .npz of plain arrays"),
    "complex": ({"x": np.eye(N) * 1j}, "x is complex128: save numbers"),
    "NaN": ({"x": np.full((N, 2), np.nan)}, "NaN or infinity"),
    "beyond float32": ({"x": np.full((N, 2), 1e300)}, "NaN or infinity in float32"),
    "edges in rows": ({"edge_index": np.zeros((5, 2), int)}, r"shape \(2, edges\), got.*\(5, 2\)"),
    "edges in columns": (
        {"edge_index": None, "edges": np.zeros((2, 5), int)},
        "one row .* as edge_index",
    ),
    "edges of floats": ({"edge_index": np.zeros((2, 5))}, "hold integers"),
    "edges of booleans": ({"edge_index": np.zeros((2, 5), bool)}, "hold integers"),
    "a stranger": ({"edge_index": np.array([[0], [N]])}, "ends at 7, but nodes are 0 .. 6"),
    "a negative end": ({"edge_index": np.array([[0], [-1]])}, "ends at -1"),
    "too few labels": ({"y": np.zeros(N - 1, int)}, "one integer per node"),
    "one-hot labels": ({"y": np.eye(N, dtype=int)}, "one integer per node"),
    "labels of floats": ({"y": np.zeros(N)}, "one integer per node"),
    "no label": ({"y": np.arange(N) - 1}, "labels count from 0, got -1: leave out nodes"),
    "a part missing": (
        {**as_csr("x")(example()), "x_indptr": None},
        "lacks x_indptr: sparse features need x_data, x_indices, x_indptr, x_shape",
    ),
    "a column too far": (
        {**as_csr("x")(example()), "x_indices": np.full(4 * N, 9)},
        "are no sparse matrix",
    ),
    "rows that do not fit": (
        {**as_csr("x")(example()), "x_shape": np.array([N + 1, 4])},
        "are no sparse matrix",
    ),
    "a scalar shape": ({**as_csr("x")(example()), "x_shape": np.array(4)}, "are no sparse matrix"),
}


def assert_refused(path, words):
    with pytest.raises(ValueError, match=words) as caught:
        read(path)
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line


@pytest.mark.parametrize("case", WRONG)
def test_arrays_that_are_no_graph_are_refused_in_one_line(case, tmp_path):
    changes, words = WRONG[case]
    assert_refused(save(tmp_path / "g.npz", **as_arrays(example(), **changes)), words)


@pytest.mark.parametrize("suffix", ["npz", "pt"])
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused_in_one_line(suffix, kept, tmp_path):
    path = tmp_path / f"g.{suffix}"
    if suffix == "npz":
        save(path, **as_arrays(example()))
    else:
        torch.save(example(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert_refused(path, "save")


@pytest.mark.parametrize("suffix", ["npz", "pt"])
@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x80\x02N.", b"hello", b"\x93NUMPY\x01\x00"])
def test_another_file_is_refused_in_one_line(suffix, content, tmp_path):
    (tmp_path / f"g.{suffix}").write_bytes(content)
    assert_refused(tmp_path / f"g.{suffix}", "save")


def test_another_suffix_is_refused():
    with pytest.raises(ValueError, match=r"g.csv is no .npz or .pt file: save arrays"):
        GraphFile(Path("g.csv"))


OTHERS = {
    "a list": ([example()], "holds a list, not one graph"),
    "a tensor": (torch.eye(3), "holds a Tensor, not one graph"),
    "several graphs": (Batch.from_data_list([example()] * 2), "refers to"),
    "nodes of several kinds": (HeteroData(), "refers to torch_geometric.data.hetero_data"),
    "a network": (torch.nn.Linear(2, 2), "refers to torch.nn.modules.linear.Linear"),
    "weights": (torch.nn.Linear(2, 2).state_dict(), "without running code"),
    "an array": ({"x": np.eye(3)}, "it refers to numpy"),
    "a sparse tensor": ({"x": torch.eye(3).to_sparse()}, "refers to torch._utils._rebuild_sparse"),
    "nothing": ({}, "needs features"),
    "no edges": ({"x": torch.eye(2), "y": torch.arange(2)}, "needs edge_index"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_saved_objects_are_refused_in_one_line(case, tmp_path):
    saved, words = OTHERS[case]
    torch.save(saved, tmp_path / "g.pt")
    assert_refused(tmp_path / "g.pt", words)


class Spell:
    """An object whose pickle calls a function as soon as it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


SPELLS = {
    "a command": lambda file: Spell(os.system, f"touch {file}"),
    "an opened file": lambda file: Spell(open, str(file), "w"),
    "python": lambda file: Spell(exec, f"open({str(file)!r}, 'w')"),
    "torch's save": lambda file: Spell(torch.save, {}, str(file)),
    "an inner one": lambda file: {"x": [Spell(os.mkdir, str(file))]},
    "an attribute of the data": lambda file: Data(x=Spell(os.mkdir, str(file))),
    "an ordered one": lambda file: OrderedDict(x=Spell(os.mkdir, str(file))),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("spell", SPELLS)
def test_reading_a_saved_object_runs_nothing_of_it(spell, protocol, tmp_path):
    done = tmp_path / "done"
    torch.save(SPELLS[spell](done), tmp_path / "g.pt", pickle_protocol=protocol)
    assert_refused(tmp_path / "g.pt", "without running code .*it refers to")
    assert not done.exists()


def test_reading_arrays_runs_nothing_of_them(tmp_path):
    done = tmp_path / "done"
    objects = np.array([Spell(os.mkdir, str(done))], dtype=object)
    assert_refused(save(tmp_path / "g.npz", **as_arrays(example(), x=objects)), "allow_pickle")
    assert not done.exists()


class Storage:
    """A pickled reference to the storage that the archive's first tensor has."""


class Forged(pickle.Pickler):
    """Pickler of a tensor of another size than its storage."""

    def persistent_id(self, obj):
        return ("storage", torch.FloatStorage, "0", "cpu", 4) if obj is Storage else None


@pytest.mark.parametrize(
    ("offset", "size", "stride"), [(0, (2, 3), (3, 1)), (3, (2,), (1,)), (-1, (2,), (1,))]
)
def test_a_tensor_that_leaves_its_storage_is_refused(offset, size, stride, tmp_path):
    view = Spell(torch._utils._rebuild_tensor_v2, Storage, offset, size, stride, False, None)
    with zipfile.ZipFile(tmp_path / "g.pt", "w") as archive:
        with archive.open("g/data.pkl", "w") as file:
            Forged(file, protocol=2).dump({"x": view})
        archive.writestr("g/data/0", np.zeros(4, np.float32).tobytes())
    assert_refused(tmp_path / "g.pt", "without running code")


@pytest.mark.parametrize(
    ("member", "content", "words"),
    [
        ("data/0", b"\0" * 3, "has 3 bytes"),
        ("data/0", None, "KeyError"),
        ("data.pkl", None, "torch.save did not write it"),
        ("data.pkl", b"\x80\x02", "without running code"),
        ("byteorder", b"big", "not little-endian"),
    ],
)
def test_a_damaged_archive_is_refused_in_one_line(member, content, words, tmp_path):
    torch.save(example(), tmp_path / "whole.pt")
    with (
        zipfile.ZipFile(tmp_path / "whole.pt") as whole,
        zipfile.ZipFile(tmp_path / "g.pt", "w") as damaged,
    ):
        for name in whole.namelist():
            if not name.endswith(f"/{member}"):
                damaged.writestr(name, whole.read(name))
            elif content is not None:
                damaged.writestr(name, content)
    assert_refused(tmp_path / "g.pt", words)
