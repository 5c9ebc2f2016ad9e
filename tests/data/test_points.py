"""Points of the disc as clients: files, generated sets, partitions of the paper."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from sklearn.linear_model import LogisticRegression

from fedbolic.core.rng import Rng
from fedbolic.data import ClassRuns, HalfPlanes, Points, uniform_points
from fedbolic.manifolds import Poincare


@pytest.fixture
def file(tmp_path):
    g = np.random.default_rng(0)
    x = g.uniform(-0.6, 0.6, (40, 2))
    y = np.arange(40) % 4
    np.savez(
        tmp_path / "a.npz",
        x_train=x[:30],
        y_train=y[:30].astype(float),
        x_test=x[30:],
        y_test=y[30:],
    )
    return tmp_path / "a.npz", x, y


def everything(data):
    parts = [part for c in (*data.clients, data.holdout) for part in (c.train, c.test)]
    return np.concatenate([np.column_stack([p.all()["x"], p.all()["y"]]) for p in parts])


def test_every_point_is_somewhere_once_and_in_double_precision(file):
    path, x, y = file
    data = Points(path, ClassRuns(3), client_test_rate=0.3).load(Rng(0))
    found = everything(data)
    assert found.dtype == np.float64
    assert sorted(map(tuple, found)) == sorted(map(tuple, np.column_stack([x, y])))
    assert data.meta.num_classes == 4
    assert data.sizes == tuple(len(client.train) for client in data.clients)
    assert len(data.holdout.test) == 6


def test_a_split_that_is_given_does_not_follow_the_run(file):
    path, *_ = file
    held = [Points(path, split=3).load(Rng(seed)).holdout.test.all()["x"] for seed in (0, 1)]
    assert torch.equal(*held)
    held = [Points(path).load(Rng(seed)).holdout.test.all()["x"] for seed in (0, 1)]
    assert not torch.equal(*held)


def test_an_official_holdout_is_the_files_own_test_part_in_every_run(file):
    path, x, y = file
    for seed in (0, 1):
        data = Points(path, ClassRuns(3), holdout="official").load(Rng(seed))
        held = data.holdout.test.all()
        assert (held["x"].numpy() == x[30:]).all()
        assert (held["y"].numpy() == y[30:]).all()
        dealt = np.concatenate(
            [np.column_stack([*client.train.all().values()]) for client in data.clients]
        )
        expected = np.column_stack([x[:30], y[:30]])
        assert sorted(map(tuple, dealt)) == sorted(map(tuple, expected))


def test_a_part_that_is_empty_and_a_split_that_is_not_drawn_are_refused(file):
    path, x, y = file
    with pytest.raises(ValueError, match="split is 3, but the official holdout is not drawn"):
        Points(path, split=3, holdout="official")
    np.savez(path, x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    with pytest.raises(ValueError, match="has an empty part: use holdout='drawn'"):
        Points(path, holdout="official").load(Rng(0))
    assert len(Points(path).load(Rng(0)).holdout.test) == 6


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 99))
def test_runs_of_classes_cover_everything_once_in_equal_lengths(labels, num_clients, seed):
    y = torch.tensor(labels)
    parts = ClassRuns(num_clients).split(y, Rng(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))
    for k in set(labels):
        counts = [int((y[part] == k).sum()) for part in parts]
        length = math.ceil(sum(counts) / num_clients)
        assert counts == [max(0, min(length, sum(counts) - i * length)) for i in range(num_clients)]


def test_the_old_shuffle_is_that_of_the_authors():
    y = torch.tensor([0, 1] * 6)
    order = np.random.RandomState(15).permutation(12)
    runs = [order[y.numpy()[order] == k] for k in (0, 1)]
    expected = [sorted([*runs[0][i : i + 2], *runs[1][i : i + 2]]) for i in (0, 2, 4)]
    found = ClassRuns(3, legacy=3).split(y, Rng(5).at("anything"))
    assert [part.tolist() for part in found] == expected


@pytest.mark.parametrize(("radius", "c"), [(0.95, 1.0), (0.5, 2.0)])
def test_generated_points_are_uniform_by_area(radius, c):
    x = uniform_points(4000, radius=radius, c=c, rng=Rng(1))

    # the area of a hyperbolic disc grows as sinh^2 of half its radius in units of length
    def area(r):
        return np.sinh(np.arctanh(r * math.sqrt(c))) ** 2

    share = area(x.norm(dim=1).numpy()) / area(radius)
    assert kstest(share, "uniform").pvalue > 1e-3
    assert (
        kstest(torch.atan2(x[:, 1], x[:, 0]).numpy() / (2 * math.pi) + 0.5, "uniform").pvalue > 1e-3
    )


def test_a_margin_is_kept_on_both_sides():
    data = HalfPlanes(num_points=3000, margin=0.5, least=50).load(Rng(0))
    found = everything(data)
    x, y = torch.from_numpy(found[:, :2]), found[:, 2]
    between = Poincare().cdist(x[y == 0], x[y == 1]).min()
    assert 1.0 <= float(between) < 1.5


def test_labels_overlap_as_normal_noise_in_the_distance_says():
    plain, noisy = (
        everything(HalfPlanes(num_points=4000, offset=0.0, overlap=overlap).load(Rng(0)))
        for overlap in (0.0, 0.5)
    )
    plain, noisy = (found[np.lexsort(found[:, :2].T)] for found in (plain, noisy))
    x, y = plain[:, :2], plain[:, 2]
    assert (x == noisy[:, :2]).all()
    # the geodesic passes through the origin, where it is a line; sinh d = 2 <x, n> / (1 - |x|^2)
    (n,) = LogisticRegression(C=1e9, fit_intercept=False).fit(x, y).coef_
    away = np.arcsinh(2 * x @ n / np.linalg.norm(n) / (1 - np.square(x).sum(axis=1)))
    assert np.mean((away > 0) == y) > 0.995
    other = norm.cdf(-abs(away) / 0.5)
    error = np.sqrt((other * (1 - other)).sum())
    assert abs((noisy[:, 2] != y).sum() - other.sum()) < 4 * error + 20


def test_hopeless_requests_and_bad_files_are_refused(file, tmp_path):
    with pytest.raises(ValueError, match="geodesics left fewer than"):
        HalfPlanes(num_points=20, margin=5.0, least=9).load(Rng(0))
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz is not in"):
        Points(tmp_path / "nothing.npz").load(Rng(0))
    (tmp_path / "b.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is damaged or no"):
        Points(tmp_path / "b.npz").load(Rng(0))
    path, x, y = file
    np.savez(path, x_train=x * 9, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ValueError, match="are not on"):
        Points(path).load(Rng(0))
    np.savez(path, x_train=x, y_train=y + 0.5, x_test=x, y_test=y)
    with pytest.raises(ValueError, match="one integer label"):
        Points(path).load(Rng(0))


@pytest.mark.data
def test_the_published_cells_are_read(data_root):
    path = "single_cell/olsson/olsson_poincare_embedding.npz"
    data = Points(Path(path), split=3, root=data_root).load(Rng(0))
    labels = everything(data)[:, 2].astype(int)
    assert np.bincount(labels).tolist() == [13, 59, 33, 95, 28, 59, 14, 18]
    assert len(data.holdout.test) == 48
