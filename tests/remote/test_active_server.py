"""A lying server, replayed message by message: it learns nothing from its lies."""

import dataclasses
import json

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.federated import RunStoppedError, Trainer
from fedbolic.federated.aggregators.update import Update
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.node import make_request
from flynn import FlyNN, Paper
from tests.federated.secure.dishonest import FIVE, gated
from tests.federated.secure.parties import ROWS, TEN, Numbers, plain, summed
from tests.federated.simple_method import RNG, federation, train
from tests.remote.transports import Here, away, identified
from tests.seeded import SeededKeys

secure = pytest.importorskip("fedbolic.federated.secure")
METHOD = secure.SecureSum(Numbers(ROWS), threshold=7)


class Adversary:
    """A server that forms secure sums over chosen clients and plays some of the clients itself.

    Args:
        post: Transport to the nodes; client ``i`` is node 1000 - i.
        method: Method that the server uses.
        meta: Public facts that the server claims.
        played: Ids of the clients that the server plays, with its own keys.
    """

    def __init__(self, post, method, meta, *, played=()):
        self.post, self.method, self.meta = post, method, meta
        self.client_states: dict[int, Tree] = {client_id: {} for client_id in played}
        self.rng = RNG
        self.errors = set()

    def asked(self, phase, message, client_id, client_state):
        """Reply of a node, or of a client that the server plays."""
        if client_id not in self.client_states:
            said = make_request(
                phase, message, {"name": client_state}, self.meta, self.rng, task="update"
            )
            node = 1000 - client_id
            (reply,) = self.post.exchange("train", {node: said}, group="", timeout=1).values()
            return reply
        credulous = dataclasses.replace(self.meta, num_clients=100)
        client = dataclasses.replace(TEN.clients[-1], id=client_id, meta=credulous)
        zeros = Numbers(((0, 0, 0),) * (client_id + 1))
        method = dataclasses.replace(self.method, method=zeros, keys=None)  # it has not theirs
        kept = self.client_states[client_id]
        update, self.client_states[client_id] = method.local_update(message, client, kept, self.rng)
        return {"payload": update.payload, "weight": update.weight, "name": ""}

    def sum(self, members, session, *, client_state=None, rng=RNG):
        """The sum over some clients by the protocol, or ``None`` if a client refuses.

        Args:
            members: Ids of the clients.
            session: Number of the secure sum.
            client_state: Name of the client state in the first request; later requests use the
                names that the nodes return.
            rng: Beginning of the random stream that the server names.
        """
        self.rng = rng.at("round", session, "exchange", 2)
        server_state, names = {**self.method.init(self.meta, RNG), "session": session}, {}
        while server_state["stage"] != "cards" or not names:
            phase = self.method.phase(server_state)
            given = {
                i: self.asked(
                    phase, phase.broadcast(server_state, i), i, names.get(i, client_state or "")
                )
                for i in members
            }
            if refused := {i for i, reply in given.items() if "error" in reply}:
                self.errors |= refused
                return None
            names = {i: reply["name"] for i, reply in given.items()}
            updates = ((i, Update(a["payload"], a["weight"])) for i, a in given.items())
            server_state = phase.server_update(server_state, phase.aggregator.aggregate(updates))
        return summed(server_state)


def test_a_server_does_not_know_the_seed_of_local_work(tmp_path):
    """It could repeat the work of all clients but one, and compare the sums."""
    method = identified(gated(), tmp_path, 5)

    def read(folder, secret, seed):
        post = Here(method, FIVE, tmp_path / folder, secret=secret)
        return Adversary(post, method, FIVE.meta).sum(range(5), 1, rng=Rng(seed))

    assert read("a", 7, 0) == read("b", 7, 1) != read("c", 8, 1)
    assert read("d", None, 0) != read("e", None, 0)
    stores = [ClientStateStore(tmp_path / "d" / str(i) / "client_state.pt") for i in range(5)]
    assert len({store.seed() for store in stores}) == 5
    assert min(store.seed() for store in stores) > 2**200


def test_the_adversary_gets_the_sum_of_all_where_it_is_honest(tmp_path):
    method = identified(METHOD, tmp_path)
    server = Adversary(Here(method, TEN, tmp_path), method, TEN.meta)
    assert server.sum(range(10), 1) == plain(ROWS, range(10))


@pytest.mark.parametrize("threshold", [None, 7])
def test_a_server_that_says_there_are_two_clients_gets_no_sum_of_a_pair(threshold, tmp_path):
    """The numbers of three clients follow from the sums of their three pairs."""
    method = identified(dataclasses.replace(METHOD, threshold=threshold), tmp_path)
    two = dataclasses.replace(TEN.meta, num_clients=2)
    lying = dataclasses.replace(method, threshold=None)
    server = Adversary(Here(method, TEN, tmp_path), lying, two)
    for session, pair in enumerate([(0, 1), (1, 2), (0, 2)], 1):
        assert server.sum(pair, session) is None
    assert server.errors == {0, 1, 2}


def test_a_server_that_told_the_truth_at_first_gets_no_pair_later(tmp_path):
    post = Here(identified(METHOD, tmp_path), TEN, tmp_path)
    assert Adversary(post, METHOD, TEN.meta).sum(range(10), 1) is not None
    lying = dataclasses.replace(METHOD, threshold=2)
    two = dataclasses.replace(TEN.meta, num_clients=2)
    for meta in (TEN.meta, two):
        assert Adversary(post, lying, meta).sum((0, 1), 2) is None


@pytest.mark.parametrize("client_state", ["", "known"])
def test_a_server_cannot_play_the_others_to_a_client_that_met_them(client_state, tmp_path):
    """The server would know all summands but one. An empty client state means no earlier sum."""
    post = Here(identified(METHOD, tmp_path), TEN, tmp_path)
    server = Adversary(post, METHOD, TEN.meta)
    server.sum(range(10), 1)
    named = post.nodes[1000].store._load()["last"] if client_state else ""
    playing = Adversary(post, METHOD, TEN.meta, played=range(1, 10))
    assert playing.sum(range(10), 2, client_state=named) is None
    assert playing.errors == {0}


@pytest.mark.parametrize("with_keys", [True, False])
def test_a_server_that_plays_the_others_in_its_first_sum_reads_nobody(with_keys, tmp_path):
    """Every new run is a first sum: without keys, a node cannot tell who the others are."""
    method = identified(METHOD, tmp_path) if with_keys else METHOD
    playing = Adversary(Here(method, TEN, tmp_path), METHOD, TEN.meta, played=range(1, 10))
    assert playing.sum(range(10), 1) is None
    assert playing.errors == {0}


def test_a_deployment_without_long_term_keys_is_refused(tmp_path):
    nodes, seen = away(METHOD, TEN, tmp_path)
    with pytest.raises(ValueError, match="SecureSum needs keys where clients are nodes"):
        Trainer(engine=nodes).begin(METHOD, seen, RNG)
    assert train(METHOD, TEN)  # in a simulation the server is trusted


def test_a_server_cannot_play_clients_of_whom_there_are_none(tmp_path):
    post = Here(identified(METHOD, tmp_path), TEN, tmp_path)
    server = Adversary(post, METHOD, TEN.meta)
    server.sum(range(10), 1)
    named = post.nodes[1000].store._load()["last"]
    strangers = range(10, 19)
    playing = Adversary(post, METHOD, TEN.meta, played=strangers)
    assert playing.sum((0, *strangers), 2, client_state=named) is None
    assert playing.errors == {0}


@pytest.mark.parametrize("lie", [{"num_clients": 1}, {"num_classes": 2}, {"input_shape": (3,)}])
def test_private_noise_does_not_follow_from_what_the_server_says(lie, tmp_path):
    """A party spends epsilon / num_clients: with one claimed client it would spend all of it."""
    method = FlyNN(dim=300, fan_in=2, active=7, privacy=Paper(1.0, 5))
    data = federation((5,) * 10)
    PrivacyAccounts(tmp_path, "client0").create("example", epsilon=1.0)
    post = Here(method, data, tmp_path, accounts=tmp_path)
    server_state = method.admit(method.init(data.meta, RNG), data.sizes)
    for meta in (dataclasses.replace(data.meta, **lie), data.meta):
        asked = make_request(
            method, method.broadcast(server_state, 0), {}, meta, RNG, task="update"
        )
        (reply,) = post.exchange("train", {1000: asked}, group="", timeout=1).values()
        assert ("error" in reply) == (meta != data.meta)


def test_what_a_node_was_told_at_first_stays(tmp_path):
    """More classes than a node holds may be true; but their number must not change later."""
    data, method = federation((5,) * 4), Numbers(ROWS)
    post = Here(method, data, tmp_path)

    def reply_with(num_classes):
        meta = dataclasses.replace(data.meta, num_classes=num_classes)
        asked = make_request(method, {"round": 0}, {}, meta, RNG, task="scores")
        return post.nodes[1000].reply(json.loads(json.dumps(asked)))

    assert "error" not in reply_with(4)
    assert "error" in reply_with(5)
    assert "error" not in reply_with(4)


def test_a_deployment_whose_protection_follows_from_a_number_of_clients_is_refused(tmp_path):
    method = dataclasses.replace(METHOD, threshold=None)
    nodes, seen = away(method, TEN, tmp_path)
    with pytest.raises(ValueError, match="SecureSum needs a threshold where clients are nodes"):
        Trainer(engine=nodes).begin(method, seen, RNG)
    assert train(method, TEN)  # in a simulation the server is trusted


def test_a_deployment_of_seeded_noise_is_refused(tmp_path):
    method = FlyNN(dim=300, fan_in=2, active=7, privacy=Paper(1.0, 5), noise=SeededKeys())
    nodes, seen = away(method, federation((5, 6)), tmp_path)
    with pytest.raises(ValueError, match="a server may know"):
        Trainer(engine=nodes).begin(method, seen, RNG)
    assert torch.is_tensor(train(method, federation((5, 6)))[0][0].server_state["counts"])


def test_two_halves_are_not_enough(tmp_path):
    """The nodes enforce their own threshold, whatever the server claims."""
    lying = dataclasses.replace(METHOD, threshold=5)
    method = identified(METHOD, tmp_path)
    server = Adversary(Here(method, TEN, tmp_path), lying, TEN.meta)
    assert server.sum(range(5), 1) is None
    with pytest.raises(RunStoppedError, match="threshold is 7"):
        Adversary(Here(method, TEN, tmp_path / "new"), method, TEN.meta).sum(range(5), 1)
