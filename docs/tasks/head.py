"""Train a network in plain PyTorch whose head is hyperbolic."""

import torch
from sklearn.datasets import load_digits

import fedbolic as fb

x, y = map(torch.tensor, load_digits(return_X_y=True))
space = fb.manifolds.Lorentz(c=1.0)
head = fb.nn.ToManifold(space), fb.nn.MLR(space, 8, num_classes=10)
network = torch.nn.Sequential(torch.nn.Linear(64, 8), *head)
optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
for batch in torch.randperm(len(x)).split(50):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(network(x[batch].float() / 16), y[batch]).backward()
    optimiser.step()
