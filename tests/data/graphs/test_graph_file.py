"""Graphs in files of users: read as PyG has them, or refused by name without running code."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from fedbolic.core.rng import Rng
from fedbolic.data import GraphFile, save_graph

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
def test_data_of_pyg_are_saved_and_read(dictionary, tmp_path):
    data = example()
    data.name, data.num_hops, data.weights = "seven", 2, [0.5, {"a": None}]
    save_graph(data.to_dict() if dictionary else data, tmp_path / "g.npz")
    assert_reads(tmp_path / "g.npz", data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_tensors_of_any_number_type_and_layout_are_saved(dtype, tmp_path):
    data = example()
    whole = torch.arange(8 * N).reshape(8, N).to(dtype)
    data.x, data.y = whole[1:5].T, (torch.arange(2 * N)[::2] % 3).to(torch.int16)
    data.edge_index = data.edge_index.int().T.contiguous().T
    save_graph(data, tmp_path / "g.npz")
    graph = read(tmp_path / "g.npz")
    assert torch.equal(graph.features.to_dense(), data.x.float())
    assert torch.equal(graph.labels, data.y.long())


def test_sparse_features_are_saved_sparse(tmp_path):
    data = example()
    dense = data.x = torch.eye(N, 40)
    data.x = dense.to_sparse()
    save_graph(data, tmp_path / "g.npz")
    assert read(tmp_path / "g.npz").features.is_sparse
    assert torch.equal(read(tmp_path / "g.npz").features.to_dense(), dense)


@pytest.mark.parametrize(("path", "without", "words"), [
    ("g.pt", "", "g.pt is no .npz file"),
    ("g.npz", "x", "needs features"),
    ("g.npz", "edge_index", "needs edge_index"),
    ("g.npz", "y", "needs labels"),
])  # fmt: skip
def test_what_cannot_be_read_is_not_saved(path, without, words, tmp_path):
    found = {name: value for name, value in example().to_dict().items() if name != without}
    with pytest.raises(ValueError, match=words):
        save_graph(found, tmp_path / path)
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused_in_one_line(kept, tmp_path):
    path = save(tmp_path / "g.npz", **as_arrays(example()))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert_refused(path, "save")


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x80\x02N.", b"hello", b"\x93NUMPY\x01\x00"])
def test_another_file_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "g.npz").write_bytes(content)
    assert_refused(tmp_path / "g.npz", "save")


@pytest.mark.parametrize("suffix", ["csv", "pt"])
def test_another_suffix_is_refused(suffix):
    with pytest.raises(ValueError, match=rf"g.{suffix} is no .npz file: .*save_graph"):
        GraphFile(Path(f"g.{suffix}"))


class Spell:
    """An object whose pickle calls a function as soon as it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_reading_arrays_runs_nothing_of_them(tmp_path):
    done = tmp_path / "done"
    objects = np.array([Spell(os.mkdir, str(done))], dtype=object)
    assert_refused(
        save(tmp_path / "g.npz", **as_arrays(example(), x=objects)),
        "Python objects, which are pickles",
    )
    assert not done.exists()
