"""Graphs in files: refused settings, and imports."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedbolic.data import GraphClassification, GraphFiles, Graphs, save_graph
from flatland import GraphReadout


@pytest.mark.parametrize("source", [Graphs, lambda **given: GraphFiles([Path("a.npz")], **given)])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"split": "public"}, "split must be one of random, masks, got 'public'"),
        ({"train_rate": 0.0}, "train_rate must be above 0"),
        ({"scale": "l3"}, "scale must be one of none, l1, l2, standardised, got 'l3'"),
        ({"train_rate": 0.7}, r"at most 1 with test_rate, got 0\.7 and 0\.4"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(source, given, words):
    with pytest.raises(ValueError, match=words):
        source(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"families": ()}, "families is empty"),
        ({"features": "colours"}, "features must be one of given, degrees, got 'colours'"),
        ({"scale": "l3"}, "scale must be one of"),
        ({"most_degree": 0}, "most_degree must be at least 1"),
        ({"train_rate": 0.9}, r"at most 1 with test_rate, got 0\.9 and 0\.2"),
    ],
)
def test_a_setting_of_graph_classification_that_cannot_be_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        GraphClassification(**given)


def test_an_unknown_readout_is_refused():
    with pytest.raises(ValueError, match="pooling must be one of mean, sum, centroid, got 'max'"):
        GraphReadout(pooling="max")


@pytest.mark.processes
def test_a_saved_graph_is_read_without_pyg(tmp_path):
    edges = torch.tensor([[0, 1], [1, 2]])
    tensors = {"x": torch.eye(3), "edge_index": edges, "y": torch.tensor([0, 1, 0])}
    save_graph(tensors, tmp_path / "g.npz")
    code = (
        "import sys; from pathlib import Path; from fedbolic.data import GraphFile; "
        "from fedbolic.core.rng import Rng; "
        f"graph = GraphFile(Path({str(tmp_path / 'g.npz')!r})).read(Rng(0), None, download=False); "
        "print(graph.degrees.tolist(), 'torch_geometric' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 2, 1] False"
