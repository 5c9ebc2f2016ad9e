"""Clients on remote nodes with client states on their own disks give the results of Sequential."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
from typing_extensions import override

from fedbolic.data import BalancedTree, PartitionedHierarchy, Subtrees
from fedbolic.federated import (
    Clip,
    Cohort,
    Engine,
    Evaluation,
    Failure,
    FineTune,
    RidgeHead,
    RunStoppedError,
    Sequential,
    Trainer,
    TrainerState,
)
from fedbolic.federated.contract.capabilities import OneTimeSecrets
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.methods.spherefed import SphereFed
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.node import handshake, merge_handshakes
from fedbolic.remote.nodes import Nodes
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    Averaged,
    assert_near,
    assert_same,
    federation,
    saved_and_loaded,
    train,
)
from tests.remote.transports import Here, away, identified, without_data
from tests.subjects import QUICK, subject

PERSONAL = dataclasses.replace(SMALL, sharing={"head.*": "personal", "*": "shared"})


def without_scores(rows):
    """Rows of nodes that a secure sum protects, which tell no scores."""
    return [row for row in rows if not row.name.startswith(("test/", "validation/"))]


def assert_as_sequential(method, data, folder, *, cohort=Cohort(), **settings):
    """Assert the states and rows of Sequential, up to rounding since memory layouts differ."""
    (*_, plain), rows = train(method, data, cohort=cohort, **settings)
    kept = {name: settings[name] for name in ("channels", "evaluation") if name in settings}
    nodes, seen = away(method, data, folder, **kept)
    assert without_data(seen)
    (*_, far), new = train(method, seen, engine=nodes, cohort=cohort, **settings)
    assert_near(far.server_state, plain.server_state, 1e-12)
    rows = without_scores(rows) if isinstance(method, OneTimeSecrets) else rows
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=1e-12)
    return plain, far, nodes


@pytest.mark.parametrize("kept", ["personal", "reset"])
def test_parts_of_a_table_may_differ_in_length(kept, tmp_path):
    """Two of the three clients know equally many nodes, which does not make the third unusual."""
    method = HierarchyEmbedding(dim=2, rounds=2, optimizer_state=kept)
    data = PartitionedHierarchy(BalancedTree(2, 5), Subtrees(3)).load(RNG)
    known = [len(client.train.all()["x"].unique()) for client in data.clients]
    assert sorted(map(known.count, known)) == [1, 2, 2]
    assert_as_sequential(method, data.to("cpu", torch.float64), tmp_path)


@pytest.mark.parametrize("name", QUICK)
def test_nodes_do_what_sequential_does(name, tmp_path):
    method, data = subject(name)
    assert_as_sequential(method, data.to("cpu", torch.float64), tmp_path)


def test_memories_stay_on_the_disks_of_their_clients(tmp_path):
    data = federation(SIZES)
    plain, far, nodes = assert_as_sequential(PERSONAL, data, tmp_path)
    for client_id, client_state in plain.client_states.items():
        assert far.client_states[client_id].keys() == {"name"}
        store = nodes.transport.nodes[1000 - client_id].store
        assert_same(store.client_state(far.client_states[client_id]["name"]), client_state)
        assert store.file.stat().st_mode & 0o077 == 0


def test_a_sample_of_clients_is_the_one_of_sequential(tmp_path):
    assert_as_sequential(PERSONAL, federation(SIZES), tmp_path, cohort=Cohort(0.5))


def test_channels_act_before_an_update_leaves(tmp_path):
    data = federation(SIZES)
    _, _, nodes = assert_as_sequential(SMALL, data, tmp_path, channels=(Clip(1e-3),))
    for node in nodes.transport.nodes.values():
        left = node.store.reply(node.store._load()["last"])
        norms = [x.double().square().sum() for x in left["payload"]["delta"].values()]
        assert sum(norms).sqrt() <= 1e-3 * (1 + 1e-12)
    number, request = next(r[1:] for r in nodes.transport.requests if r[0] == "train")
    for purpose in ("handshake", "scores", "other", "", 0):  # channels are for training
        reply = nodes.transport.reply(number, {**request, "purpose": purpose})
        assert reply == {"error": "ValueError"}


def test_fine_tuning_and_the_ridge_head_happen_at_the_nodes(tmp_path):
    evaluation = Evaluation(fine_tuning=FineTune(epochs=2), ridge_head=RidgeHead())
    assert_as_sequential(SMALL, federation(SIZES), tmp_path, evaluation=evaluation)


def test_a_phase_that_the_state_tells_is_found_by_its_message(tmp_path):
    method = SphereFed(SMALL.backbone, rounds=3, local=SMALL.local)
    assert_as_sequential(method, federation((9, 7, 12)), tmp_path)


def positions_of(method, data, engine):
    """The states of a run, one after another, with the rows of each."""
    return Trainer(engine=engine).run(method, data, RNG)


def test_a_server_that_forgot_an_exchange_goes_on_as_if_it_had_not(tmp_path):
    data = federation(SIZES)
    (*_, whole), rows = train(PERSONAL, data)
    nodes, seen = away(PERSONAL, data, tmp_path)
    run = positions_of(PERSONAL, seen, nodes)
    first, _ = next(run)
    next(run)  # the server forgets all of this exchange, the nodes nothing
    known = TrainerState.restore(saved_and_loaded(first.checkpoint()))
    (*_, last), new = train(PERSONAL, seen, engine=nodes, state=known)
    assert_same(last.server_state, whole.server_state)
    assert new == [row for row in rows if row.round > 1]


def test_who_is_asked_the_same_again_does_not_work_twice(tmp_path):
    data, worked = federation(SIZES), []

    @dataclasses.dataclass(frozen=True)
    class Noted(Averaged):
        def local_update(self, message, client, client_state, rng):
            worked.append(client.id)
            return super().local_update(message, client, client_state, rng)

    nodes, seen = away(Noted(rounds=1), data, tmp_path)
    (first,), _ = train(Noted(rounds=1), seen, engine=nodes)
    (again,), _ = train(Noted(rounds=1), seen, engine=nodes)
    assert sorted(worked) == [0, 1, 2, 3]
    assert_same(again.server_state, first.server_state)


@dataclasses.dataclass(frozen=True)
class Absent(Engine):
    """Sequential without the reply of one client in one round."""

    round: int
    client: int

    @override
    def run(self, exchange):
        for client, update, client_state in Sequential().run(exchange):
            if client.id == self.client and exchange.rng.path[:2] == ("round", self.round):
                yield client, Failure(RuntimeError("lost")), exchange.state(client)
            else:
                yield client, update, client_state


def test_a_client_whose_answer_is_lost_goes_on_from_where_the_server_thinks_it_is(tmp_path):
    data = federation(SIZES)
    (*_, expected), rows = train(PERSONAL, data, engine=Absent(round=2, client=2))
    nodes, seen = away(PERSONAL, data, tmp_path)
    new = []
    for state, found in positions_of(PERSONAL, seen, nodes):
        nodes.transport.lost = {("train", 998)} if state.round == 1 else set()
        new += found
    assert_same(state.server_state, expected.server_state)
    assert new == rows


def test_a_node_that_is_gone_is_left_out_and_may_come_back(tmp_path, caplog):
    data = federation(SIZES)
    (*_, expected), _ = train(PERSONAL, data, engine=Absent(round=2, client=2))
    nodes, seen = away(PERSONAL, data, tmp_path)
    for state, rows in positions_of(PERSONAL, seen, nodes):
        scored = {row.client for row in rows if row.name == "test/accuracy"} - {None}
        assert scored == ({0, 1, 3} if state.round == 2 else {0, 1, 2, 3})
        nodes.transport.gone = {998} if state.round == 1 else set()
    assert "client 2 is left out of this exchange: NodeError: its node is offline" in caplog.text
    assert_same(state.server_state, expected.server_state)


def test_with_fewer_than_the_least_a_run_stops_where_it_was_and_goes_on_later(tmp_path):
    data = federation(SIZES)
    (*_, whole), rows = train(PERSONAL, data)
    nodes, seen = away(PERSONAL, data, tmp_path, least=4)
    run = positions_of(PERSONAL, seen, nodes)
    state, _ = next(run)
    nodes.transport.lost = {("evaluate", 997)}
    with pytest.raises(RunStoppedError, match=r"3 of 4 clients replied, .* least=4: \{3: 'lost'"):
        next(run)
    nodes.transport.lost = set()
    (*_, last), new = train(PERSONAL, seen, engine=nodes, state=state)
    assert_same(last.server_state, whole.server_state)
    assert new == [row for row in rows if row.round > 1]


def test_what_could_not_be_loaded_again_is_not_kept(tmp_path):
    store = ClientStateStore(tmp_path / "client_state.pt")
    store.keep("one", {"n": 1}, {"x": 1.0}, earlier="")
    with pytest.raises(ValueError, match="cannot be loaded again"):
        store.keep("two", {"n": 2}, {"x": np.float64(2)}, earlier="one")
    assert store.last() == {"x": 1.0}
    assert store.reply("two") is None
    assert [file.name for file in tmp_path.iterdir()] == ["client_state.pt"]


def secure_sum(folder):
    method = pytest.importorskip("fedbolic.federated.secure").SecureSum(PERSONAL, threshold=3)
    return identified(method, folder)


def test_a_secure_sum_is_formed_by_nodes_too(tmp_path):
    assert_as_sequential(secure_sum(tmp_path), federation(SIZES), tmp_path)


def test_a_server_may_forget_any_exchange_of_a_secure_sum(tmp_path):
    data, method = federation(SIZES), secure_sum(tmp_path)
    (*_, whole), rows = train(method, data)
    nodes, seen = away(method, data, tmp_path)
    state, new, exchanges = None, [], 0
    while state is None or state.round < method.rounds:
        for _ in range(2):
            after, found = next(Trainer(engine=nodes).run(method, seen, RNG, state))
        state, exchanges = after, exchanges + 1
        new += found
    assert exchanges == 5 * method.rounds
    assert_near(state.server_state["inner"], whole.server_state["inner"], 1e-12)
    assert [row[:3] for row in new] == [row[:3] for row in without_scores(rows)]


def test_a_server_cannot_take_a_client_of_a_secure_sum_back(tmp_path):
    data, method = federation((7, 4, 12, 5, 6)), secure_sum(tmp_path)
    nodes, seen = away(method, data, tmp_path)
    train(dataclasses.replace(method, method=dataclasses.replace(PERSONAL, rounds=1)), seen,
          engine=nodes)  # fmt: skip
    node = nodes.transport.nodes[1000]
    request = [each for _, n, each in nodes.transport.requests if n == 1000 and "phase" in each]
    (survivors,) = [each for each in request if each["phase"] == "ConsistencyCheck"]
    others = {**survivors["message"], "survivors": survivors["message"]["survivors"][:-1]}
    assert "payload" not in node.reply(survivors)  # its secrets are deleted, and so is its reply
    assert node.reply({**survivors, "message": others}) == {"error": "ValueError"}
    last = [each for each in request if each["task"] == "update"][-1]
    assert last["phase"] == "Unmasking"
    assert "payload" in node.reply(last)  # repeating the same reply reveals nothing new
    assert node.reply({**last, "seed": 5}) == {"error": "ValueError"}


def test_a_server_gets_nothing_masked_twice_by_another_purpose(tmp_path, monkeypatch):
    """A reply that is not for training would be stored nowhere, and its masks used again."""
    data, method = federation((7, 4, 12, 5, 6)), secure_sum(tmp_path)
    method = dataclasses.replace(method, method=dataclasses.replace(PERSONAL, rounds=1))
    nodes, seen = away(method, data, tmp_path)
    reply, found = nodes.transport.reply, []

    def curious(number, request):
        if request["task"] == "update":
            found.append(reply(number, {**request, "purpose": "other"}))
        return reply(number, request)

    monkeypatch.setattr(nodes.transport, "reply", curious)
    train(method, seen, engine=nodes)
    assert len(found) > 5
    assert all(each == {"error": "ValueError"} for each in found)


def test_an_error_leaves_a_client_by_its_class_alone(tmp_path, caplog):
    data = federation(SIZES)
    nodes, seen = away(Averaged(faults={2: "raises"}), data, tmp_path)
    with caplog.at_level(logging.WARNING, "fedbolic"):
        train(Averaged(faults={2: "raises"}), seen, engine=nodes)
    said = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert said == ["client 2 is left out of this exchange: NodeError: RuntimeError"] * 2


@pytest.mark.parametrize("fault", ["nan", "shape", "nan state", "inf weight", "extra"])
def test_what_cannot_be_used_does_not_leave_a_client(fault, tmp_path):
    data = federation(SIZES)
    method = Averaged(faults={2: fault})
    (*_, expected), _ = train(method, data)
    nodes, seen = away(method, data, tmp_path)
    (*_, last), _ = train(method, seen, engine=nodes)
    assert_same(last.server_state, expected.server_state)
    assert nodes.transport.nodes[998].store.last()["turns"] == 1


def test_a_node_of_another_method_refuses_to_work(tmp_path):
    data = federation(SIZES)
    nodes, seen = away(SMALL, data, tmp_path)
    with pytest.raises(RunStoppedError, match="0 of 4 clients replied"):
        train(Averaged(), seen, engine=nodes)


def test_what_everybody_knows_is_what_clients_tell():
    data = federation(SIZES)
    told = {client.id: handshake(client) for client in data.clients}
    assert merge_handshakes(told) == (data.meta, data.sizes)
    with pytest.raises(ValueError, match=r"client ids must be 0, 1, ..., got \[0, 2"):
        merge_handshakes({i: each for i, each in told.items() if i != 1})
    told[1] = handshake(federation(SIZES, dim=6).clients[1])
    with pytest.raises(ValueError, match=r"inputs differ in shape: \[\(5,\), \(6,\)\]"):
        merge_handshakes(told)


def test_the_server_keeps_the_sizes_that_nodes_tell(tmp_path):
    nodes, seen = away(SMALL, federation(SIZES), tmp_path)
    assert seen.sizes == SIZES
    train(SMALL, seen, engine=nodes)
    request = {told["meta"] for _, _, told in nodes.transport.requests if "meta" in told}
    assert request == {'{"num_classes": 3, "input_shape": [5], "num_clients": 4}'}


def test_a_run_waits_for_its_clients_and_says_who_came(tmp_path):
    data = federation(SIZES)
    transport = Here(SMALL, data, tmp_path)
    transport.gone = {997}
    nodes = Nodes(transport, 4, timeout=1e-3)
    with pytest.raises(
        RunStoppedError, match=r"3 of 4 clients joined within 0.001 seconds: \[0, 1, 2"
    ):
        nodes.federation(data.holdout)


def test_two_nodes_cannot_be_the_same_client(tmp_path):
    data = federation(SIZES)
    transport = Here(SMALL, data, tmp_path)
    transport.nodes[5] = transport.nodes[998]
    with pytest.raises(RunStoppedError, match="two nodes claim to be client 2"):
        Nodes(transport, 4).federation(data.holdout)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ({}, "its reply is not an update"),
        ({"payload": 1.0, "weight": 1.0, "name": "n", "metrics": {}}, "reply is not an update"),
        ({"payload": {}, "weight": 1.0, "name": "n", "metrics": {"a": "b"}}, "metrics must map"),
        ({"payload": {}, "weight": True, "name": "n", "metrics": {}}, "reply is not an update"),
        ({"payload": {"x": 1.0}, "weight": 1.0, "name": "n", "metrics": {}}, "another form"),
    ],
)
def test_a_server_leaves_out_what_it_cannot_read(reply, fault, tmp_path, caplog):
    data = federation(SIZES)
    nodes, seen = away(SMALL, data, tmp_path)

    def answered(number, request, honest=nodes.transport.reply):
        lies = number == 999 and request["task"] == "update"
        return reply if lies else honest(number, request)

    nodes.transport.reply = answered
    (*_, last), _ = train(dataclasses.replace(SMALL, rounds=1), seen, engine=nodes)
    assert last.client_states.keys() == {0, 2, 3}
    assert fault in caplog.text
