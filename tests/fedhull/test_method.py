"""FedHull as a method: exact decoding, class names that stay at clients, faults detected."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from fedbolic.core.rng import Rng
from fedbolic.data import (
    HOLDOUT,
    ClassRuns,
    Client,
    Examples,
    FederatedData,
    HalfPlanes,
    Meta,
    Points,
)
from fedbolic.federated import RunStoppedError, Sequential
from fedbolic.federated.aggregators.modular import from_limbs, to_limbs
from fedbolic.federated.contract.engine import Exchange
from fedhull import (
    Assignment,
    BoseChowla,
    Central,
    EuclideanBoundary,
    FedHull,
    HyperbolicBoundary,
    HyperbolicSVC,
    KernighanLin,
    PolarGrid,
    Spectral,
)
from fedhull.exchanges import Hulls, arrays
from fedhull.leakage import quantised_hulls
from tests.federated.simple_method import train
from tests.fedhull.graham import graham_scan
from tests.fedhull.test_grouping import hulls as clouds


def federation(seed, num_clients=4, num_classes=3, apart=2.5, missing=0, switch=None):
    """Clients with a few points of each class; ``switch`` renames the classes at some clients."""
    sets, owners, classes = clouds(seed, num_clients, num_classes, apart, missing)
    held, _, held_classes = clouds(seed + 1, 3, num_classes, apart)
    meta = Meta(num_classes, (2,), num_clients)

    def examples(chosen, names):
        x = np.concatenate([np.empty((0, 2)), *(of for of, _ in chosen)])
        y = np.concatenate(
            [np.empty(0, dtype=int), *(np.full(len(of), names[k]) for of, k in chosen)]
        )
        return Examples({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})

    def part(i, names):
        return examples(
            [(s, k) for s, o, k in zip(sets, owners, classes, strict=True) if o == i], names
        )

    same, empty = np.arange(num_classes), examples([], [])
    test = list(zip(held, held_classes, strict=True))
    clients = []
    for i in range(num_clients):
        names = same if switch is None else switch[i]
        clients.append(Client(i, part(i, names), empty, examples(test, names), meta))
    return FederatedData(
        tuple(clients), meta, Client(HOLDOUT, empty, empty, examples(test, same), meta)
    )


def scores(rows, name):
    return {row.client: row.value for row in rows if row.name == name}


def sent(grid, server_state, data):
    """Bins of every label, as the clients encoded them."""
    order, num_classes = server_state["order"].tolist(), server_state["num_classes"]
    return {
        order[client.id] * num_classes + k: bins.tolist()
        for client in data.clients
        for k, bins in quantised_hulls(*arrays(client.train), grid).items()
    }


def received(server_state):
    """Bins of every label, as the server decoded them."""
    found = {name: tensor.numpy() for name, tensor in server_state["hulls"].items()}
    labels = np.unique(found["labels"])
    return {int(of): sorted(found["bins"][found["labels"] == of].tolist()) for of in labels}


@pytest.mark.parametrize(
    "method", [FedHull(), FedHull(bits=61), FedHull(bits=127), FedHull(code=BoseChowla(4))]
)
@settings(max_examples=3)
@given(st.integers(0, 2**31))
def test_every_hull_is_the_same_before_and_after_the_coded_round(method, seed):
    data = federation(seed, num_clients=3)
    positions, _ = train(method, data)
    server_state = positions[-1].server_state
    assert received(server_state) == sent(method.grid, server_state, data)


@pytest.mark.parametrize("grouping", [Assignment(), Spectral()])
@pytest.mark.parametrize("boundary", [HyperbolicBoundary(C=10.0), EuclideanBoundary(C=10.0)])
def test_clear_classes_are_learned(grouping, boundary):
    _, rows = train(FedHull(grouping=grouping, boundary=boundary), federation(0))
    assert scores(rows, "holdout/accuracy")[None] == 1.0
    assert set(scores(rows, "test/accuracy").values()) == {1.0}


def test_two_classes_by_kernighan_and_lin():
    _, rows = train(FedHull(grouping=KernighanLin()), federation(0, num_classes=2))
    assert scores(rows, "holdout/accuracy")[None] == 1.0


@settings(max_examples=5)
@given(st.integers(0, 2**31))
def test_switched_labels_change_nothing_at_the_clients(seed):
    g = np.random.default_rng(seed)
    switch = [g.permutation(3) for _ in range(4)]
    plain, switched = (train(FedHull(), federation(seed, switch=own))[1] for own in (None, switch))
    before, after = (scores(rows, "test/accuracy") for rows in (plain, switched))
    for i in range(4):
        assert after[i] == before[i]


def test_clients_may_lack_classes():
    _, rows = train(FedHull(), federation(2, missing=3))
    assert scores(rows, "holdout/accuracy")[None] == 1.0


def test_a_class_absent_everywhere_is_an_error():
    data = federation(0)
    meta = Meta(4, (2,), data.meta.num_clients)
    clients = tuple(dataclasses.replace(client, meta=meta) for client in data.clients)
    with pytest.raises(RunStoppedError, match=r"class is absent|no client has classes"):
        train(FedHull(), FederatedData(clients, meta, data.holdout))


def test_one_point_for_each_class_is_enough():
    data = federation(0)
    clients = tuple(
        dataclasses.replace(
            client,
            train=Examples(
                client.train.at(
                    torch.tensor(np.unique(client.train.all()["y"], return_index=True)[1])
                )
            ),
        )
        for client in data.clients
    )
    _, rows = train(FedHull(), FederatedData(clients, data.meta, data.holdout))
    assert scores(rows, "holdout/accuracy")[None] == 1.0


def test_a_least_count_that_nothing_meets_stops_the_run():
    with pytest.raises(RunStoppedError, match="no client reveals a bin"):
        train(FedHull(min_count=100), federation(0))


def hulls_exchange(method, data):
    """Phase, server state and updates of the exchange of hulls."""
    server_state, client_states = method.init(data.meta, Rng(0)), {}
    for _ in range(2):
        phase = method.phase(server_state)
        messages = {client.id: phase.broadcast(server_state, client.id) for client in data.clients}
        exchange = Exchange(phase, messages, data.clients, client_states, Rng(1))
        results = list(Sequential().run(exchange))
        client_states = {client.id: client_state for client, _, client_state in results}
        updates = [(client.id, update) for client, update, _ in results]
        if isinstance(phase, Hulls):
            return phase, server_state, updates
        server_state = phase.server_update(server_state, phase.aggregator.aggregate(updates))
    raise AssertionError("the second exchange is that of hulls")


@given(st.integers(0, 2**31), st.data())
def test_an_altered_sum_stops_the_run(seed, data):
    method = FedHull()
    phase, server_state, updates = hulls_exchange(method, federation(seed % 100))
    total = phase.aggregator.aggregate(updates)
    symbols = from_limbs(total.payload["sums"])
    place = data.draw(st.integers(0, len(symbols) - 1))
    symbols[place] = (symbols[place] + data.draw(st.integers(1, phase.modulus - 1))) % phase.modulus
    altered = dataclasses.replace(total, payload={"sums": to_limbs(symbols, phase.modulus)})
    with pytest.raises(RunStoppedError):
        phase.server_update(server_state, altered)


def test_a_capacity_below_what_is_sent_stops_the_run():
    method, data = FedHull(), federation(0)
    phase, server_state, _ = hulls_exchange(method, data)
    _, _, client_states = zip(
        *Sequential().run(
            Exchange(
                method.phase(method.init(data.meta, Rng(0))),
                {
                    c.id: method.broadcast(method.init(data.meta, Rng(0)), c.id)
                    for c in data.clients
                },
                data.clients,
                {},
                Rng(1),
            )
        ),
        strict=True,
    )
    small = server_state | {
        "capacity": max(len(client_state["own_bins"]) for client_state in client_states)
    }
    messages = {client.id: phase.broadcast(small, client.id) for client in data.clients}
    kept = {
        client.id: client_state
        for client, client_state in zip(data.clients, client_states, strict=True)
    }
    exchange = Exchange(phase, messages, data.clients, kept, Rng(1))
    updates = [(c.id, u) for c, u, _ in Sequential().run(exchange)]
    with pytest.raises(RunStoppedError, match=r"more than|no bins"):
        phase.server_update(small, phase.aggregator.aggregate(updates))


def test_the_order_of_labels_is_drawn_and_not_that_of_ids():
    data = HalfPlanes(num_points=400, least=20).load(Rng(0))
    orders = {tuple(FedHull().init(data.meta, Rng(seed))["order"].tolist()) for seed in range(5)}
    assert len(orders) == 5


def test_a_client_is_told_its_own_place_only():
    data = federation(0)
    server_state = FedHull().init(data.meta, Rng(0))
    for client in data.clients:
        message = FedHull().broadcast(server_state, client.id)
        assert message["place"] == int(server_state["order"][client.id])
        assert "order" not in message
    assert "place" not in FedHull().broadcast(server_state, HOLDOUT)


def test_inputs_that_are_no_points_of_the_plane_are_refused():
    with pytest.raises(ValueError, match="points of the plane, got 3 classes of inputs"):
        FedHull().init(Meta(3, (5,), 2), Rng(0))


def test_points_outside_the_disc_fail_at_their_client():
    data = federation(0)
    wrong = Examples({"x": torch.tensor([[1.5, 0.0]]).double(), "y": torch.tensor([0])})
    clients = (dataclasses.replace(data.clients[0], train=wrong), *data.clients[1:])
    _, rows = train(FedHull(), FederatedData(clients, data.meta, data.holdout))
    assert scores(rows, "clients/failed")[None] == 1.0
    assert scores(rows, "holdout/accuracy")[None] == 1.0


@pytest.mark.parametrize("hulls", ["none", "once", "released"])
def test_training_in_one_place_is_the_estimator_on_all_points(hulls):
    data = federation(0, apart=1.0)
    method = Central(HyperbolicBoundary(C=0.3), hulls=hulls)
    positions, _ = train(method, data)
    learned = positions[-1].server_state["model"]
    x = np.concatenate([client.train.all()["x"].numpy() for client in data.clients])
    y = np.concatenate([client.train.all()["y"].numpy() for client in data.clients])
    if hulls != "none":
        own = [np.flatnonzero(y == k) for k in range(3)]
        kept = [index[graham_scan(x[index])] for index in own]
        if hulls == "released":  # the released scan repeats its first corner at the end
            far = [index[np.linalg.norm(x[index], axis=1).argmax()] for index in own]
            kept = [np.append(of, first) for of, first in zip(kept, far, strict=True)]
        x, y = x[np.concatenate(kept)], y[np.concatenate(kept)]
    expected = HyperbolicSVC(C=0.3).fit(x, y)
    np.testing.assert_allclose(learned["points"].numpy(), expected.points_, atol=1e-12)
    np.testing.assert_allclose(learned["normals"].numpy(), expected.normals_, rtol=1e-6, atol=1e-9)


@pytest.mark.data
def test_olsson_has_the_accuracies_of_the_paper(data_root):
    """Accuracies of Tables 1 and 2; every hull must also arrive unchanged."""
    path = Path("single_cell/olsson/olsson_poincare_embedding.npz")
    grid = PolarGrid(epsilon=0.01, radius=0.9772)
    found: list[float] = []
    for seed in range(10):
        source = Points(path, ClassRuns(3, legacy=3), split=3, root=data_root)
        data = source.load(Rng(seed).at("data"))
        positions, rows = train(FedHull(grid, grouping=Spectral()), data)
        assert received(positions[-1].server_state) == sent(grid, positions[-1].server_state, data)
        found.append(100 * scores(rows, "holdout/accuracy")[None])
        if seed == 0:
            for method, published in (
                (Central(), 79.17),
                (Central(EuclideanBoundary()), 68.75),
                (Central(hulls="released"), 83.33),
                (Central(EuclideanBoundary(), hulls="released"), 77.08),
            ):
                _, rows = train(method, data)
                assert 100 * scores(rows, "holdout/accuracy")[None] == pytest.approx(
                    published, abs=0.005
                )
    half = student.ppf(0.975, 9) * np.std(found, ddof=1) / math.sqrt(10)
    assert np.mean(found) == pytest.approx(86.04, abs=0.005)
    assert half == pytest.approx(1.41, abs=0.005)


def test_hulls_hold_fewer_points_than_all_and_the_released_ones_repeat_one():
    points = federation(0).clients[0].train.all()["x"].numpy()
    everything = np.ones(len(points), dtype=bool)
    once, released = (Central(hulls=h)._corners(points, everything) for h in ("once", "released"))
    assert len(released) == len(once) + 1
    assert len(set(released.tolist())) == len(once)


def test_pictures_show_hulls_and_boundaries():
    data = federation(0)
    positions, _ = train(FedHull(), data)
    (drawn,) = FedHull().figures(positions[-1].server_state, data).values()
    assert int(drawn.curve_dashed.sum()) == 3
    assert int((~drawn.curve_dashed).sum()) == len(
        positions[-1].server_state["hulls"]["labels"].unique()
    )
