"""Put a Lorentz convolution into a model of PyTorch Geometric."""

import torch
import torch_geometric as pyg

import fedbolic as fb
from fedbolic.nn.graph.convolution import CentroidConv

graph, space = pyg.datasets.KarateClub()[0], fb.manifolds.Lorentz(c=1.0)
layers = [(fb.nn.ToManifold(space), "x -> x"), (CentroidConv(space, 34, 16), "x, edge_index -> x")]
model = pyg.nn.Sequential("x, edge_index", [*layers, fb.nn.MLR(space, 16, 4)])
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(50):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(model(graph.x, graph.edge_index), graph.y).backward()
    optimiser.step()
