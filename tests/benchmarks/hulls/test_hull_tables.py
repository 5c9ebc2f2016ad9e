"""Interrupted tables go on where they stopped, and rivals are what they are called."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

pytest.importorskip("flint")

from benchmarks.hulls import rivals as hull_rivals
from benchmarks.hulls import tables
from benchmarks.results import Results
from fedbolic.data import HalfPlanes
from fedbolic.manifolds import Poincare
from fedhull import Assignment, FedHull, HullPeeling, PolarGrid
from fedhull.exchanges import arrays


@pytest.fixture(scope="module")
def data():
    return HalfPlanes(num_points=600, least=50, overlap=0.3).load(tables.Rng(0))


def test_figures_in_the_file_are_not_measured_again(tmp_path, capsys):
    calls = []

    def measure(value, *, twice):
        calls.append(value)
        return {"value": value * (1 + twice)}

    for _ in range(2):
        results = Results(tmp_path / "some.csv")
        for seed in range(3):
            results.add(("table", "a, row", str(seed)), measure, float(seed), twice=True)
    assert calls == [0.0, 1.0, 2.0]
    assert [of["value"] for of in Results(tmp_path / "some.csv").known.values()] == [0, 2, 4]
    capsys.readouterr()
    results.show("table", ("value", "absent"))
    results.show("other", ("value",))
    assert "| a, row | 3 | 2.00 ± 4.97 |  |" in capsys.readouterr().out  # 4.303 * 2 / sqrt(3)


def test_gaussians_are_those_of_scipy(data):
    x, y = (np.concatenate(of) for of in zip(*(arrays(d.train) for d in data.clients), strict=True))
    test, labels = arrays(data.holdout.test)

    def logs(points):
        return Poincare().logmap0(tables.torch.from_numpy(points)).numpy()

    odds = []
    for k in range(2):
        own = logs(x[y == k])
        density = multivariate_normal(own.mean(axis=0), np.cov(own.T, bias=True))
        odds.append(density.logpdf(logs(test)) + np.log((y == k).mean()))
    expected = 100 * np.mean(np.argmax(odds, axis=0) == labels)
    assert hull_rivals.gaussians(data)["accuracy"] == pytest.approx(expected)


def test_rivals_fill_no_more_bins_than_hulls(data):
    case = tables.Case(lambda _: data, 1.0, PolarGrid(0.1, 0.95))
    most = sum(len(y) for _, y in hull_rivals.hulls(case, data, None))
    for summary in (hull_rivals.drawn, hull_rivals.centres):
        sent = hull_rivals.summarised(case, data, lambda x, k, of=summary: of(x, k, seed=0))
        assert 0.8 * most < sum(len(y) for _, y in sent) <= most
    found = hull_rivals.trained(
        tables.HyperbolicBoundary(1.0), case, data, lambda: hull_rivals.hulls(case, data, None)
    )
    run = tables.measured(FedHull(case.grid, boundary=tables.HyperbolicBoundary(1.0)), data, 0)
    assert found["accuracy"] == pytest.approx(run["accuracy"])
    assert run["misplaced"] == 0


def test_misplaced_hulls_are_counted(data):
    method = FedHull(core=HullPeeling(0.1))
    _, server_state = tables.run(method, data, 0)

    class Wrong(Assignment):
        def groups(self, distances, clients, *, num_groups, seed=0):
            groups = super().groups(distances, clients, num_groups=num_groups, seed=seed)
            return np.where(np.arange(len(groups)) < 2, 1 - groups, groups)

    assert tables.misplaced(method, server_state, Assignment()) == 0
    assert tables.misplaced(method, server_state, Wrong()) == pytest.approx(10)  # 2 of 20 hulls
