import subprocess
import sys

import pytest
import torch
from jsonargparse import ArgumentParser

from fedbolic.data import IID, Arrays, Dirichlet, FashionMNIST, Partitioned, Source, save_graph

READ = """
import sys
from pathlib import Path
import fedbolic.data
for name in ("pooch", "requests", "sklearn", "jsonargparse", "lightning", "scipy.stats"):
    assert name not in sys.modules, name
sys.modules["pooch"] = sys.modules["torch_geometric"] = None
from fedbolic.data import *
from fedbolic.core.rng import Rng
root = Path({root!r})
Partitioned(FashionMNIST(), IID(2), num_train=9, root=root).load(Rng(0))
print(GraphFile(root / "g.npz").read(Rng(0), None, download=False).degrees.tolist())
"""


@pytest.mark.processes
def test_the_package_loads_nothing_heavy_and_reads_local_files_without_pooch_and_pyg(write_idx):
    root, _, _ = write_idx("FashionMNIST")
    edges = torch.tensor([[0, 1], [1, 2]])
    tensors = {"x": torch.eye(3), "edge_index": edges, "y": torch.tensor([0, 1, 0])}
    save_graph(tensors, root / "g.npz")
    code = READ.format(root=str(root))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "[1, 2, 1]\n")


YAML = """
data:
  class_path: fedbolic.data.Partitioned
  init_args:
    dataset:
      class_path: fedbolic.data.FashionMNIST
    partition:
      class_path: fedbolic.data.Dirichlet
      init_args:
        num_clients: 5
"""


@pytest.fixture
def parser():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--data", type=Source)
    return parser


def test_a_configuration_file_builds_a_source(parser, tmp_path):
    (tmp_path / "c.yaml").write_text(YAML)
    asked = ["--config", str(tmp_path / "c.yaml"), "--data.root", str(tmp_path)]
    asked += ["--data.partition.alpha", "0.1", "--data.pool", "2"]
    built = parser.instantiate(parser.parse_args(asked)).data
    assert built == Partitioned(FashionMNIST(), Dirichlet(5, 0.1), pool=2, root=tmp_path)


def test_flags_alone_build_a_source(parser, tmp_path):
    asked = ["--data", "fedbolic.data.Partitioned", "--data.dataset", "fedbolic.data.Arrays"]
    asked += ["--data.dataset.path", str(tmp_path), "--data.partition", "fedbolic.data.IID"]
    asked += ["--data.partition.num_clients", "3"]
    built = parser.instantiate(parser.parse_args(asked)).data
    assert built == Partitioned(Arrays(tmp_path), IID(3))
