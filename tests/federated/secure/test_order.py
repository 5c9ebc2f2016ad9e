"""The order that clients agree on under a secure sum: the same for all, unknown to the server."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.federated import AggregatedUpdate, RunStoppedError, Sequential, Sum, Update
from fedbolic.federated.aggregators.modular import reduce_limbs
from fedbolic.federated.contract.capabilities import Ordered
from fedbolic.federated.secure import SecureSum, keys
from fedbolic.federated.secure.keys import Agreement
from fedbolic.federated.secure.mask import sum_masks
from fedbolic.federated.secure.masked import pair_sign
from fedbolic.federated.secure.order import place_among
from fedbolic.federated.secure.preparation import CIPHERTEXT_BYTES, mask_seed
from fedbolic.federated.secure.roster import Roster, to_bytes
from fedbolic.federated.secure.shamir import SHARE_BYTES
from fedhull import FedHull
from tests.federated.secure.parties import ROWS, TEN, Losing, Lying, Numbers, flipped, plain, summed
from tests.federated.simple_method import assert_same, flat, train
from tests.fedhull.test_method import federation
from tests.remote.transports import away, identified


@dataclass(frozen=True)
class Seats(Ordered):
    """Every client sends a one at its place and keeps the place in its client state."""

    rounds: int = 1
    aggregator = Sum()
    order = "dealt"

    @override
    def init(self, meta, rng):
        return {"dealt": torch.randperm(meta.num_clients, generator=rng.generator())}

    @override
    def broadcast(self, server_state, client_id):
        return {"place": int(server_state["dealt"][client_id])} if "dealt" in server_state else {}

    @override
    def local_update(self, message, client, client_state, rng):
        seats = torch.zeros(client.meta.num_clients, dtype=torch.int64)
        seats[message["place"]] = 1
        return Update({"seats": seats}), {"seat": message["place"]}

    @override
    def server_update(self, server_state, total: AggregatedUpdate):
        return server_state | {"seats": total.payload["seats"]}

    @override
    def evaluate(self, message, client, client_state, rng):
        return {}


def seats(state):
    return {i: m["inner"]["seat"] for i, m in state.client_states.items() if m.get("inner")}


def drawn(positions):
    """Numbers of the clients that sent ciphertexts; each client keeps its own until the sum."""
    client_states = positions[1].client_states.items()
    ciphertexts = {
        i: m["secure"]["own_plaintext"] for i, m in client_states if "own_plaintext" in m["secure"]
    }
    return {
        i: ciphertext.numpy().tobytes()[2 * SHARE_BYTES :] for i, ciphertext in ciphertexts.items()
    }


@given(st.lists(st.binary(min_size=2, max_size=2), min_size=1, max_size=9), st.randoms())
def test_places_are_ranks_of_numbers_and_of_ids_where_these_are_equal(numbers, source):
    ids = sorted(source.sample(range(100), len(numbers)))
    order = np.argsort([int.from_bytes(one) for one in numbers], kind="stable")
    by_id = list(zip(ids, numbers, strict=True))
    source.shuffle(by_id)
    assert [place_among(dict(by_id), ids[i]) for i in order] == list(range(len(ids)))


def test_every_order_of_three_is_equally_likely():
    counts = Counter()
    for _ in range(6000):
        numbers = {i: keys.new_secret() for i in range(3)}
        counts[tuple(place_among(numbers, i) for i in range(3))] += 1
    assert set(counts) == set(itertools.permutations(range(3)))
    assert chisquare(list(counts.values())).pvalue > 1e-9


def test_all_agree_on_an_order_that_is_not_the_servers():
    orders = []
    for _ in range(2):
        *_, state = train(SecureSum(Seats()), TEN)[0]
        found = seats(state)
        assert sorted(found.values()) == list(range(10))
        assert state.server_state["inner"]["seats"].tolist() == [1] * 10
        orders.append(tuple(found.values()))
    *_, clear = train(Seats(), TEN)[0]
    dealt = tuple(clear.server_state["dealt"].tolist())
    assert tuple(m["seat"] for m in clear.client_states.values()) == dealt  # the server's order
    assert len({*orders, dealt}) == 3


def test_nodes_that_know_the_method_alone_agree_too(tmp_path):
    data = federation(0, num_clients=4)
    method = identified(SecureSum(FedHull(), threshold=3), tmp_path)
    nodes, seen = away(method, data, tmp_path)
    remote, _ = train(method, seen, engine=nodes)
    local, _ = train(method, data)
    assert_same(remote[-1].server_state["inner"], local[-1].server_state["inner"])


@pytest.mark.parametrize("stage", ["cards", "shares", "sums", "survivors", "unmasking"])
def test_places_are_ranks_among_those_who_shared(stage):
    lost = ((stage, 2), (stage, 7))
    positions, _ = train(SecureSum(Seats()), TEN, engine=Losing(lost=lost))
    numbers, found = drawn(positions), seats(positions[-1])
    assert len(numbers) == (8 if stage in ("cards", "shares") else 10)
    ranks = {i: sum(other < own for other in numbers.values()) for i, own in numbers.items()}
    there = set(range(10)) - ({2, 7} if stage in ("cards", "shares", "sums") else set())
    assert found == {i: ranks[i] for i in there - {2, 7}}  # kept where the sum was unmasked
    taken = [int(place in [ranks[i] for i in there]) for place in range(10)]
    assert positions[-1].server_state["inner"]["seats"].tolist() == taken


@dataclass(frozen=True)
class Watching(Sequential):
    """An engine that records all messages and payloads."""

    seen: list = field(default_factory=list)

    @override
    def run(self, exchange):
        self.seen.extend(exchange.messages.values())
        for client, update, client_state in super().run(exchange):
            self.seen.append(update.payload)
            yield client, update, client_state


@pytest.mark.parametrize(
    ("method", "data"), [(Seats(), TEN), (FedHull(), federation(0, num_clients=4))]
)
def test_the_server_learns_neither_numbers_nor_places(method, data):
    engine = Watching()
    positions, _ = train(SecureSum(method), data, engine=engine)
    shown = [flat(content) for content in (*engine.seen, *(p.server_state for p in positions))]
    names = {name.rsplit("/", 1)[-1] for content in shown for name in content}
    assert "ciphertexts" in names
    assert not {"place", "order", "dealt", "seat"} & names

    def content(trees):
        return [x.numpy().tobytes() for t in trees for x in t.values() if torch.is_tensor(x)]

    seen, numbers = content(shown), drawn(positions).values()
    kept = content(flat(client_state) for client_state in positions[1].client_states.values())
    for number in numbers:
        assert len(number) == 32
        assert any(number in own for own in kept)
        assert not any(number in leaf for leaf in seen)


def test_numbers_are_drawn_anew_for_every_sum():
    """The numbers differ for the same seed, and within a run with the same long-term keys."""
    method, found = SecureSum(Seats(rounds=2)), []
    for _ in range(2):
        positions, _ = train(method, TEN)
        for start in (0, 5):
            found += drawn(positions[start:]).values()
    assert len(set(found)) == 40


def test_numbers_are_none_of_the_secrets_that_others_may_learn():
    """The seed of a client's own mask is revealed at the end of the sum, and key shares may be."""
    positions, _ = train(SecureSum(Seats()), TEN)
    numbers = drawn(positions)
    for i, client_state in positions[1].client_states.items():
        secrets = {n: leaf for n, leaf in client_state["secure"].items() if n != "own_plaintext"}
        held = [x.numpy().tobytes() for x in flat(secrets).values() if torch.is_tensor(x)]
        ciphertext = client_state["secure"]["own_plaintext"].numpy().tobytes()
        assert any(len(leaf) == 32 for leaf in held)
        assert not any(numbers[i] in leaf for leaf in (*held, ciphertext[: 2 * SHARE_BYTES]))


def test_letters_carry_a_number_only_where_there_is_an_order():
    for method, size in ((Seats(), CIPHERTEXT_BYTES + 32), (Numbers(ROWS), CIPHERTEXT_BYTES)):
        server_state = train(SecureSum(method), TEN)[0][1].server_state
        assert server_state["ciphertexts"].shape == (10, 10, size)


def test_a_letter_whose_number_was_altered_is_refused(caplog):
    index = CIPHERTEXT_BYTES - 16 + 5  # after the nonce and the shares, before the tag
    for bit in (0, 7):

        def delta(message, bit=bit):
            return {**message, "ciphertexts": flipped(message["ciphertexts"], index, bit)}

        engine = Lying("sums", 3, delta)
        state = train(SecureSum(Seats()), TEN, engine=engine)[0][-1]
        assert "client 3 is left out of this exchange" in caplog.text
        assert "ciphertext was altered" in caplog.text
        assert 3 not in seats(state)
        assert state.server_state["inner"]["seats"].sum() == 9


@dataclass(frozen=True)
class Telling(Losing, Lying):
    """A server that loses clients and lies to another client."""


def without(client_id):
    """Return a function that removes a client from the sharers of a message."""

    def delta(message):
        kept = message["sharers"] != client_id
        return {**message, **{name: message[name][kept] for name in ("sharers", "ciphertexts")}}

    return delta


def sums_of_a_liar():
    """Sums of a server that names client 9, lost since, as a sharer to all clients but client 3.

    The first follows the protocol; the others also undo the mask of 3 and 9, by either list.
    """
    method = SecureSum(Numbers(ROWS))
    engine = Telling("sums", 3, without(9), lost=(("sums", 9),))
    before, after = train(method, TEN, engine=engine)[0][-2:]
    phase, sums = method.phase(before.server_state), [summed(after.server_state)]
    assert after.server_state["inner"]["clients"].tolist() == list(range(9))
    found = {
        i: phase.reply(
            phase.broadcast(before.server_state, i), TEN.clients[i], before.client_states[i], Rng(0)
        )[0].payload["shares"]
        for i in range(9) if i != 3
    }  # fmt: skip
    key = phase._secrets(before.server_state, found, phase.roster)[9]
    modulus, limbs = method.modulus, before.server_state["total"]["sums"]
    broadcast = to_bytes(before.server_state["broadcast"])
    for told in (range(10), range(9)):
        seed = mask_seed(
            phase.roster, Agreement(key), other=3, agreed=phase.roster.among(told) + broadcast
        )
        mask = torch.from_numpy(sum_masks([(pair_sign(3, 9), seed)], modulus, len(limbs), stream=0))
        total = {**before.server_state["total"], "sums": reduce_limbs(limbs + mask, modulus)}
        fixed = phase._unmasked({**before.server_state, "total": total}, found, phase.roster)
        sums.append(fixed.payload["deep"]["values"].tolist())
    return sums


def test_a_server_that_names_other_sharers_to_one_client_cannot_read_the_sum(monkeypatch):
    assert plain(ROWS, range(9)) not in sums_of_a_liar()
    monkeypatch.setattr(Roster, "among", lambda roster, ids: roster.name)
    assert sums_of_a_liar()[1] == plain(ROWS, range(9))  # the list in the seed prevents this


def test_hulls_of_clients_that_were_told_other_sharers_are_not_read():
    def delta(message):
        return without(5)(message) if message["turn"] == 1 else message  # the sum of hulls

    data = federation(0, num_clients=6)
    with pytest.raises(RunStoppedError, match=r"^(?!.*threshold)"):
        train(SecureSum(FedHull(), threshold=4), data, engine=Lying("sums", 0, delta))
