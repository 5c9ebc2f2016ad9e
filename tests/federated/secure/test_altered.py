"""Messages of a secure sum altered on their way to the server: all of them are detected."""

import functools
import random

import pytest
import torch

from fedbolic.federated import Trainer
from fedbolic.federated.secure import SecureSum
from fedbolic.federated.secure.roster import Roster
from tests.federated.secure.parties import ROWS, STAGES, TEN, Numbers
from tests.federated.simple_method import RNG, train

MEMBERS = {"cards": ("roster", "members"), "sums": ("survivors",)}
"""Path in the server state to the clients whose message of an exchange was accepted."""


@functools.cache
def before(stage):
    """The phase and the server state before an exchange, and the messages of ten clients in it."""
    method = SecureSum(Numbers(ROWS))
    positions = [Trainer().begin(method, TEN, RNG), *train(method, TEN)[0]]
    state = positions[STAGES.index(stage)]
    server_state, phase = state.server_state, method.phase(state.server_state)
    sent = {}
    for client in TEN.clients:
        message, client_state = (
            phase.broadcast(server_state, client.id),
            state.client_states.get(client.id, {}),
        )
        sent[client.id] = phase.local_update(message, client, client_state, RNG)[0]
    return phase, server_state, sent


def taken(stage, sent):
    """Ids of the clients whose message the server accepts, and the sum if there is one."""
    phase, server_state, _ = before(stage)
    total = phase.aggregator.aggregate(sorted(sent.items()))
    if stage not in MEMBERS:
        return list(phase.authentic(total, Roster.read(server_state["roster"]))), []
    found = functools.reduce(dict.get, MEMBERS[stage], phase.server_update(server_state, total))
    return found.tolist(), total.payload.get("sums", torch.empty(0)).tolist()


def altered(update, draw):
    """The update with one bit flipped."""
    name = draw.choice(sorted(update.payload))
    leaf = update.payload[name]
    if isinstance(leaf, str):
        i = draw.randrange(len(leaf))
        changed = leaf[:i] + chr(ord(leaf[i]) ^ 1) + leaf[i + 1 :]
    else:
        raw = leaf.contiguous().clone().view(torch.uint8).flatten()
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        changed = raw.view(leaf.dtype).reshape(leaf.shape)
    return type(update)({**update.payload, name: changed}, update.weight, update.metrics)


@pytest.mark.parametrize("num", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", STAGES)
def test_no_altered_message_is_taken(stage, num):
    draw, (_, _, sent) = random.Random(stage), before(stage)
    assert taken(stage, sent)[0] == list(range(10))
    for _ in range(num):
        liar = draw.randrange(10)
        others = {i: update for i, update in sent.items() if i != liar}
        heard = taken(stage, {**others, liar: altered(sent[liar], draw)})
        assert heard == taken(stage, others)
        assert liar not in heard[0]
