"""The Disease tree, read from small files in the published format and from the published ones."""

import hashlib

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import Disease
from fedbolic.data.graphs import disease

EDGES = [(0, 1), (0, 2), (2, 3)]


@pytest.fixture
def folder(tmp_path):
    """A data folder with a tree of four nodes."""
    below = tmp_path / "hgcn" / "disease_lp"
    below.mkdir(parents=True)
    x = np.arange(8.0).reshape(4, 2)
    (below / "disease_lp.edges.csv").write_text("".join(f"{u},{v}\n" for u, v in EDGES))
    scipy.sparse.save_npz(below / "disease_lp.feats.npz", scipy.sparse.csr_matrix(x))
    np.save(below / "disease_lp.labels.npy", np.array([0, 1, 1, 0]))
    return tmp_path


def publish(folder, monkeypatch):
    """Register the checksums of the given files as those of the published ones."""
    below = folder / "hgcn" / "disease_lp"
    checksums = {
        part: hashlib.sha256((below / f"disease_lp.{part}").read_bytes()).hexdigest()
        for part in disease.DISEASE_CHECKSUMS
    }
    monkeypatch.setattr(disease, "DISEASE_CHECKSUMS", checksums)


def read(root):
    return Disease().read(Rng(0), root, download=False)


def test_edges_features_and_labels_are_read(folder, monkeypatch):
    publish(folder, monkeypatch)
    graph = read(folder)
    assert {(u, v) for u, v in graph.edges.T.tolist() if u < v} == set(EDGES)
    assert torch.equal(graph.features, torch.arange(8.0).reshape(4, 2))
    assert graph.labels.tolist() == [0, 1, 1, 0]


def test_files_with_another_checksum_are_refused(folder):
    with pytest.raises(ValueError, match="expected sha256 b5b7e41b"):
        read(folder)


def test_labels_are_not_unpickled(folder, monkeypatch):
    objects = np.array([0, 1, 1, None], dtype=object)
    np.save(folder / "hgcn" / "disease_lp" / "disease_lp.labels.npy", objects)
    publish(folder, monkeypatch)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read(folder)


def test_a_missing_file_is_named(folder):
    (folder / "hgcn" / "disease_lp" / "disease_lp.edges.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"disease_lp\.edges\.csv is not in"):
        read(folder)


@pytest.mark.data
def test_the_published_files_hold_a_tree(data_root):
    if not (data_root / "hgcn" / "disease_lp").is_dir():
        pytest.skip("Disease is not there")
    graph = read(data_root)
    assert graph.features.shape == (2665, 11)
    assert nx.is_tree(nx.Graph(graph.edges.T.tolist()))
    assert graph.labels.unique().tolist() == [0, 1]
