"""FedStar: both channels on dense matrices, and the mean of the structural one alone."""

import functools

import torch
from torch.nn.functional import elu

from flatland import FedStar, StructureGIN
from tests.conformance.graphs import SETTINGS, closed, fedavg, normalised, odd_graphs, six_graphs
from tests.conformance.loop import Loop

NETWORK = StructureGIN((6, 4), dropout=0.0, activation="elu", walks=4, degrees=3)


def encodings(graph):
    """Diagonals of the powers of the walk's matrix, and one column for every class of degrees."""
    a = closed(graph) - torch.eye(len(graph), dtype=torch.float64)
    step = a / a.sum(dim=1, keepdim=True).clamp(min=1)
    columns = [torch.linalg.matrix_power(step, k).diagonal() for k in (1, 2, 3, 4)]
    degrees = a.sum(dim=1)
    columns += [(degrees <= 1).double(), (degrees == 2).double(), (degrees >= 3).double()]
    return torch.stack(columns, dim=1)


def affine(x, p, name):
    return x @ p[f"{name}.space"] + p[f"{name}.bias"]


def logits(graph, p):
    a = closed(graph)
    x, s = affine(graph.features, p, "features"), affine(encodings(graph), p, "structure.0")
    for layer in (0, 1):
        around = a @ torch.cat((x, s), dim=1)
        x = elu(affine(elu(affine(around, p, f"body.{layer}.0")), p, f"body.{layer}.1"))
        s = normalised(a) @ s @ p[f"structure.{layer + 1}.space"]
        s = torch.tanh(s + p[f"structure.{layer + 1}.bias"])
    x = elu(affine(affine(torch.cat((x, s), dim=1), p, "joined"), p, "last"))
    return affine(x, p, "head")


SOURCE = "Tan et al. (2023), Algorithm 1, arXiv:2211.13009"
METHOD = FedStar(NETWORK, **SETTINGS)
run = functools.partial(fedavg, logits=logits)
LOOPS = {
    "FedStar": Loop(METHOD, SOURCE, run, six_graphs),
    "FedStar, odd graphs": Loop(METHOD, SOURCE, run, odd_graphs),
}
