"""Messages of SlotLayout in each mode, by enumeration, and the table that the server makes."""

import dataclasses
import itertools

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import HOLDOUT, BalancedTree, CommonLevels, PartitionedHierarchy, RandomPairs
from fedbolic.data.hierarchies.hierarchy_split import ROOT
from fedbolic.federated import Cohort
from fedbolic.federated.rounds.update_filter import find_update_fault
from fedbolic.hierarchies import SlotLayout
from fedbolic.hierarchies.common_slots import ClientNodes, SlotWeights
from fedbolic.hierarchies.slot_layout import ledger_of_counts
from fedbolic.remote.accounts import PrivacyAccounts
from tests.federated.simple_method import assert_same, train
from tests.hierarchies.forests import federation
from tests.remote.transports import away
from tests.seeded import SeededKeys

RNG = Rng(3)
COMMON = {0: ROOT, 1: 0, 2: 0}
KEPT, PUBLISHED = SlotLayout(), SlotLayout("published")
COUNTED = SlotLayout(slots="counted", epsilon=0.5, noise=SeededKeys())


def subtrees(nodes=(3, 4, 5)):
    """Every way to hang some nodes below the common ones or below earlier ones."""
    choices = [[*COMMON, *nodes[:i]] for i in range(len(nodes))]
    return [dict(zip(nodes, parents, strict=True)) for parents in itertools.product(*choices)]


def of_client(own):
    """A federation whose first client has some nodes, and whose second has one."""
    return federation(COMMON, [own, {6: 1}])


def replies(method, own, folder):
    """All replies of the first client's node in a run, the handshake included."""
    data = of_client(own)
    nodes, seen = away(method, data, folder)
    sent, exchange = [], nodes.transport.reply

    def recorded(number, request):
        reply = exchange(number, request)
        if number == 1000:
            sent.append({n: x for n, x in reply.items() if n != "name"})
        return reply

    nodes.transport.reply = recorded
    nodes.handshakes.clear()
    states, _ = train(method, seen, RNG, engine=nodes)
    return sent, states[-1].server_state


def test_at_home_no_message_depends_on_the_subtrees(tmp_path):
    """All 60 subtrees of three nodes, by one sequence of replies for each number of pairs."""
    found = {}
    for i, own in enumerate(subtrees()):
        sent, state = replies(KEPT, own, tmp_path / str(i))
        size = sent[0].pop("size")
        assert [list(told) for told in sent] == [
            ["client", "num_classes", "input_shape", "numbering"],
            ["payload", "weight", "metrics"],
            ["scores"],
        ]
        found.setdefault("all", (sent, state))
        assert_same({"s": found["all"][1]}, {"s": state})
        assert found["all"][0] == sent
        assert size == of_client(own).clients[0].size
    assert i + 1 == 60


def decoded(state):
    """Parents of all nodes, read from published places alone: the nearest ancestor is the deepest.

    A node is an ancestor if it is nearer than the radius and 2 log(K / 4) with K = 10.
    """
    table = state["table"]
    places = PUBLISHED.node_places(
        {"table": table}, dataclasses.replace(of_client({3: 0}).holdout), {}
    )
    nodes, points = places
    apart, limit = points.cdist(points), points.radii + 2 * torch.tensor(2.5).log()
    apart.fill_diagonal_(torch.inf)
    above = apart < limit[:, None]
    depth = above.sum(dim=1)
    return {
        int(nodes[i]): int(
            nodes[max(above[i].nonzero().flatten().tolist(), key=lambda j: depth[j])]
        )
        for i in range(len(nodes))
        if above[i].any()
    }


def test_published_places_show_the_tree_of_every_client(tmp_path):
    for own in subtrees():
        states, _ = train(PUBLISHED, of_client(own), RNG)
        assert decoded(states[-1].server_state) == {1: 0, 2: 0, 6: 1} | own


def test_counted_slots_show_the_counts_of_a_client_alone():
    """With one noise for all, payloads differ exactly where the leaves in the cells do."""
    by_counts = {}
    for own in subtrees():
        data = of_client(own)
        counts = tuple(ClientNodes.of(data.clients[0].train).count_leaves().tolist())
        first = COUNTED.init(data.meta, RNG)
        message = COUNTED.broadcast(first, 0)
        update, kept = COUNTED.phase(message).local_update(message, data.clients[0], {}, RNG)
        assert not kept
        assert update.payload.keys() == {"cells"}
        cells = tuple(update.payload["cells"].tolist())
        assert by_counts.setdefault(counts, cells) == cells
    noises = [torch.tensor(cells) - torch.tensor(counts) for counts, cells in by_counts.items()]
    assert len(noises) > 5
    assert all(torch.equal(noise, noises[0]) for noise in noises)


def test_a_message_to_one_client_holds_sums_and_its_own_counts():
    data = federation(COMMON, [{3: 1, 4: 1}, {5: 2}, {6: 0, 7: 6}])
    first = COUNTED.init(data.meta, RNG)
    sent = {}
    for client in data.clients:
        phase = COUNTED.phase(COUNTED.broadcast(first, client.id))
        update, _ = phase.local_update(first, client, {}, RNG.at("client", client.id))
        sent[client.id] = update
    state = phase.server_update(first, phase.aggregator.aggregate(sent.items()))
    counts = [sent[i].payload["cells"].clamp(min=1) for i in range(3)]
    for i in range(3):
        message = COUNTED.broadcast(state, i)
        assert message.keys() == {"num_nodes", "num_clients", "shares"}
        shares = message["shares"]
        assert torch.equal(shares["total"], sum(counts))
        assert torch.equal(shares["own"], counts[i])
        assert torch.equal(shares["before"], sum(counts[:i], torch.zeros_like(counts[0])))
    assert COUNTED.broadcast(state, HOLDOUT).keys() == {"num_nodes", "num_clients"}


def test_the_noise_is_discrete_laplace_of_one_leaf(monkeypatch):
    scales = []

    class Exact:
        def laplace(self, scale, size):
            scales.append((scale, size))
            return torch.zeros(size, dtype=torch.int64).numpy()

    monkeypatch.setattr("fedbolic.federated.noise.draws.SecretStream.integers", lambda _: Exact())
    states, rows = train(COUNTED, of_client({3: 1, 4: 3, 5: 3}), RNG)
    assert scales == [(2.0, 4)] * 2
    assert states[-1].server_state["counts"].tolist() == [[1, 2, 1, 1], [1, 1, 1, 1]]
    assert [row.value for row in rows if row.name == "privacy/epsilon"] == [0.5]
    ledger = ledger_of_counts(COUNTED.epsilon)
    assert ledger.epsilon(1) == 0.5
    assert "of one leaf that is in the hierarchy or is not" in str(ledger)


def test_one_leaf_changes_one_count_by_one_at_most():
    """All hierarchies that differ by a leaf: the sensitivity of the counts."""
    for own in subtrees((3, 4)):
        fewer = ClientNodes.of(of_client(own).clients[0].train).count_leaves()
        for parent in (*COMMON, *own):
            more = ClientNodes.of(of_client({**own, 5: parent}).clients[0].train).count_leaves()
            assert (more - fewer).abs().sum() <= 1


def test_a_client_that_fails_to_count_leaves_the_others_their_slots():
    data = federation(COMMON, [{3: 1}, {4: 2}, {5: 0}])
    first = COUNTED.init(data.meta, RNG)
    phase = COUNTED.phase(first)
    sent = {i: phase.local_update(first, data.clients[i], {}, RNG)[0] for i in (0, 2)}
    state = phase.server_update(first, phase.aggregator.aggregate(sent.items()))
    assert state["counts"][1].tolist() == [1, 1, 1, 1]
    for i in (0, 1, 2):
        update, kept = COUNTED.local_update(COUNTED.broadcast(state, i), data.clients[i], {}, RNG)
        assert update.payload == {}
        assert kept["kept_rows"].tolist() == [0, 1, 2, 3 + i]


@pytest.mark.parametrize(
    "method", [KEPT, PUBLISHED, SlotLayout("published", same_names="one_place")]
)
def test_nodes_do_what_the_simulation_does(method, tmp_path):
    data = federation(COMMON, [{3: 1, 4: 3}, {5: 2}, {6: 0, 7: 6, 8: 6}, {9: 1}, {10: 9}])
    plain, rows = train(method, data, RNG)
    nodes, seen = away(method, data, tmp_path)
    far, new = train(method, seen, RNG, engine=nodes)
    assert_same(far[-1].server_state, plain[-1].server_state)
    assert [row.value for row in rows] == [row.value for row in new]
    for i, stored in plain[-1].client_states.items():
        name = far[-1].client_states[i]["name"]
        assert_same(nodes.transport.nodes[1000 - i].store.client_state(name), stored)


def test_a_node_charges_its_counts_to_an_account_of_leaves(tmp_path):
    data, method = (
        of_client({3: 1, 4: 3, 5: 3}),
        dataclasses.replace(COUNTED, noise=SlotLayout().noise),
    )
    for i in range(2):
        PrivacyAccounts(tmp_path / "accounts", f"client{i}").create("leaf", epsilon=0.7)
    for run, spent in (("one", 0.5), ("two", 0.5)):
        nodes, seen = away(method, data, tmp_path / run, accounts=tmp_path / "accounts")
        if run == "one":
            states, _ = train(method, seen, RNG, engine=nodes)
            assert states[-1].server_state["counts"].shape == (2, 4)
        else:  # a second release does not fit the budget
            with pytest.raises(Exception, match=r"0 of 2 clients replied"):
                train(method, seen, RNG, engine=nodes)
        for i in range(2):
            balance = PrivacyAccounts(tmp_path / "accounts", f"client{i}").balance("leaf")
            assert balance.epsilon == spent


def test_seeded_noise_is_not_deployed():
    with pytest.raises(ValueError, match="a server may know as well"):
        COUNTED.check_deployed()
    PUBLISHED.check_deployed()


def test_two_places_of_one_category_are_near_what_is_below_each():
    shared = {5: 1, 6: 5}, {5: 1, 7: 5}
    data = federation(COMMON, shared)
    for same_names in ("two_places", "one_place"):
        method = SlotLayout("published", same_names=same_names)
        states, rows = train(method, data, RNG)
        table = states[-1].server_state["table"]
        assert table["rows"].tolist().count(5) == (2 if same_names == "two_places" else 1)
        assert next(row.value for row in rows if row.name == "holdout/map") == 1
        nodes, _ = method.node_places(states[-1].server_state, data.holdout, {})
        assert nodes.tolist() == [0, 1, 2, 5, 6, 7]


def test_parents_come_first_where_both_are_asked_for():
    data = PartitionedHierarchy(BalancedTree(3, 4), CommonLevels(4)).load(RNG)
    whole = data.holdout.test.hierarchy
    states, _ = train(SlotLayout("published", objective="both"), data, RNG)
    nodes, places = PUBLISHED.node_places(states[-1].server_state, data.holdout, {})
    assert nodes.tolist() == list(range(len(whole)))
    apart = places.cdist(places).fill_diagonal_(torch.inf)
    assert torch.equal(apart.argmin(dim=1)[1:], whole.primary_parents[1:])
    states, _ = train(PUBLISHED, data, RNG)
    _, closed = PUBLISHED.node_places(states[-1].server_state, data.holdout, {})
    assert closed.radii.max() < places.radii.max()


def test_a_node_that_nobody_placed_is_infinitely_far():
    data = federation(COMMON, [{3: 1, 4: 1}, {5: 2}])
    update, _ = PUBLISHED.local_update({}, data.clients[0], {}, RNG)
    total = PUBLISHED.aggregator.aggregate([(0, update)])
    state = PUBLISHED.server_update(PUBLISHED.init(data.meta, RNG), total)
    scores = PUBLISHED.evaluate(state, data.holdout, {}, RNG)
    # of node 5, which nobody placed, all others are at one distance: both ancestors come last
    assert scores["test/map"] == pytest.approx((4 * 1 + 2 / 5) / 5)


LIES = {
    "too far a row": lambda p: {**p, "rows": p["rows"] + 7},
    "a negative row": lambda p: {**p, "rows": p["rows"] - 1},
    "a negative radius": lambda p: {**p, "radii": -p["radii"]},
    "other numbers": lambda p: {**p, "turns": p["turns"].to(torch.int32)},
    "one row less": lambda p: {**p, "rows": p["rows"][1:]},
    "no turns": lambda p: {n: x for n, x in p.items() if n != "turns"},
    "a number": lambda p: {**p, "rows": 3},
    "not finite": lambda p: {**p, "radii": p["radii"] * torch.inf},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_sends_other_places_is_left_out(lie):
    data = of_client({3: 1, 4: 3, 5: 0})
    message = PUBLISHED.init(data.meta, RNG)
    update, _ = PUBLISHED.local_update(message, data.clients[0], {}, RNG)

    def fault(update):
        return find_update_fault(
            update,
            {},
            None,
            PUBLISHED.aggregator,
            bounds=lambda payload, norm: PUBLISHED.find_fault(message, payload, norm),
        )

    assert fault(update) is None
    assert fault(dataclasses.replace(update, payload=LIES[lie](update.payload))) is not None


def test_at_home_a_payload_is_empty_or_refused():
    assert KEPT.find_fault({}, {}, 0.0) is None
    assert "keeps its places" in KEPT.find_fault({}, {"rows": torch.zeros(1)}, 0.0)


@pytest.mark.parametrize("cells", [torch.zeros(3), torch.zeros(9, dtype=torch.int64), 3, None])
def test_a_count_of_another_form_is_refused(cells):
    message = {"num_nodes": 7, "num_clients": 2}
    phase = COUNTED.phase(message)
    payload = {} if cells is None else {"cells": cells}
    assert phase.find_fault(message, payload, 0.0) is not None
    assert phase.find_fault(message, {"cells": torch.tensor([2**40] * 4)}, 0.0) is not None
    assert phase.find_fault(message, {"cells": torch.tensor([-3, 9, 0, 0])}, 0.0) is None


def test_slots_need_common_nodes():
    data = PartitionedHierarchy(BalancedTree(2, 3), RandomPairs(3)).load(RNG)
    with pytest.raises(ValueError, match="give HolderFiles a common file, or use the partition"):
        KEPT.local_update({}, data.clients[0], {}, RNG)


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 0.0},
        {"same_names": "one_place", "slots": "counted"},
    ],
)
def test_a_setting_out_of_range_is_refused(settings):
    with pytest.raises(ValueError, match=r"slots|epsilon"):
        SlotLayout(**settings)


def test_all_clients_take_part_whatever_the_cohort():
    data = PartitionedHierarchy(BalancedTree(3, 3), CommonLevels(3)).load(RNG)
    states, rows = train(PUBLISHED, data, RNG, cohort=Cohort(rate=0.4))
    assert next(row.value for row in rows if row.name == "holdout/map") == 1
    assert len(states[-1].server_state["table"]["rows"]) == 40


def test_counts_make_radii_smaller_where_cells_are_unequal():
    """A common node with all leaves of one client: its slot takes most of the sector."""
    own = dict.fromkeys(range(3, 60), 1)
    data = federation({0: ROOT, 1: 0, 2: 0}, [own, {60: 2}, {61: 2}])
    exact = dataclasses.replace(COUNTED, mode="published", epsilon=50.0)
    radii = [
        float(train(method, data, RNG)[0][-1].server_state["table"]["radii"].max())
        for method in (PUBLISHED, exact)
    ]
    assert radii[1] < radii[0] - 1


def test_equal_weights_are_those_of_public_numbers():
    weights = SlotWeights.equal(4, 2, 5)
    assert [x.tolist() for x in (weights.total, weights.before, weights.own)] == [
        [5] * 4, [2] * 4, [1] * 4
    ]  # fmt: skip
