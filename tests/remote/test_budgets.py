"""Budgets at nodes: whatever a server asks, and whatever becomes of its requests, epsilon holds."""

import copy
import dataclasses
import random

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.tree_bytes import tree_digest
from fedbolic.data import Client
from fedbolic.data.hierarchies.hierarchy_split import ROOT
from fedbolic.federated import (
    DistributedNoise,
    Evaluation,
    FineTune,
    RidgeHead,
    RunStoppedError,
    SumPrivacy,
    Trainer,
)
from fedbolic.federated.secure import SecureSum
from fedbolic.hierarchies import SlotLayout
from fedbolic.methods import PrivateSteps
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.node import Node, make_request
from fedbolic.remote.nodes import Nodes
from flatland import FlatLand, PrivateForman
from flynn import FlyNN, Histogram, Paper, Parallel, Peel
from tests.federated.simple_method import RNG, SMALL, federation, train
from tests.flatland import cases
from tests.hierarchies import forests
from tests.remote.transports import Here, away, identified

library = pytest.importorskip("dp_accounting")

SIZES = (5, 6, 7, 4)
HASH = {"dim": 60, "fan_in": 2, "active": 7}
NOISY = PrivateSteps(SMALL, steps=2, rate=0.5, noise_multiplier=4.0, clip_norm=0.3, dp_delta=1e-3)
SHARES = SumPrivacy(survivors=3, dp_delta=1e-3, noise_multiplier=8.0, clip_norm=0.1, bits=24)
SECURE = SecureSum(DistributedNoise(SMALL, SHARES), threshold=3)


OTHER_DATA = {
    "edge": cases.federation,
    "leaf": lambda: forests.federation({0: ROOT, 1: 0}, [{2: 1, 3: 2}, {4: 1}, {5: 0}, {6: 1}]),
}
"""Federations for mechanisms whose unit is no example; their costs are pure."""


def mechanisms():
    """Methods by name, with the exact cost of one reply and the form of the account's delta."""
    for mechanism in (Histogram(0.4), Peel(0.4, 5), Parallel(0.4, 5), Paper(1.6, 5)):
        method = FlyNN(**HASH, privacy=mechanism)
        cost = mechanism.ledger(method.active, len(SIZES)).total("add/remove")
        yield method, lambda n, cost=cost: n * cost
    yield FlatLand(curvature=PrivateForman(0.4), rounds=2), lambda n: 0.4 * n
    yield SlotLayout(slots="counted", epsilon=0.4), lambda n: 0.4 * n
    yield NOISY, lambda n: sampled(NOISY, n)


def sampled(method, replies):
    """Epsilon of the steps of some replies, at the whole delta of the account."""
    accountant = library.pld.PLDAccountant(value_discretization_interval=1e-3)
    release = library.GaussianDpEvent(method.noise_multiplier)
    accountant.compose(library.PoissonSampledDpEvent(method.rate, release), replies * method.steps)
    return accountant.get_epsilon(1e-2)


class Owner:
    """A node with one account, restarted and attacked.

    Args:
        method: Method in the node's own file.
        data: Federation; the node has the data of its first client.
        folder: Folder for everything that the node keeps.
        budget: Epsilon of the account.
    """

    def __init__(self, method, data, folder, budget):
        self.method, self.data, self.folder, self.run = method, data, folder, 0
        self.accounts = PrivacyAccounts(folder / "accounts", "mine")
        pure = method.traits.privacy_unit in OTHER_DATA or isinstance(method, FlyNN)
        delta = 0.0 if pure else 1e-2
        self.accounts.create(method.traits.privacy_unit, epsilon=budget, dp_delta=delta)
        self.evaluation = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())
        self.restart()

    @property
    def store(self):
        return ClientStateStore(self.folder / f"{self.run}.pt")

    def restart(self, *, broken=False):
        """A new process: data loaded again, under a new content if they are examples."""
        client = self.data.clients[0]
        parts = (copy.deepcopy(part) for part in (client.train, client.validation, client.test))
        client = Client(0, *parts, meta=client.meta)
        store = Broken(self.store.file) if broken else self.store
        self.node = Node(self.method, client, (), self.evaluation, store, self.accounts)


class Broken(ClientStateStore):
    """A disk that fails after the charge and before the reply is stored."""

    def keep(self, name, reply, client_state, *, beside):
        raise OSError("the machine went down")


def attack(owner, tries, draws):
    """Different private payloads that a server has seen, and the requests that were answered."""
    state = Trainer().begin(owner.method, owner.data, RNG).server_state
    phase = owner.method.phase(state)
    message, seen, asked, names = phase.broadcast(state, 0), {}, [], [""]
    for number in range(tries):
        rng = Rng(draws.choice((0, number)))
        request = make_request(phase, message, {}, owner.data.meta, rng, task="update")
        request["client_state"] = draws.choice(names)
        match draws.randrange(12):
            case 0:
                owner.run += 1  # a new run id
                owner.restart()
            case 1:
                owner.restart()
            case 2 if asked:
                request = draws.choice(asked)
            case 3:
                request |= {"purpose": draws.choice(("fine_tuning", "ridge_head"))}
                request |= {"phase": draws.choice(("FineTuningPhase", "HeadExchange"))}
            case 4:
                request |= {"task": "scores"}
            case 5 if "round" in message:
                request["message"] = {**message, "round": draws.randrange(9)}
            case 6:
                owner.restart(broken=True)
            case _:
                owner.restart()
        reply = owner.node.reply(request)
        if "payload" in reply:
            asked.append(request)
            names = [*names[-3:], reply["name"]]
            released = reply["metrics"].get("released/curvature", reply["payload"])
            seen[tree_digest({"x": released})] = request
    return seen, asked


@pytest.mark.parametrize("tries", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("method", "exact"), [pytest.param(m, e, id=str(m)[:40]) for m, e in mechanisms()]
)
def test_a_server_never_gets_more_than_the_budget(method, exact, tries, tmp_path, monkeypatch):
    """12,000 requests over all mechanisms, with ``--slow``."""
    monkeypatch.setattr("fedbolic.remote.node.logger.exception", lambda *_: None)
    data = OTHER_DATA.get(method.traits.privacy_unit, lambda: federation(SIZES))()
    budget = 1.3
    owner = Owner(method, data, tmp_path, budget)
    seen, asked = attack(owner, tries, random.Random(0))
    assert 0 < exact(len(seen)) <= budget
    assert owner.accounts.balance(method.traits.privacy_unit).epsilon <= budget
    owner.run += 1
    owner.restart()
    message = asked[0]["message"]
    new = make_request(method.phase(message), message, {}, data.meta, Rng(-1), task="update")
    assert owner.node.reply(new) == {"error": "ValueError"}  # the attack spent everything
    owner.run -= 1
    before = owner.accounts.balance(method.traits.privacy_unit)
    kept = owner.store._load()["last"]
    if kept:  # a stored reply is free
        again = [each for each in asked if tree_digest(each).hex() == kept]
        owner.restart()
        assert "payload" in owner.node.reply(again[0])
    assert owner.accounts.balance(method.traits.privacy_unit) == before


def test_sums_of_all_runs_are_charged_to_one_account_also_if_they_are_aborted(tmp_path):
    """New run ids are new clients to a secure sum, and the same owner to an account."""
    data, folder = federation(SIZES), tmp_path / "accounts"
    state = Trainer().begin(SECURE, data, RNG).server_state
    size = sum(x.numel() for x in state["inner"]["inner"]["parameters"].values())
    lattice, ledger = SHARES.plan(num_clients=len(SIZES), size=size, rounds=SECURE.rounds)
    budget = 1.2 * ledger.epsilon(SECURE.rounds)
    for i in range(len(SIZES)):
        accounts = PrivacyAccounts(folder, f"client{i}")
        accounts.create("client", epsilon=budget, dp_delta=1e-2, neighbours="replace")
    inputs, finished = 0, []
    for run in range(4):
        method = identified(SECURE, tmp_path / str(run))
        nodes, seen = away(method, data, tmp_path / str(run), accounts=folder)

        def counted(number, request, post=nodes.transport, honest=nodes.transport.reply, run=run):
            nonlocal inputs
            reply = honest(number, request)
            masked = request.get("phase") == "MaskedInput" and "payload" in reply
            inputs += masked and number == 1000
            # two clients are lost after their inputs, so nothing is unmasked
            post.lost = {("train", 999), ("train", 998)} if masked and run == 0 else set()
            return reply

        nodes.transport.reply = counted
        try:
            finished.append(len(list(Trainer(engine=nodes).run(method, seen, RNG))) // 5)
        except RunStoppedError:
            finished.append(0)
    assert finished == [0, 0, 0, 0]  # the aborted sum of the plan is missing at its end
    square = lattice.num_noisy * lattice.variance / (4 * lattice.largest) / inputs
    accountant = library.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(library.GaussianDpEvent(square**0.5))
    assert 0 < accountant.get_epsilon(1e-2) <= budget
    assert accounts.balance("client").epsilon <= budget


def test_a_node_without_an_account_releases_nothing(tmp_path):
    for method, data in [
        (FlyNN(**HASH, privacy=Histogram(0.4)), federation(SIZES)),
        (identified(SECURE, tmp_path), federation(SIZES)),
        (NOISY, federation(SIZES)),
        (FlatLand(curvature=PrivateForman(0.4)), cases.federation()),
    ]:
        for accounts in (None, tmp_path / "empty"):
            post = Here(method, data, tmp_path, accounts=accounts)
            nodes = Nodes(post, len(data.clients))
            with pytest.raises(RunStoppedError, match=r"0 of \d clients replied|fewer than least"):
                train(method, nodes.federation(data.holdout), engine=nodes)
            assert not (tmp_path / "empty").exists()


def test_a_node_with_an_account_releases_nothing_without_noise(tmp_path):
    data = federation(SIZES)
    PrivacyAccounts(tmp_path, "client0").create("example", epsilon=1.0)
    for method in (SMALL, FlyNN(**HASH), SecureSum(SMALL, threshold=3, keys=tmp_path)):
        node = Here(method, data, tmp_path, accounts=tmp_path).nodes[1000]
        state = Trainer().begin(method, data, RNG).server_state
        phase = method.phase(state)
        message = phase.broadcast(state, 0)
        for task in ("update", "scores"):
            request = make_request(phase, message, {}, data.meta, RNG, task=task)
            assert node.reply(request) == {"error": "ValueError"}


def test_noise_at_a_node_is_new_for_every_request_of_one_round(tmp_path):
    """Two models under one noise would give the difference of their gradients."""
    method = dataclasses.replace(NOISY, rate=1e-9)  # all batches are empty
    owner = Owner(method, federation(SIZES), tmp_path, 1e3)
    state = Trainer().begin(method, owner.data, RNG).server_state
    message, found = method.broadcast(state, 0), []
    request = make_request(method, message, {}, owner.data.meta, RNG, task="update")
    name = owner.node.reply(request)["name"]
    for factor in (1.0, 2.0):
        other = tree.map(lambda x, f=factor: f * x, message["method"]["parameters"])
        changed = {**message, "method": {**message["method"], "parameters": other}}
        same = {**request, "message": changed, "client_state": name}
        found.append(owner.node.reply(same)["payload"]["delta"])
    one, two = (torch.cat([x.flatten() for x in delta.values()]) for delta in found)
    assert not torch.allclose(one, two)
