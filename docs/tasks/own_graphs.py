"""Save a graph of PyTorch Geometric for every hospital, and train on all of them."""

from pathlib import Path

from torch_geometric.datasets import FakeDataset

import fedbolic as fb
import flatland

Path("hospitals").mkdir()
for i, graph in enumerate(FakeDataset(5, avg_num_nodes=80, num_classes=3, task="node")):
    fb.data.save_graph(graph, f"hospitals/{i}.npz")
graphs = fb.data.GraphFiles(["hospitals"])
print(fb.report.report(fb.run.run(flatland.FlatLand(rounds=2), graphs, name="hospitals")))
