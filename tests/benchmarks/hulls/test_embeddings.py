"""Embeddings for FedHull: what trains the network, what is embedded, and rows of the table."""

import numpy as np
import pytest
import torch

pytest.importorskip("flint")

from benchmarks.hulls import dimensions as hull_dimensions
from benchmarks.hulls import embeddings
from benchmarks.hulls.dimensions import GENERATED, dealt_corners, flat, flat_corners, loaded
from benchmarks.hulls.embeddings import Parts, Task, embedded, saved
from benchmarks.hulls.rivals import gaussians
from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Points
from fedhull.exchanges import arrays


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(embeddings.TASKS, "digits", Task(Digits(), num_points=200, epochs=1))


def test_no_image_that_trains_the_network_is_embedded(monkeypatch):
    trained, given = [], embeddings.train

    def record(model, x, y, **settings):
        trained.append(x.flatten(1))
        given(model, x, y, **settings)
        model[0] = torch.nn.Flatten()  # the embedding shows the images themselves

    monkeypatch.setattr(embeddings, "train", record)
    parts = embedded(Task(Digits(), num_points=300, epochs=1), 2, 0)
    whole = Digits().read(None, download=False)
    (own,) = trained
    assert len(own) + len(parts.y_train) == len(whole.x_train)
    together = np.concatenate([own.double().numpy(), parts.x_train])
    images = whole.x_train.flatten(1).double().numpy()
    assert sorted(together.tolist()) == sorted(images.tolist())
    assert np.array_equal(parts.x_test, whole.x_test.flatten(1).double().numpy())


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.usefixtures("small")
def test_files_are_read_with_the_test_images_as_the_official_part(tmp_path, dim):
    file = saved(tmp_path, "digits", dim, 0)
    data = Points(file, IID(10), holdout="official").load(Rng(0))
    with np.load(file) as stored:
        parts = Parts(**stored)
    assert data.meta.input_shape == (dim,)
    assert data.holdout is not None
    held, labels = arrays(data.holdout.test)
    assert np.array_equal(held, parts.x_test)
    assert np.array_equal(labels, parts.y_test)
    assert sum(client.size for client in data.clients) == 200
    before = file.stat().st_mtime_ns
    assert saved(tmp_path, "digits", dim, 0).stat().st_mtime_ns == before  # not trained again


def test_the_flat_twin_has_units_of_its_own_length():
    parts = embedded(Task(Digits(), num_points=600, epochs=1), 3, 0, flat=True)
    length = np.sqrt(np.square(parts.x_train).sum(axis=1).mean())
    assert length == pytest.approx(1, rel=0.1)


def test_corners_of_the_flat_twin_are_those_of_a_square():
    square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]])
    x, y = np.concatenate([square, square + 9]), np.repeat([0, 1], 5)
    ((first, _), (second, _)) = flat_corners(x, y)
    assert sorted(first.tolist()) == sorted(square[:4].tolist())
    assert sorted(second.tolist()) == sorted((square[:4] + 9).tolist())
    twin = Parts(x, y, x, y)
    assert flat(twin, [(x, y)]) == {"accuracy": 100.0, "kilobytes": 8 * 30 / 1000}
    assert sum(len(own) for own, _ in dealt_corners(twin, 0)) == 10  # a point or two at a client


def test_the_size_of_gaussians_counts_all_products(tmp_path):
    data = loaded(GENERATED, 3, 0, tmp_path)
    assert gaussians(data)["kilobytes"] == 8 * (1 + 3 + 6) * 2 * 10 / 1000
    assert set(hull_dimensions.methods(GENERATED, 3)) == set(hull_dimensions.methods("digits", 5))
