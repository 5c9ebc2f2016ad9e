"""Rows fitted to tree distances reach trees that their space holds."""

import networkx as nx
import pytest
import torch

from benchmarks.hierarchies import fitted as hierarchy_fitted
from benchmarks.hierarchies.fitted import FITTED, fit
from benchmarks.hierarchies.tree_scores import distance_error

GRAPHS = {"path": nx.path_graph(12), "star": nx.star_graph(11)}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("row", ["flat, fitted", "hyperbolic, fitted"])
def test_a_path_is_a_line_and_a_star_is_a_hub_with_equal_ways(row, graph, monkeypatch):
    monkeypatch.setattr(hierarchy_fitted, "NUM_STEPS", 300)
    monkeypatch.setattr(hierarchy_fitted, "BATCH", 256)
    steps = torch.from_numpy(nx.floyd_warshall_numpy(GRAPHS[graph])).float()
    gaps, loss = fit(FITTED[row](5), steps, lr=0.1, seed=0)
    error = distance_error(gaps(torch.arange(len(steps))), steps.long())
    constant = distance_error(torch.zeros_like(steps), steps.long())
    assert error < constant / 2
    assert error < loss**0.5 + 0.05  # the loss is that of the same pairs, before the last steps
