"""Secure sums with neighbours: bounds against enumeration, lost clients, and a lying server."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, hypergeom

from fedbolic.federated import RunStoppedError, TrainerState
from fedbolic.federated.secure import NeighbourGraph, SecureSum, write_identities
from fedbolic.federated.secure import neighbours as bounds
from fedbolic.federated.secure.keys import new_secret
from fedbolic.federated.secure.neighbours import DegreePlan, DrawnGraph, draw_places
from fedbolic.federated.secure.roster import Roster, read_ids
from fedhull import FedHull
from tests.federated.secure.dishonest import Dishonest, Gated, clear
from tests.federated.secure.parties import Losing, Numbers, last, parties, plain, summed
from tests.federated.simple_method import RNG, assert_same, saved_and_loaded, train

NUM, VICTIM = 24, 5
DATA = parties(NUM)
ROWS = tuple((10**6 + i, -i, 7 * i * i) for i in range(NUM))
FEW = NeighbourGraph(corrupt=0.0, dropped=0.25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("keys")
    write_identities(found, NUM)
    return found


def numbers(folder, rows=ROWS, **settings):
    return SecureSum(Numbers(rows), keys=folder, **{"neighbours": FEW, **settings})


def drawn_graphs(honest, degree):
    """The neighbours of every honest client as bits, in all possible graphs."""
    num_clients = honest + 1  # one corrupt client, the last
    columns = []
    for own in range(honest):
        others = [i for i in range(num_clients) if i != own]
        columns.append([sum(1 << i for i in of) for of in itertools.combinations(others, degree)])
    return np.stack([axis.ravel() for axis in np.meshgrid(*columns)], axis=1)


def has(bits, of):
    """Number of members of a set of bits among the neighbours."""
    return np.bitwise_count(bits & of)


@pytest.mark.parametrize(("degree", "threshold"), [(2, 2), (3, 2), (3, 3)])
def test_no_graph_of_six_clients_is_split_more_often_than_the_bound(degree, threshold):
    honest = 5
    graphs = drawn_graphs(honest, degree)
    split = np.zeros(len(graphs), dtype=bool)
    for num in range(honest // 2 + 1, honest + 1):  # the server chooses who is in the sum
        for there in itertools.combinations(range(honest), num):
            for size in range(1, num // 2 + 1):
                for few in itertools.combinations(there, size):
                    own = sum(1 << i for i in few)
                    rest = [i for i in there if i not in few]
                    fits = np.ones(len(graphs), dtype=bool)
                    for i in few:
                        fits &= has(graphs[:, i], own | 1 << honest) >= threshold
                        fits &= has(graphs[:, i], sum(1 << j for j in rest)) == 0
                    for j in rest:
                        fits &= has(graphs[:, j], own) == 0
                    split |= fits
    bound = 2 ** bounds.log_split(honest + 1, 1, degree, threshold)
    assert split.mean() <= bound
    assert split.any() == (threshold < 3)  # two that drew each other and the corrupt client


def test_secrets_are_joined_by_others_and_lost_as_often_as_in_all_graphs():
    graphs, corrupt = drawn_graphs(5, 3), 1 << 5
    alone = (has(graphs, corrupt) >= 1).any(axis=1).mean()
    assert alone <= 2 ** bounds.log_alone(6, 1, 3, 1)
    assert math.isclose(2 ** bounds.log_alone(6, 1, 3, 1), 5 * (has(graphs[:, 0], corrupt)).mean())
    assert bounds.log_alone(6, 1, 3, 2) == -math.inf
    lost = (has(graphs, 0b11) > 1).any(axis=1).mean()  # two drop out, and two shares are needed
    assert lost <= 2 ** bounds.log_failed(6, 2, 3, 2)


@pytest.mark.parametrize(("population", "draws"), [(999, 52), (59, 10), (9, 9)])
def test_tails_are_those_of_scipy(population, draws):
    marked = np.array([0, 1, population // 10, population // 2])
    for least in (1, draws // 2, draws):
        found = bounds.log_tail(population, marked, draws, least)
        expected = hypergeom.sf(least - 1, population, marked, draws)
        assert np.allclose(2**found, expected, rtol=1e-9, atol=0)


def test_a_sample_of_signatures_deceives_as_often_as_enumerated():
    # of 9 witnesses, 4 of 8 honest clients and 1 corrupt one have signed; 4 tags are guessed
    tag, sample = 256.0**-bounds.TAG_BYTES, 3
    samples = list(itertools.combinations([1.0] * 5 + [tag] * 4, sample))
    chance = sum(map(math.prod, samples)) / len(samples)
    assert math.isclose(2 ** bounds.log_deceived(9, 1, 9, sample), 9 * chance)


@pytest.mark.parametrize(("corrupt", "dropped"), [(0.05, 0.05), (0.1, 0.1), (0.2, 0.2), (0.0, 0.3)])
def test_plans_are_within_the_bounds_and_no_smaller_one_is(corrupt, dropped):
    settings = NeighbourGraph(corrupt, dropped)
    n, bad, lost = 1000, int(1000 * corrupt), int(1000 * dropped)
    least = settings.least(n)
    plan = settings.plan(n, least=least)

    def betrayed(degree, threshold):
        logs = [bounds.log_alone, bounds.log_split]
        return sum(2 ** log(n, bad, degree, threshold) for log in logs)

    together = betrayed(plan.degree, plan.threshold)
    assert together + 2 ** bounds.log_deceived(n, bad, least, plan.sample) <= 2.0**-40
    assert bounds.log_failed(n, lost, plan.degree, plan.threshold) <= -30
    fewer = [t for t in range(1, plan.degree)
             if bounds.log_failed(n, lost, plan.degree - 1, t) <= -30]  # fmt: skip
    assert not fewer or betrayed(plan.degree - 1, max(fewer)) > 2.0**-42


def test_too_low_thresholds_and_wrong_settings_are_refused(folder):
    with pytest.raises(ValueError, match="two halves"):
        NeighbourGraph(0.1, 0.1).plan(100, least=55)
    with pytest.raises(ValueError, match="corrupt must lie"):
        NeighbourGraph(corrupt=0.5)
    with pytest.raises(ValueError, match="needs keys"):
        SecureSum(Numbers(ROWS), neighbours=FEW)
    with pytest.raises(ValueError, match="orders its clients"):
        SecureSum(FedHull(), keys=folder, neighbours=FEW)
    with pytest.raises(ValueError, match="two halves"):
        numbers(folder, threshold=12).init(DATA.meta, RNG)


def test_all_sets_of_neighbours_are_equally_likely():
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        graph = DrawnGraph(6, 2, {2: new_secret()})
        counts.setdefault(tuple(graph.holders[2]), 0)
        counts[tuple(graph.holders[2])] += 1
    assert set(counts) == set(itertools.combinations((0, 1, 3, 4, 5), 2))
    assert chisquare(list(counts.values())).pvalue > 1e-9
    assert sorted(draw_places(bytes(32), 9, 9)) == list(range(9))


def test_a_graph_is_read_back_and_senders_are_those_who_drew(folder):
    graph = DrawnGraph(6, 2, {i: new_secret() for i in (0, 2, 3)})
    again = DrawnGraph.read(graph.tree())
    assert (again.holders, again.senders) == (graph.holders, graph.senders)
    pairs = {(i, j) for i, of in graph.holders.items() for j in of}
    assert pairs == {(i, j) for j, of in graph.senders.items() for i in of}


STAGES = ("cards", "shares", "sums", "survivors", "witnesses", "unmasking")


@pytest.mark.parametrize(
    "lost",
    [(), *(((stage, 3), (stage, 20)) for stage in STAGES),
     (("cards", 0), ("shares", 4), ("sums", 9), ("survivors", 7), ("witnesses", 8))],
)  # fmt: skip
def test_the_sum_is_exact_when_clients_are_lost(lost, folder):
    method = numbers(folder)
    assert method.plan(NUM) is not None
    server_state = last(method, DATA, engine=Losing(lost=lost)).server_state
    there = sorted(set(range(NUM)) - {i for stage, i in lost if STAGES.index(stage) < 3})
    assert summed(server_state) == plain(ROWS, there)
    assert server_state["inner"]["clients"].tolist() == there


@pytest.mark.parametrize("index", range(5))
def test_a_run_resumed_in_the_middle_of_a_sum_ends_the_same(index, folder):
    method = numbers(folder)
    positions, _ = train(method, DATA)
    loaded = TrainerState.restore(saved_and_loaded(positions[index].checkpoint()))
    rest, _ = train(method, DATA, state=loaded)
    assert_same(rest[-1].server_state, positions[-1].server_state)


def test_small_cohorts_use_all_pairs(tmp_path):
    write_identities(tmp_path, 5)
    method = SecureSum(Numbers(ROWS[:5]), keys=tmp_path, neighbours=NeighbourGraph(0.2, 0.2))
    assert method.plan(5) is None
    assert summed(last(method, parties(5)).server_state) == plain(ROWS, range(5))


def below(stage, method):
    """A run of which too many clients are lost in an exchange."""
    lost = tuple((stage, i) for i in range(7))
    with pytest.raises(RunStoppedError, match=r"17 clients .*, and the threshold is 18: nothing"):
        last(method, DATA, engine=Losing(lost=lost))


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_the_run_stops(stage, folder):
    below(stage, numbers(folder))


def gated(folder):
    return SecureSum(Gated(), keys=folder, neighbours=FEW)


def read(folder, alter, **settings):
    """The sum that a dishonest server reads, the method, and the refusals of clients."""
    method = gated(folder)
    server = Dishonest(method, DATA, alter=alter, **settings)
    return server.sum(), method, " ".join(server.refusals)


def test_an_honest_server_reads_the_sum(folder):
    found, method, refusals = read(folder, lambda stage, i, message: message)
    assert found == clear(method, range(NUM))
    assert not refusals


def bits(ids):
    there = np.zeros(NUM, dtype=bool)
    there[list(ids)] = True
    return torch.from_numpy(np.packbits(there))


OTHERS = [i for i in range(NUM) if i != VICTIM]


def other_models(stage, client_id, message):
    """The attack of Pasquini et al. (2022): a live network for the victim, dead ones for others."""
    if stage != "sums":
        return message
    return {**message, "inner": {**message["inner"], "gate": float(client_id == VICTIM)}}


def other_cards(stage, client_id, message):
    """Neighbours of the server's choice: the cards of others than the client has drawn."""
    if stage != "shares":
        return message
    roster = message["roster"]
    members = roster["members"].tolist()
    swapped = min(i for i in members if i != client_id)
    stranger = next(i for i in range(NUM) if i not in members)
    order = sorted({*members, stranger} - {swapped})
    return {**message, "roster": {**roster, "members": torch.tensor(order)}}


def fewer_cards(stage, client_id, message):
    """Neighbours of the server's choice: the others are said to be lost."""
    if stage != "shares":
        return message
    roster = message["roster"]
    members = roster["members"].tolist()
    few = FEW.plan(NUM, least=FEW.least(NUM)).threshold - 1
    kept = [client_id, *[i for i in members if i != client_id][:few]]
    rows = torch.tensor([members.index(i) for i in sorted(kept)])
    parts = {name: roster[name][rows] for name in ("members", "cards")}
    nobody = {"senders": message["senders"][:0], "keys": message["keys"][:0]}
    return {**message, "roster": {**roster, **parts}, **nobody}


def played_neighbours(stage, client_id, message):
    """Fresh keys of the server in the place of those of all who drew the victim."""
    if (stage, client_id) != ("shares", VICTIM):
        return message
    keys = torch.frombuffer(bytearray(new_secret() * 2 * len(message["keys"])), dtype=torch.uint8)
    return {**message, "keys": keys.reshape(-1, 64)}


def itself(stage, client_id, message):
    """The victim is said to have drawn itself."""
    if (stage, client_id) != ("shares", VICTIM):
        return message
    senders = sorted({*message["senders"].tolist()[1:], VICTIM})
    return {**message, "senders": torch.tensor(senders)}


def other_sharers(stage, client_id, message):
    """The victim is told of other sharers than the rest."""
    if (stage, client_id) != ("sums", VICTIM):
        return message
    return {**message, "sharers": bits(set(range(NUM)) - {0})}


def two_lists(stage, client_id, message):
    """Half of the clients are told that the victim is gone, so that both its secrets come back."""
    if stage != "survivors" or client_id % 2 or client_id == VICTIM:
        return message
    return {**message, "survivors": bits(OTHERS)}


def few_survivors(stage, client_id, message):
    return {**message, "survivors": bits(range(13))} if stage == "survivors" else message


def no_witnesses(stage, client_id, message):
    return {**message, "witnesses": bits(range(9))} if stage == "witnesses" else message


def other_tags(stage, client_id, message):
    """Tags of signatures that the server does not have."""
    return {**message, "tags": message["tags"] ^ 1} if stage == "witnesses" else message


def other_signatures(stage, client_id, message):
    """Signatures of others than the client has drawn."""
    if stage != "unmasking":
        return message
    return {**message, "signatures": message["signatures"].roll(1, 0)}


def old_session(stage, client_id, message):
    return {**message, "session": 0} if stage == "cards" else message


STRATEGIES = {
    other_models: "did not sign",
    other_cards: "has not drawn",
    fewer_cards: "may hold shares of this client",
    played_neighbours: "ciphertext was altered",
    itself: "has drawn itself",
    other_sharers: "",
    two_lists: "and the threshold is",
    few_survivors: "the threshold is 18",
    no_witnesses: "the threshold is 18",
    other_tags: "another tag",
    other_signatures: "another tag",
    old_session: "a replay",
}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_a_server_that_lies_reads_no_sum_of_its_choice(strategy, folder):
    found, method, refusals = read(folder, strategy)
    assert STRATEGIES[strategy] in refusals
    sent = method.method.sent
    chosen = [ids for ids in (range(NUM), OTHERS, (VICTIM,), range(13)) if {*ids} <= sent.keys()]
    if VICTIM in sent:  # it may be left out of a sum of the others
        assert found is None or found not in [clear(method, ids) for ids in chosen]


def test_a_client_gives_no_share_before_it_has_seen_tags(folder):
    """A server that goes from the check to the unmasking could choose the signatures afterwards."""
    server = Dishonest(gated(folder), DATA)
    for state in server.states():
        if state["stage"] == "witnesses":
            break
    with pytest.raises(RunStoppedError, match="all clients refused"):
        server.exchange({**state, "stage": "unmasking", "samples": {}}, range(NUM))
    assert all("has not shown the tags" in refusal for refusal in server.refusals)


def test_a_client_whose_neighbours_are_all_said_to_be_lost_is_not_read(folder, monkeypatch):
    """Its vector would be left alone under masks that the secrets of its neighbours give.

    With the bounds' number of neighbours, the server cannot leave out as many.
    """
    monkeypatch.setattr(NeighbourGraph, "plan", lambda self, n, *, least: DegreePlan(4, 2, 8))
    method = SecureSum(Gated(), keys=folder, neighbours=NeighbourGraph(0.0, 0.49))
    server = Dishonest(method, DATA)
    state = next(state for state in server.states() if state["stage"] == "survivors")
    roster = Roster.read(state["roster"])
    kept = [i for i in range(NUM) if i == VICTIM or i not in roster.pairs(VICTIM)]
    state = {**state, "survivors": bits(kept)}
    while state["stage"] != "unmasking":
        state = server.exchange(state, range(NUM))
    with pytest.raises(RunStoppedError, match="nothing was summed"):
        server.exchange(state, range(NUM))
    refused = [each for each in server.refusals if "which cannot be true" in each]
    assert len(refused) == NUM - len(kept)  # those that are said to be lost give no share


def test_the_victims_both_secrets_never_come_back(folder):
    """With two lists, signed by half of the clients each, a sample has signatures of the other."""
    method = gated(folder)
    server = Dishonest(method, DATA)
    for state in server.states():
        if state["stage"] == "survivors":
            break
    halves, signed = (bits(range(NUM)), bits(OTHERS)), {}
    for i in OTHERS:
        told = {**state, "survivors": halves[i % 2]}
        update = server.ask(i, method.phase(told).broadcast(told, i))
        signed[i] = update.payload["signature"]
    given = set()
    for half in (0, 1):
        ids = OTHERS[:18]
        signatures = torch.stack([signed[i] for i in ids])
        told = {**state, "stage": "witnesses", "witnesses": bits(ids), "signatures": signatures}
        for i in (i for i in OTHERS if i % 2 == half):
            update = server.ask(i, method.phase(told).broadcast(told, i))
            last_one = {**told, "stage": "unmasking", "samples": {str(i): update.payload["sample"]}}
            if server.ask(i, method.phase(last_one).broadcast(last_one, i)) is not None:
                given.add(half)
    assert not given
    assert any("did not sign the survivors" in each for each in server.refusals)


def test_bits_are_ids():
    assert read_ids(bits([0, 5, 23])) == [0, 5, 23]
