"""The loops by hand of the benchmark of engines do the work of the engines, round after round."""

import dataclasses

import pytest
import torch

from benchmarks.engines import papers, plain_loop
from benchmarks.engines.candidates import RNG, federation, seeds
from fedbolic.core import tree
from fedbolic.federated import Sequential, Trainer

SMALL = dataclasses.replace(papers.WORK, num_clients=3)
KEPT = {"SCAFFOLD": "own_variate", "Ditto": "own_parameters"}
"""Names of the client states."""


@pytest.mark.parametrize("name", papers.PAPERS)
def test_a_loop_by_hand_does_the_work_of_the_engines(name, monkeypatch):
    monkeypatch.setattr(papers, "WORK", SMALL)
    paper = papers.PAPERS[name]
    data = [(x.double(), y) for x, y in plain_loop.examples(SMALL)]
    clients = federation(SMALL, data)
    start = paper.method.init(clients.meta, RNG.at("init"))
    loop = paper.loop(data, tree.to(start, "cpu", torch.float64))
    loop.network.double()
    rounds = Trainer(Sequential()).run(paper.method, clients, RNG)
    for index in (1, 2, 3):  # SCAFFOLD's first round has no correction yet
        loop.round(seeds(SMALL, index))
        state, _ = next(rounds)
    torch.testing.assert_close(state.server_state["parameters"], loop.now, rtol=0, atol=1e-9)
    for i, own in enumerate(getattr(loop, "own", ())):
        kept = state.client_states[i][KEPT[name]]
        torch.testing.assert_close(kept, own, rtol=0, atol=1e-9)
