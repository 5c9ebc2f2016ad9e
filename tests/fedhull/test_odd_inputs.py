"""Data at the edge of what is allowed: a correct result, or an error that names the fault."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from fedbolic.data import Examples, FederatedData, Meta
from fedbolic.federated import RunStoppedError
from fedhull import EuclideanBoundary, FedHull, HyperbolicBoundary, HyperbolicSVC, PolarGrid, hull
from fedhull.leakage import leakage, quantised_hull, quantised_hulls
from tests.federated.simple_method import train
from tests.fedhull.test_method import federation, received, scores, sent

EDGE = float(np.nextafter(1, 0))
every_boundary = pytest.mark.parametrize(
    "boundary", [HyperbolicBoundary(C=10.0), EuclideanBoundary(C=10.0)]
)


def replaced(data, delta):
    """The federation with ``delta(points, labels)`` in place of every client's training points."""
    clients = []
    for client in data.clients:
        own = client.train.all()
        x, y = delta(own["x"].numpy(), own["y"].numpy())
        examples = Examples({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
        clients.append(dataclasses.replace(client, train=examples))
    return FederatedData(tuple(clients), data.meta, data.holdout)


def learned(data, **settings):
    """The server's accuracy; every hull must also arrive unchanged."""
    method = FedHull(**settings)
    positions, rows = train(method, data)
    server_state = positions[-1].server_state
    assert received(server_state) == sent(method.grid, server_state, data)
    return scores(rows, "holdout/accuracy")[None]


def test_an_empty_class_has_an_empty_hull_and_no_label():
    empty, grid = np.empty((0, 2)), PolarGrid(0.5)
    assert len(hull(empty)) == 0
    assert len(quantised_hull(empty, grid)) == 0
    x, y = np.array([[0.3, 0.1]]), np.array([2])
    revealed = quantised_hulls(x, y, grid)
    assert list(revealed) == [2]
    assert leakage(empty, y[:0], grid, revealed={}).share == 0


@every_boundary
def test_an_empty_class_at_a_client_is_learned_from_the_others(boundary):
    data = federation(0)

    def without_the_first(x, y):
        return x[y != 0], y[y != 0]

    first = replaced(data, without_the_first).clients[0]
    data = FederatedData((first, *data.clients[1:]), data.meta, data.holdout)
    assert learned(data, boundary=boundary) == 1.0


def test_a_client_without_points_takes_part():
    data = federation(0)
    first = replaced(data, lambda x, y: (x[:0], y[:0])).clients[0]
    assert learned(FederatedData((first, *data.clients[1:]), data.meta, data.holdout)) == 1.0


@every_boundary
def test_one_point_of_each_class_is_enough(boundary):
    def one_each(x, y):
        index = np.unique(y, return_index=True)[1]
        return x[index], y[index]

    assert learned(replaced(federation(0), one_each), boundary=boundary) == 1.0
    x = np.array([[0.5, 0.0], [-0.5, 0.0]])
    model = HyperbolicSVC(C=10.0).fit(x, [0, 1])
    np.testing.assert_allclose(model.points_, [[0.0, 0.0]], atol=1e-15)
    assert model.predict(x).tolist() == [0, 1]


@every_boundary
def test_collinear_classes_are_separated(boundary):
    """Each class lies on a diameter, exactly since its numbers are dyadic: hulls are segments."""
    places = np.arange(8, 30)[:, None] / 32
    x = np.concatenate([places * direction for direction in ([1, 0], [-0.5, 0.5], [-0.5, -0.5])])
    y = np.repeat([0, 1, 2], len(places))
    assert all(sorted(hull(x[y == k])) == [0, len(places) - 1] for k in range(3))
    found = boundary.log_odds(boundary.fit(x, y, c=1.0), x, c=1.0)
    assert (found.argmax(axis=1) == y).all()


def test_all_points_of_all_classes_on_one_geodesic():
    x = np.arange(-20, 21)[:, None] / 32 * np.array([1.0, 0.0])
    y = (x[:, 0] > 0.01).astype(int)
    assert HyperbolicSVC(C=100.0).fit(x, y).score(x, y) == 1.0


def test_points_at_the_boundary_are_points():
    x = np.array([[EDGE, 0.0], [0.0, EDGE], [-EDGE, 0.0], [0.2, 0.2], [0.0, 0.0]])
    assert set(hull(x)) == {0, 1, 2}
    grid = PolarGrid(0.1, 0.95)
    bins = quantised_hull(x, grid)
    assert len(bins) == 3
    assert ((bins - 1) // grid.num_angles == grid.num_rings - 1).all()  # clipped
    y = np.array([0, 1, 1, 0, 1])
    model = HyperbolicSVC().fit(x, y)
    assert np.isfinite(model.decision_function(x)).all()
    assert np.isfinite(model.gap_)


@pytest.mark.parametrize("c", [0.3, 1.0, 7.0])
def test_points_on_or_beyond_the_boundary_are_refused_by_every_function(c):
    inside = np.array([[0.1, 0.0], [0.0, 0.1]])
    for norm in (1.0, 1.0 + 1e-9, 5.0, math.nan, math.inf):
        x = np.concatenate([inside, [[norm / math.sqrt(c), 0.0]]])
        if norm == 1.0 and c * x[2, 0] ** 2 < 1:  # the root was rounded down
            x[2, 0] = np.nextafter(x[2, 0], 2)
        y, grid = np.array([0, 1, 1]), PolarGrid(0.5, 0.5 / math.sqrt(c), c)
        model = HyperbolicSVC(c=c).fit(inside, y[:2])
        doors = (
            lambda x=x: hull(x, c=c),
            lambda x=x, grid=grid: grid.encode(x),
            lambda x=x, grid=grid: quantised_hull(x, grid),
            lambda x=x, y=y: HyperbolicSVC(c=c).fit(x, y),
            lambda x=x, model=model: model.predict(x),
        )
        for door in doors:
            with pytest.raises(ValueError, match=r"open ball|NaN|infinity"):
                door()


@every_boundary
def test_duplicates_of_points_change_no_hull_and_no_accuracy(boundary):
    data = federation(0)
    twice = replaced(data, lambda x, y: (np.repeat(x, 3, axis=0), np.repeat(y, 3)))
    grid = PolarGrid()
    for one, other in zip(data.clients, twice.clients, strict=True):
        plain, copied = (
            quantised_hulls(own["x"].numpy(), own["y"].numpy(), grid)
            for own in (one.train.all(), other.train.all())
        )
        assert plain.keys() == copied.keys()
        assert all(np.array_equal(bins, copied[k]) for k, bins in plain.items())
    assert learned(twice, boundary=boundary) == 1.0


def test_one_point_a_hundred_thousand_times_is_one_corner():
    x = np.tile([[0.3, 0.2]], (100_000, 1))
    assert hull(x).tolist() == [0]


def test_the_same_point_in_two_classes_is_certified_all_the_same():
    x = np.array([[0.3, 0.2], [0.3, 0.2], [0.5, 0.0], [-0.5, 0.0]])
    for loss, pairs in itertools.product(("hinge", "squared_hinge"), (1, 3)):
        model = HyperbolicSVC(C=5.0, loss=loss, pairs=pairs).fit(x, [0, 1, 0, 1])
        assert model.gap_ <= 1e-8
        assert model.score(x, [0, 1, 0, 1]) >= 0.5


def test_all_clients_with_the_same_points():
    first = federation(0).clients[0].train
    data = federation(0)
    clients = tuple(dataclasses.replace(client, train=first) for client in data.clients)
    assert learned(FederatedData(clients, data.meta, data.holdout)) == 1.0


@pytest.mark.parametrize("absent", [0, 1, 3])
def test_a_class_absent_everywhere_stops_the_run(absent):
    """The remaining classes are not spread over the group of the absent one."""
    data = federation(0, num_classes=3)
    names = np.array([k for k in range(4) if k != absent])
    meta = Meta(4, (2,), data.meta.num_clients)
    renamed = replaced(data, lambda x, y: (x, names[y]))
    clients = tuple(dataclasses.replace(client, meta=meta) for client in renamed.clients)
    with pytest.raises(RunStoppedError, match=r"class is absent|no client has classes"):
        train(FedHull(), FederatedData(clients, meta, data.holdout))


def test_one_client_alone():
    data = federation(0)
    meta = Meta(3, (2,), 1)
    client = dataclasses.replace(data.clients[0], meta=meta)
    assert learned(FederatedData((client,), meta, data.holdout)) == 1.0
