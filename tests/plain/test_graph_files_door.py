"""Graphs in files: refused settings, and imports."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedbolic.data import GraphFiles, Graphs


@pytest.mark.parametrize("source", [Graphs, lambda **given: GraphFiles([Path("a.pt")], **given)])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"split": "public"}, "split must be one of random, masks, got 'public'"),
        ({"train_rate": 0.0}, "train_rate must be above 0"),
        ({"train_rate": 0.7}, r"at most 1 with test_rate, got 0\.7 and 0\.4"),
    ],
)
def test_a_split_that_cannot_be_is_refused(source, given, words):
    with pytest.raises(ValueError, match=words):
        source(**given)


def test_a_saved_graph_is_read_without_pyg(tmp_path):
    edges = torch.tensor([[0, 1], [1, 2]])
    tensors = {"x": torch.eye(3), "edge_index": edges, "y": torch.tensor([0, 1, 0])}
    torch.save(tensors, tmp_path / "g.pt")
    code = (
        "import sys; from pathlib import Path; from fedbolic.data import GraphFile; "
        "from fedbolic.rng import Rng; "
        f"graph = GraphFile(Path({str(tmp_path / 'g.pt')!r})).read(Rng(0), None, download=False); "
        "print(graph.degrees.tolist(), 'torch_geometric' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 2, 1] False"
