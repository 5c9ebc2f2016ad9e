"""Lies of the server and of clients in a secure sum: detection and cost."""

import dataclasses
import json
import logging

import pytest
import torch

from fedbolic.federated import RunStoppedError
from fedbolic.federated.secure import SecureSum, write_identities
from fedbolic.federated.secure.exchange import PROGRESS
from fedbolic.federated.secure.keys import new_secret, sign
from fedbolic.federated.secure.roster import _card_statement, make_card, to_tensor
from tests.federated.secure.parties import (
    ROWS,
    STAGES,
    TEN,
    Altering,
    Losing,
    Lying,
    Numbers,
    flipped,
    last,
    plain,
    summed,
)
from tests.federated.simple_method import RNG, train

SMALLER = torch.arange(9)


@pytest.mark.parametrize(
    ("stage", "delta", "text"),
    [
        ("cards", lambda m: {**m, "session": 0}, "a replay"),
        ("shares", lambda m: {**m, "roster": {**m["roster"], "session": 2}}, "another secure sum"),
        ("shares", lambda m: without(m, 3), "not among the members"),
        ("shares", lambda m: without(m, *range(4, 10)), "the threshold is 7"),
        ("shares", lambda m: with_card(m, 3, 0), "another card"),
        ("shares", lambda m: with_card(m, 5, 0), "not signed"),
        ("shares", lambda m: with_card(m, 5, 40), "not signed"),
        ("sums", lambda m: {**m, "sharers": torch.tensor([0, 3])}, "the threshold is 7"),
        ("sums", lambda m: {**m, "sharers": torch.arange(11)}, "cannot be"),
        (
            "sums",
            lambda m: {**m, "ciphertexts": flipped(m["ciphertexts"], 20)},
            "ciphertext was altered",
        ),
        (
            "sums",
            lambda m: {**m, "ciphertexts": m["ciphertexts"].roll(1, 0)},
            "ciphertext was altered",
        ),
        ("survivors", lambda m: {"survivors": SMALLER[:5]}, "the threshold is 7"),
        ("survivors", lambda m: {"survivors": SMALLER[4:].repeat(2)}, "cannot be"),
        ("survivors", lambda m: {"survivors": torch.arange(4, 10)}, "cannot be"),
        ("unmasking", lambda m: {**m, "witnesses": SMALLER[:3]}, "the threshold is 7"),
        (
            "unmasking",
            lambda m: {**m, "signatures": flipped(m["signatures"], 70)},
            "did not sign the survivors",
        ),
    ],
)
def test_a_server_that_lies_to_a_client_gets_nothing_from_it(stage, delta, text, caplog):
    caplog.set_level(logging.WARNING)
    server_state = last(SecureSum(Numbers(ROWS)), engine=Lying(stage, 3, delta)).server_state
    assert "client 3 is left out of this exchange" in caplog.text
    assert text in caplog.text
    included = STAGES.index(stage) > 2
    assert summed(server_state) == plain(ROWS, [i for i in range(10) if i != 3 or included])


def without(message, *ids):
    roster = message["roster"]
    kept = torch.tensor([i not in ids for i in roster["members"].tolist()])
    parts = {name: roster[name][kept] for name in ("members", "cards")}
    return {**message, "roster": {**roster, **parts}}


def with_card(message, client_id, index):
    roster = message["roster"]
    cards = flipped(roster["cards"], client_id * roster["cards"].shape[1] + index)
    return {**message, "roster": {**roster, "cards": cards}}


def test_two_lists_of_survivors_unmask_nothing():
    """The attack prevented by the consistency check: half the clients get another list."""
    method = SecureSum(Numbers(ROWS))
    others = torch.tensor([0, *range(2, 10)])

    class Split(Losing):
        def run(self, exchange):
            if exchange.method.stage == "survivors":
                messages = {
                    i: {**m, "survivors": others} if i in (0, 2, 3, 4) else m
                    for i, m in exchange.messages.items()
                }
                exchange = dataclasses.replace(exchange, messages=messages)
            yield from super().run(exchange)

    with pytest.raises(RunStoppedError, match="6 clients agreed on who is in the sum"):
        train(method, TEN, engine=Split())


def altered(name, index=5):
    def delta(payload):
        return {**payload, name: flipped(payload[name], index)}

    return delta


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("cards", "card"),
        ("shares", "ciphertexts"),
        ("shares", "commitment"),
        ("shares", "signature"),
        ("sums", "sums"),
        ("sums", "weight"),
        ("sums", "signature"),
        ("survivors", "signature"),
        ("unmasking", "shares"),
        ("unmasking", "signature"),
    ],
)
def test_an_altered_message_leaves_its_client_out(stage, name, caplog):
    engine = Altering(stage, 4, altered(name))
    server_state = last(SecureSum(Numbers(ROWS)), engine=engine).server_state
    included = STAGES.index(stage) > 2
    assert summed(server_state) == plain(ROWS, [i for i in range(10) if i != 4 or included])
    assert "client 4 is left out" in caplog.text


def test_altered_forms_and_vectors_of_other_lengths_leave_their_client_out(caplog):
    for delta in (
        lambda p: {**p, "form": json.dumps({"deep": {}})},
        lambda p: {**p, "sums": p["sums"][1:]},
        lambda p: {**p, "sums": p["sums"][:, 1:]},
        lambda p: {name: leaf for name, leaf in p.items() if name != "weight"},
    ):
        server_state = last(
            SecureSum(Numbers(ROWS)), engine=Altering("sums", 4, delta)
        ).server_state
        assert summed(server_state) == plain(ROWS, [i for i in range(10) if i != 4])


def test_the_first_client_does_not_say_what_form_is_right(caplog):
    rows = ((1, 2), *ROWS[1:])
    server_state = last(SecureSum(Numbers(rows))).server_state
    assert summed(server_state) == plain(ROWS, range(1, 10))
    assert "client 0 is left out of this secure sum: its vector has another form" in caplog.text


@pytest.mark.parametrize("low_order", [False, True])
def test_a_card_with_which_nobody_can_agree_leaves_its_client_out(low_order, caplog):
    """Every other client would refuse the roster, although the signature of the card is valid."""

    def delta(payload):
        signer, cipher = new_secret(), new_secret()
        card = make_card(1, 0, cipher=cipher, mask=cipher, signer=signer)
        if low_order:
            shown = bytes(32) + card[32 : 3 * 32]
            card = shown + sign(signer, _card_statement(1, 0, shown))
        return {"card": to_tensor(card)}

    server_state = last(SecureSum(Numbers(ROWS)), engine=Altering("cards", 0, delta)).server_state
    assert summed(server_state) == plain(ROWS, range(1, 10))
    assert "client 0 is left out" in caplog.text


@pytest.mark.parametrize(
    "payload", [{}, {"shares": 1.0}, {"signature": "x", "shares": torch.zeros(10, 33)}]
)
def test_what_is_no_answer_in_the_end_leaves_its_client_out(payload):
    engine = Altering("unmasking", 0, lambda told: payload)
    assert summed(last(SecureSum(Numbers(ROWS)), engine=engine).server_state) == plain(
        ROWS, range(10)
    )


@pytest.mark.parametrize("vector", [1.0, torch.zeros(3), torch.zeros(3, 8), torch.zeros(())])
def test_what_is_no_masked_vector_leaves_its_client_out(vector):
    engine = Altering("sums", 0, lambda told: {**told, "sums": vector})
    assert summed(last(SecureSum(Numbers(ROWS)), engine=engine).server_state) == plain(
        ROWS, range(1, 10)
    )


def shares_of(phase, state, client_id):
    """Shares that a client reveals for unmasking in a given state."""
    message = phase.broadcast(state.server_state, client_id)
    own = state.client_states[client_id]
    return phase.reply(message, TEN.clients[client_id], own, RNG)[0].payload["shares"]


def test_a_lying_share_stops_the_run():
    """A wrong share with a valid signature is detected by the commitment or by the public key."""
    method = SecureSum(Numbers(ROWS))
    for lost in ((), (("sums", 9),)):
        *_, before, _ = train(method, TEN, engine=Losing(lost=lost))[0]
        phase = method.phase(before.server_state)
        there = [i for i in range(10) if ("sums", i) not in lost]
        found = {i: shares_of(phase, before, i) for i in there}
        assert summed({"inner": {"sum": phase._unmasked(before.server_state, found, phase.roster)
                .payload["deep"]["values"]}}) == plain(ROWS, there)  # fmt: skip
        for row in range(10):
            wrong = {**found, 2: flipped(found[2], row * 33 + 30)}
            with pytest.raises(
                ValueError, match=f"share of client {row}'s secret was altered|no sec"
            ):
                phase._unmasked(before.server_state, wrong, phase.roster)


def test_a_known_client_cannot_be_played_by_another():
    method = SecureSum(Numbers(ROWS, rounds=2))
    positions, _ = train(method, TEN)
    first = positions[4]
    stolen = {
        i: client_state for i, client_state in first.client_states.items() if i != 4
    }  # client 4 makes a new key
    state = dataclasses.replace(first, client_states=stolen)
    with pytest.raises(RunStoppedError, match="threshold is 7"):
        train(method, TEN, state=state)


def test_long_term_keys_may_be_given(tmp_path, caplog):
    write_identities(tmp_path, 10)
    method = SecureSum(Numbers(ROWS, rounds=2), keys=tmp_path)
    positions, _ = train(method, TEN)
    assert summed(positions[-1].server_state) == plain(ROWS, range(10))
    assert set(positions[4].client_states[0]["secure"]) == {"session", "known", *PROGRESS}
    write_identities(tmp_path / "other", 10)
    (tmp_path / "other" / "4.key").rename(tmp_path / "4.key")  # an impostor plays client 4
    with pytest.raises(RunStoppedError, match="no client delivered"):
        train(method, TEN)
    assert "clients [4] show another long-term key" in caplog.text


def test_a_low_threshold_is_refused_by_clients(caplog):
    with pytest.raises(RunStoppedError, match="no client delivered"):
        train(SecureSum(Numbers(ROWS), threshold=5), TEN)
    assert "a threshold of 5 is too low for 10 clients" in caplog.text
    assert summed(last(SecureSum(Numbers(ROWS), threshold=6)).server_state) == plain(
        ROWS, range(10)
    )
