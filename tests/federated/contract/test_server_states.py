"""Forged server states are refused for every method, and every honest state is accepted."""

import math
from pathlib import Path

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.checksums import DamagedError
from fedbolic.core.rng import Rng
from fedbolic.data import IID, HalfPlanes, Partitioned
from fedbolic.federated import DistributedNoise, LocalTraining, SumPrivacy
from fedbolic.federated.contract.server_states import check_server_state
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import ClosedFormHead, FedAvg, PrivateSteps
from fedbolic.nn.network.backbone import MLP
from fedbolic.testing import MethodRun
from fedhull import EuclideanBoundary, FedHull
from flynn import FlyNN, ZScores
from tests.subjects import QUICK, recorded

PLAIN = FedAvg(MLP((4,)), rounds=2, local=LocalTraining(1, 8))
NOISY = DistributedNoise(PLAIN, SumPrivacy(survivors=2, dp_delta=1e-3, noise_multiplier=1.0))
WRAPPED = {
    "DP-SGD": PrivateSteps(PLAIN, steps=2),
    "noise in a secure sum": SecureSum(NOISY, threshold=2),
    "a head in a secure sum": SecureSum(ClosedFormHead(PLAIN), threshold=2),
    "FlyNN of z-scores": FlyNN(dim=64, scaling=ZScores(1.0)),
    "hulls in a secure sum": SecureSum(FedHull(boundary=EuclideanBoundary()), threshold=2),
}


@pytest.fixture(scope="module", params=[*QUICK, *WRAPPED])
def case(request):
    """Method, initial state as a loaded model has it, states of a tiny run, and a client's id."""
    if request.param in WRAPPED:
        hulls = HalfPlanes(num_points=200, partition=IID(3))
        plain = Partitioned(partition=IID(3), num_train=60, num_test=20)
        data = (hulls if "hulls" in request.param else plain).load(Rng(0))
        run = MethodRun(WRAPPED[request.param], data)
    else:
        run = recorded(request.param)
    initial = run.method.init(run.data.meta, run.rng.at("init"))
    states = [x.server_state for x in run.exchanges] + [run.exchanges[-1].next]
    return run.method, initial, states, run.data.clients[0].id


def changed(state, path, value):
    """The state with another value at a path; without the entry for ``None``."""
    first, _, rest = path.partition("/")
    if rest:
        return {**state, first: changed(state[first], rest, value)}
    kept = {name: x for name, x in state.items() if name != first}
    return kept if value is None else {**kept, first: value}


def forged(leaf):
    """Other leaves for a leaf."""
    yield from (None, "x" if not isinstance(leaf, str) else 1, {"x": 1}, [leaf])
    if isinstance(leaf, torch.Tensor):
        yield from (1.5, leaf.unsqueeze(0), leaf.to(torch.complex64))
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel():
        yield from (torch.full_like(leaf, value) for value in (math.nan, math.inf))
        yield torch.cat([leaf.reshape(1, -1)] * 2, dim=1).flatten()
        if leaf.dim():
            yield leaf[:-1]  # a class, a client or a feature less


def refused(case, state):
    method, initial, _, client_id = case
    with pytest.raises(DamagedError, match=r"^state\.pt holds no server state of "):
        check_server_state(Path("state.pt"), method, state, initial, client_id)


def test_every_state_of_an_honest_run_is_accepted(case):
    method, initial, states, client_id = case
    for state in states:
        check_server_state(Path("state.pt"), method, state, initial, client_id)


def test_other_leaves_and_branches_than_the_initial_ones_are_refused(case):
    _, initial, (*_, last), _ = case
    for path, leaf in tree.leaves(initial):
        for value in forged(leaf):
            refused(case, changed(last, path, value))
    for name, part in initial.items():
        if isinstance(part, dict):
            for value in (None, 1, torch.zeros(3), [part]):
                refused(case, changed(last, name, value))
    for state in (None, [], torch.zeros(3), {}, {**last, 7: 1}):
        refused(case, state)
