"""GCFL and GCFL+ when clients are missing; their algorithms are in ``tests/conformance``."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import HOLDOUT
from fedbolic.federated import Cohort, Update
from flatland import GCN, Gcfl, GradientNorms, ShiftedCosines, UpdateCosines
from flatland.rivals.affinities import minimum_cut
from tests.conformance.gcfl import AUTHORS, AUTHORS_PLUS, AuthorsServer, Server
from tests.conformance.graphs import Learner, six_graphs
from tests.conformance.loop import gap
from tests.flatland.cases import ODD, federation
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, work

NET = GCN((6, 4), dropout=0.0)
METHOD = Gcfl(NET, rounds=3, warmup=1)
PLUS = dataclasses.replace(METHOD, affinity=GradientNorms(2))
SIX = [*ALIKE, *ALIKE[:2]]


def invented(method, server_state, round, present, *, noise=0.3):
    """Updates of two groups of clients that pull in opposite directions, with invented norms."""
    generator = torch.Generator().manual_seed(round)
    payloads = {}
    for i in present:
        message = method.broadcast(server_state, i)
        delta = {
            name: (1 if i % 2 else -1) * torch.ones_like(x)
            + noise * torch.randn(x.shape, generator=generator, dtype=x.dtype)
            for name, x in message["parameters"].items()
        }
        norm = torch.tensor((round + 0.1 * i) ** (2.0 if i % 2 else 0.5), dtype=torch.float64)
        payloads[i] = {"delta": delta, "gradient_norm": norm}
        if not method.affinity.window:
            del payloads[i]["gradient_norm"]
    return payloads


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found_at_cosines_cut_at_zero_and_lost_at_cosines_plus_one(seed):
    """Two groups of 4 to 6 clients with cosines near 0.5 within and -0.5 between them."""
    generator = torch.Generator().manual_seed(seed)
    size = 4 + seed % 3
    groups = torch.tensor([1.0] * size + [-1.0] * size, dtype=torch.float64)
    order = torch.randperm(2 * size, generator=generator)
    groups = groups[order]
    noise = torch.randn(2 * size, 5000, generator=generator, dtype=torch.float64)
    common = torch.randn(5000, generator=generator, dtype=torch.float64)
    updates, none = groups[:, None] * common + noise, torch.zeros(2 * size, 0)
    planted = [sorted((groups == side).nonzero()[:, 0].tolist()) for side in (1, -1)]
    assert sorted(minimum_cut(UpdateCosines().matrix(updates, none))) == sorted(planted)
    assert 1 in map(len, minimum_cut(ShiftedCosines().matrix(updates, none)))


def both_served(method, server_state, slow, payloads):
    """The server's state after a round, which must be that of the loop's server."""
    updates = [(i, Update(payload)) for i, payload in payloads.items()]
    server_state = method.server_update(server_state, method.aggregator.aggregate(updates))
    norms = {i: float(of.get("gradient_norm", 0.0)) for i, of in payloads.items()}
    slow.serve({i: of["delta"] for i, of in payloads.items()}, norms)
    clusters = server_state["clusters"].values()
    assert [of["members"].tolist() for of in clusters] == slow.clusters
    for i, model in slow.models.items():
        assert_close(method.broadcast(server_state, i)["parameters"], model)
    return server_state


def test_a_cluster_without_training_data_keeps_its_parameters():
    """One of a single client, and one that is large enough to be cut."""
    method, data = dataclasses.replace(METHOD, warmup=0), federation(SIX)
    server_state = method.admit(begin(method, data), [4, 5, 0, 0, 0, 0])
    parameters = server_state["clusters"]["0"]["parameters"]
    clusters = {
        str(place): {"members": torch.tensor(members), "parameters": parameters}
        for place, members in enumerate(([0, 1], [2], [3, 4, 5]))
    }
    server_state = {**server_state, "clusters": clusters}
    payloads = invented(method, server_state, 1, range(6))
    for i in range(2, 6):
        payloads[i]["delta"] = tree.map(torch.zeros_like, parameters)
    updates = [(i, Update(payload)) for i, payload in payloads.items()]
    found = method.server_update(server_state, method.aggregator.aggregate(updates))["clusters"]
    assert [of["members"].tolist() for of in found.values()] == [[0, 1], [2], [3, 4, 5]]
    moved = [gap(of["parameters"], parameters) > 0 for of in found.values()]
    assert moved == [True, False, False]


@pytest.mark.parametrize("units", ["first round", "absolute"])
@pytest.mark.parametrize("method", [METHOD, PLUS], ids=["GCFL", "GCFL+"])
def test_the_server_is_that_of_the_papers_algorithm_when_clients_are_missing(method, units):
    method = dataclasses.replace(method, units=units, mean_bound=0.9 if units[0] == "f" else 5.0)
    data = federation(SIX)
    server_state = method.admit(begin(method, data), data.sizes)
    slow = Server(method, method.broadcast(server_state, 0)["parameters"], data.sizes)
    present = [range(6), range(6), (0, 1, 2, 5), range(6), range(1, 6), range(6), range(6)]
    for round, ids in enumerate(present, 1):
        payloads = invented(method, server_state, round, ids)
        server_state = both_served(method, server_state, slow, payloads)
    assert len(slow.clusters) > 1
    if not method.affinity.window:
        assert sorted(slow.clusters)[0] == [0, 2, 4]


@pytest.mark.parametrize(
    ("method", "server", "bound", "least"),
    [
        # the bound of GCFL lies above the plain means of these updates, and below the weighted ones
        (AUTHORS, AuthorsServer, 3.3, 2),
        (METHOD, Server, 3.3, 1),
        (AUTHORS_PLUS, AuthorsServer, 20.0, 4),
        (PLUS, Server, 20.0, 4),
    ],
    ids=["authors' GCFL", "GCFL", "authors' GCFL+", "GCFL+"],
)
def test_the_server_is_that_of_both_forms_in_many_rounds(method, server, bound, least):
    settings = {"mean_bound": bound, "units": "absolute", "sharing": {"*": "shared"}, "warmup": 2}
    method, data = dataclasses.replace(method, **settings), federation([*SIX, *SIX[:3]])
    server_state = method.admit(begin(method, data), data.sizes)
    slow = server(method, method.broadcast(server_state, 0)["parameters"], data.sizes)
    for round in range(1, 9):
        payloads = invented(method, server_state, round, range(9), noise=1.0)
        server_state = both_served(method, server_state, slow, payloads)
    assert len(slow.clusters) >= least


@pytest.mark.parametrize("normed", ["*", "body.*"])
def test_a_payload_holds_the_norm_of_the_last_gradient(normed):
    data, method = six_graphs(), dataclasses.replace(AUTHORS_PLUS, normed=normed)
    method = dataclasses.replace(method, sharing={"*": "shared"})
    server_state = begin(method, data)
    for i, (update, _) in work(method, data.clients, server_state).items():
        received = method.broadcast(server_state, i)["parameters"]
        learner = Learner(method, data.clients[i], received)
        learner.train(received)
        counted = [x.grad.flatten() for n, x in learner.p.items() if n.startswith(normed[:-1])]
        assert_close(update.payload["gradient_norm"], torch.cat(counted).norm())


def test_no_cluster_of_two_and_no_early_round_is_split():
    data = federation(ALIKE[:2])
    method = dataclasses.replace(METHOD, warmup=0, mean_bound=9.0)
    server_state = method.admit(begin(method, data), data.sizes)
    for round in (1, 2):
        payloads = invented(method, server_state, round, range(2))
        updates = [(i, Update(payload)) for i, payload in payloads.items()]
        server_state = method.server_update(server_state, method.aggregator.aggregate(updates))
    assert len(server_state["clusters"]) == 1


def test_the_server_has_no_model_of_all():
    data = federation(ALIKE)
    server_state = begin(METHOD, data)
    assert METHOD.evaluate(METHOD.broadcast(server_state, HOLDOUT), data.holdout, {}, Rng(0)) == {}


@pytest.mark.parametrize("graphs", [SIX, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize("method", [METHOD, PLUS], ids=["GCFL", "GCFL+"])
@pytest.mark.parametrize("cohort", [1.0, 0.6])
def test_a_block_of_clients_is_each_of_them_alone(method, graphs, cohort, caplog):
    network = dataclasses.replace(NET, dropout=0.5)
    method = dataclasses.replace(method, network=network, proximal=0.1, mean_bound=2.0)
    agree(method, federation(graphs), caplog, cohort=Cohort(cohort))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_bound": 0.0},
        {"largest_bound": -1.0},
        {"warmup": -1},
        {"units": "other"},
        {"weights": "other"},
        {"sharing": {"*": "personal"}},
        {"bounded_mean": "other"},
        {"forgets": "other"},
        {"normed": "convolution.*"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(Exception, match=next(iter(wrong))):
        Gcfl(**wrong).init(federation(ALIKE).meta, Rng(0))
