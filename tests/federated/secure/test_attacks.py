"""Strategies of a dishonest server against a secure sum: what it reads, and what clients refuse."""

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.federated import RunStoppedError
from fedbolic.federated.secure import summing
from tests.federated.secure.dishonest import NUM, VICTIM, Dishonest, clear, gated

OTHERS = tuple(i for i in range(NUM) if i != VICTIM)


def to_the_victim(stage, **parts):
    """A server that replaces parts of the victim's message in one exchange."""

    def alter(now, client_id, message):
        return {**message, **parts} if (now, client_id) == (stage, VICTIM) else message

    return alter


def inner(**parts):
    """A server that replaces parts of the method's message to the victim; ``None`` removes one."""

    def alter(stage, client_id, message):
        if (stage, client_id) != ("sums", VICTIM):
            return message
        changed = {**message["inner"], **parts}
        return {**message, "inner": {n: leaf for n, leaf in changed.items() if leaf is not None}}

    return alter


def model_inconsistency(stage, client_id, message):
    """The attack of Pasquini et al. (2022): a live network for the victim, dead ones for others."""
    if stage != "sums":
        return message
    return {**message, "inner": {**message["inner"], "gate": float(client_id == VICTIM)}}


ONE_SIDED = {
    "a dead network to the others": {"alter": model_inconsistency},
    "a number changed by an ulp": {"alter": inner(gate=1.0 + 2**-52)},
    "a number of another type": {"alter": inner(gate=1)},
    "a truth value for a number": {"alter": inner(gate=True)},
    "a tensor of another value": {"alter": inner(body={"x": torch.tensor([1.0, -1.0])})},
    "a tensor of another dtype": {"alter": inner(body={"x": torch.ones(2).double()})},
    "a tensor of another shape": {"alter": inner(body={"x": torch.ones(2, 1)})},
    "one more entry": {"alter": inner(extra=1)},
    "an empty branch": {"alter": inner(extra={})},
    "a path for a branch": {"alter": inner(body=None, **{"body/x": torch.ones(2)})},
    "a place where there is no order": {"alter": inner(place=3)},
    "one entry less": {"alter": inner(body=None)},
    "another turn": {"alter": to_the_victim("sums", turn=1)},
    "other facts": {"facts": {VICTIM: {"num_classes": 90}}},
    "another number of clients": {"facts": {VICTIM: {"num_clients": NUM + 1}}},
    "another round": {"rng": lambda stage, i: Rng(3).at("round", 1 + (i == VICTIM))},
}
"""Ways to have one client do other local work than the rest."""


@pytest.mark.parametrize("name", ONE_SIDED)
def test_a_sum_of_clients_that_received_different_broadcasts_is_not_read(name, monkeypatch):
    method = gated()
    server = Dishonest(method, **ONE_SIDED[name])
    found = server.sum()
    assert found != clear(method)  # the sum of what they have sent, whose summands the server chose
    assert any(
        "did not sign the survivors and the broadcast" in refusal for refusal in server.refusals
    )
    assert server.client_states[VICTIM].get("inner", {}) == {}
    monkeypatch.setattr(summing, "broadcast_digest", lambda *told, **settings: bytes(32))
    assert Dishonest(method, **ONE_SIDED[name]).sum() == clear(method)  # the digest prevents it


def test_an_honest_server_reads_the_sum_of_a_common_broadcast():
    method = gated()
    server = Dishonest(method)
    assert server.sum() == clear(method)
    assert server.refusals == []


def stopped_before(last):
    """A server that asks nobody in an exchange, so that a sum is begun and not finished."""
    return lambda stage, client_id, message: None if stage == last else message


@pytest.mark.parametrize("last", ["survivors", "unmasking"])
def test_a_sum_that_is_not_finished_prepares_no_client_state(last):
    server = Dishonest(gated(), alter=stopped_before(last))
    for gate in (5.0, 6.0):
        assert server.sum(gate=gate) is None
    assert [state["inner"] for state in server.client_states.values()] == [{}] * NUM
    server.alter = stopped_before(None)
    server.sum(gate=7.0)
    assert {state["inner"]["seen"] for state in server.client_states.values()} == {"7.0 "}


def test_a_client_whose_shares_are_not_asked_for_keeps_its_earlier_state():
    method = gated()
    server = Dishonest(method, alter=lambda stage, i, m: None if (stage, i) == ("unmasking", VICTIM)
                       else m)  # fmt: skip
    assert server.sum() == clear(method)
    assert server.client_states[VICTIM]["inner"] == {}


def states(server, last="unmasking"):
    """Server states of a sum by the exchange that comes next, up to the last one."""
    found = {}
    for state in server.states():
        found[state["stage"]] = state
        if state["stage"] == last:
            return found
    raise AssertionError(last)


def test_a_second_model_is_refused_in_the_same_sum():
    """Two vectors under the same masks differ by their numbers alone."""
    server = Dishonest(gated())
    begun = states(server, "sums")
    server.exchange({**begun["sums"], "inner": {"gate": 0.0, "body": {}}}, range(NUM))
    with pytest.raises(RunStoppedError, match="all clients refused"):
        server.exchange({**begun["sums"], "inner": {"gate": 1.0, "body": {}}}, range(NUM))
    assert all("secrets are used once" in refusal for refusal in server.refusals)


def test_shares_are_not_given_twice():
    server = Dishonest(gated())
    begun = states(server)
    server.exchange(begun["unmasking"], range(NUM))
    for stage in ("shares", "sums", "survivors", "unmasking"):
        with pytest.raises(RunStoppedError, match="all clients refused"):
            server.exchange(begun[stage], range(NUM))


def test_shares_are_not_given_before_the_check():
    earlier = Dishonest(gated())
    before = states(earlier)["unmasking"]
    server = Dishonest(gated(), client_states=earlier.client_states, session=1)
    states(server, "survivors")
    message = server.method.phase(before).broadcast(before, VICTIM)
    assert server.ask(VICTIM, message) is None
    assert "'unmasking' was requested after 'sums'" in server.refusals[-1]


def test_signatures_of_another_sum_or_of_others_open_nothing():
    earlier = Dishonest(gated())
    before = states(earlier)["unmasking"]
    server = Dishonest(gated(), client_states=earlier.client_states, session=1)
    now = states(server)["unmasking"]
    for lie in (
        {"signatures": before["signatures"]},
        {"signatures": now["signatures"].roll(1, 0)},
        {name: now[name][:3] for name in ("witnesses", "signatures")},
        {name: now[name][[0, 0, 1, 1]] for name in ("witnesses", "signatures")},
    ):
        phase = server.method.phase(now)
        assert server.ask(VICTIM, {**phase.broadcast(now, VICTIM), **lie}) is None


def split_survivors(stage, client_id, message):
    """Half of the clients are told that the victim is gone, so that both its shares come back."""
    if stage != "survivors" or client_id in (VICTIM, 0):
        return message
    return {**message, "survivors": torch.tensor(OTHERS)}


def other_sharers(stage, client_id, message):
    """The victim is told of other sharers than the rest."""
    if (stage, client_id) != ("sums", VICTIM):
        return message
    kept = message["sharers"] != 4
    return {**message, **{name: message[name][kept] for name in ("sharers", "ciphertexts")}}


def same_keys(stage, client_id, message):
    """Cards of another client in the place of a third one, who would be counted twice."""
    if stage != "shares":
        return message
    cards = message["roster"]["cards"].clone()
    cards[4] = cards[3]
    return {**message, "roster": {**message["roster"], "cards": cards}}


def swapped_ciphertexts(stage, client_id, message):
    """The shares for one client are given to another one, which might send them back."""
    if stage != "sums":
        return message
    return {**message, "ciphertexts": message["ciphertexts"].roll(1, 0)}


def few_sharers(stage, client_id, message):
    """A sum of the victim with two others alone."""
    if stage != "sums":
        return message
    return {**message, "sharers": message["sharers"][:3],
            "ciphertexts": message["ciphertexts"][:3]}  # fmt: skip


def few_survivors(stage, client_id, message):
    """All are told that nobody but three clients is left."""
    return {**message, "survivors": torch.arange(3)} if stage == "survivors" else message


def old_session(stage, client_id, message):
    """A session that was before, so that keys might be used twice."""
    return {**message, "session": 0} if stage == "cards" else message


def strangers(stage, client_id, message):
    """A roster with clients beyond those of the federation, whom the server plays."""
    if stage != "shares":
        return message
    members = message["roster"]["members"] + torch.tensor([0, 0, 0, 7, 7])
    return {**message, "roster": {**message["roster"], "members": members}}


TO_ALL = (split_survivors, other_sharers, same_keys, swapped_ciphertexts, few_sharers,
          few_survivors, old_session, strangers)  # fmt: skip


@pytest.mark.parametrize("strategy", TO_ALL, ids=lambda strategy: strategy.__name__)
def test_a_server_that_lies_about_the_sum_reads_no_sum(strategy):
    method = gated()
    server = Dishonest(method, alter=strategy)
    found = server.sum()
    assert server.refusals
    assert found is None or found not in (
        clear(method), clear(method, OTHERS), clear(method, (VICTIM,)), clear(method, range(3))
    )  # fmt: skip


NAN, USUAL, LATER = float("nan"), ("round", 1, "exchange", 2), ("round", 1, "exchange", 7)
LABELS = ("exchange", "x", 5, "round", 1), ("exchange", "round", 5, "round", 1)
REPETITIONS = {
    "the same name": ((USUAL, USUAL), (0, 0)),
    "a later exchange": ((USUAL, LATER), (0, 0)),
    "an earlier round": ((("round", 2, "exchange", 2), USUAL), (0, 0)),
    "a turn that the name does not hold": ((("round", 1), ("round", 1)), (0, 1)),
    "no round": ((("x",), ("x",)), (0, 1)),
    "a turn that is no number": ((USUAL, LATER), (NAN, NAN)),
    "a round that is no number": ((("round", NAN), ("round", NAN)), (0, 0)),
    "a truth value": ((USUAL, LATER), (True, True)),
    "a label for a number": (LABELS, (0, 0)),
    "a label twice": ((("round", 5, "round", 1), ("round", 5, "round", 2)), (0, 1)),
}
"""Two names of a random stream and two turns: does the second sum repeat the first one's work?"""


def in_turn(turn):
    """A server that names a turn."""
    return lambda stage, i, message: {**message, "turn": turn} if stage == "sums" else message


@pytest.mark.parametrize("name", REPETITIONS)
def test_the_same_work_is_not_done_again_without_one_client(name):
    paths, turns = REPETITIONS[name]
    method = gated()
    server = Dishonest(method, path=paths[0], alter=in_turn(turns[0]))
    first, sent = server.sum(), dict(method.method.sent)
    server.path, server.alter = paths[1], in_turn(turns[1])
    second = server.sum(OTHERS)
    if first is not None and second is not None:
        assert (torch.tensor(first) - torch.tensor(second)).tolist() != sent[VICTIM].tolist()
        assert all((sent[i] != method.method.sent[i]).any() for i in OTHERS)
    else:
        assert any("round" in refusal for refusal in server.refusals)


def test_the_next_round_is_other_work():
    method = gated()
    server = Dishonest(method)
    assert server.sum() == clear(method)
    sent = dict(method.method.sent)
    assert server.sum(OTHERS) == clear(method, OTHERS)
    assert all((sent[i] != method.method.sent[i]).any() for i in OTHERS)
    assert server.refusals == []


def test_a_client_may_refuse_lists_that_differ_by_one_client():
    """A server that reads both sums knows the missing client's part of the first, up to a round."""
    for least in (1, 2):
        method = gated(least_change=least)
        server = Dishonest(method)
        assert server.sum() == clear(method)
        assert server.sum(OTHERS) == (clear(method, OTHERS) if least == 1 else None)
        refused = [each for each in server.refusals if "of the last one by 1 clients" in each]
        assert len(refused) == (0 if least == 1 else len(OTHERS))
        assert server.sum() == clear(method)
