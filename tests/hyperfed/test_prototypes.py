import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits
from torch.testing import assert_close

from benchmarks.solvers import LARGE, SEARCHED, levenshtein, rankin
from fedbolic.core.rng import Rng
from hyperfed.prototypes import eq5, min_angle, prototypes, tammes
from hyperfed.sphere import _soft_maximum, construct, search

EASY = [case for case in SEARCHED if case.num_points in {7, 10, 12, 16}]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr("fedbolic.data.files.download.cache", lambda: tmp_path)
    return tmp_path / "tammes"


@pytest.fixture
def searches(monkeypatch, folder):
    """Arguments of the searches that were made, each with few starts."""
    made = []

    def few(num_points, dim, rng):
        made.append((num_points, dim))
        return search(num_points, dim, rng, starts=2)

    monkeypatch.setattr("hyperfed.prototypes.search", few)
    return made


def test_a_search_has_one_blas_thread_and_gives_back_those_of_before(monkeypatch):
    def threads():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    seen = []
    monkeypatch.setattr(
        "hyperfed.sphere._descend", lambda points, *_: seen.append(threads()) or points
    )
    with threadpool_limits(2, "blas"):
        search(5, 3, Rng(0), starts=1)
        assert (seen, threads()) == ([{1}], {2})


def largest_cosine(points):
    return float((points @ points.T).fill_diagonal_(-1).max())


def one_array():
    """A file in numpy's format for a single array."""
    file = io.BytesIO()
    np.save(file, np.eye(3))
    return file.getvalue()


@st.composite
def closed_forms(draw):
    dim = draw(st.integers(1, 40))
    return draw(st.integers(2, 60 if dim == 2 else 2 * dim)), dim


@given(closed_forms(), st.integers(0, 9))
def test_every_construction_has_unit_rows_and_the_closed_form(size, seed):
    num_points, dim = size
    points = tammes(num_points, dim, seed=seed)
    assert points.shape == size
    assert points.dtype == torch.float64
    assert_close(points.norm(dim=1), torch.ones(num_points).double(), rtol=0, atol=1e-15)
    expected = math.cos(math.radians(rankin(num_points, dim)))
    assert largest_cosine(points) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("num_points", "dim"), [(10, 20), (26, 20), (40, 20), (10, 5), (10, 2)])
def test_settings_of_the_paper_need_no_search(searches, num_points, dim):
    assert min_angle(tammes(num_points, dim)) == pytest.approx(rankin(num_points, dim), abs=1e-10)
    assert not searches


def test_simplex_has_one_angle_only_and_is_balanced():
    points = tammes(7, 9)
    cosines = (points @ points.T)[~torch.eye(7, dtype=torch.bool)]
    assert_close(cosines, torch.full((42,), -1 / 6, dtype=torch.float64), rtol=0, atol=1e-15)
    assert_close(points.sum(dim=0), torch.zeros(9).double(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("case", EASY, ids=str)
def test_search_reaches_the_best_known_in_few_starts(case):
    angle = min_angle(torch.from_numpy(search(case.num_points, case.dim, Rng(0), starts=6)))
    assert abs(angle / case.best - 1) < 1e-5


@pytest.mark.parametrize("sharpness", [1.0, 30.0, 1e4])
def test_gradient_of_the_search_is_that_of_torch(sharpness):
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    points = rows / rows.norm(dim=1, keepdim=True)
    pairs = (points @ points.T)[~torch.eye(6, dtype=torch.bool)]
    expected = (sharpness * pairs).logsumexp(dim=0) / sharpness
    expected.backward()
    value, gradient = _soft_maximum(rows.detach().numpy().ravel(), (6, 4), sharpness)
    assert value == pytest.approx(float(expected.detach()), rel=1e-14)
    assert_close(torch.from_numpy(gradient), rows.grad.flatten())


@pytest.mark.slow
@pytest.mark.parametrize("case", SEARCHED, ids=str)
def test_search_reaches_the_best_known(case, folder):
    angle = min_angle(tammes(case.num_points, case.dim))
    assert abs(angle / case.best - 1) < 1e-5


@pytest.mark.slow
def test_hundred_classes_in_twenty_dimensions(folder):
    angle = min_angle(tammes(LARGE.num_points, LARGE.dim))
    assert 81.3 <= angle <= levenshtein(LARGE.num_points, LARGE.dim)


@given(st.integers(4, 20), st.integers(0, 99))
def test_search_keeps_the_bound_of_fejes_toth(num_points, seed):
    omega = math.pi * num_points / (num_points - 2) / 6
    bound = math.degrees(math.acos((1 / math.tan(omega) ** 2 - 1) / 2))
    angle = min_angle(torch.from_numpy(search(num_points, 3, Rng(seed), starts=1)))
    assert angle <= bound + 1e-9
    if num_points in (4, 6, 12):  # the bound is attained: tetrahedron, octahedron, icosahedron
        assert angle >= 0.9 * bound


@pytest.mark.slow
def test_starts_differ():
    def angle(seed, starts):
        return min_angle(torch.from_numpy(search(20, 7, Rng(seed), starts=starts)))

    gains = [angle(seed, 4) - angle(seed, 1) for seed in range(3)]
    assert min(gains) >= 0
    assert max(gains) > 0.01


def test_search_beats_the_papers_optimiser():
    points = torch.from_numpy(search(20, 5, Rng(0), starts=2))
    assert min_angle(points) > max(min_angle(eq5(20, 5, seed=seed)) for seed in range(3))


def test_papers_optimiser_descends_its_own_loss_and_may_merge_classes():
    def loss(w):
        return float((w @ w.T - 2 * torch.eye(len(w))).max(dim=1).values.mean())

    few, many = (eq5(10, 2, steps=steps) for steps in (10, 5000))
    assert loss(many) < loss(few)
    assert loss(many) < loss(tammes(10, 2))  # it prefers a worse set
    assert min(min_angle(eq5(10, 2, seed=seed)) for seed in range(3)) < 1
    assert_close(many.norm(dim=1), torch.ones(10).double())


def test_one_step_of_the_papers_optimiser_is_a_gradient_step():
    start = eq5(7, 4, steps=0).requires_grad_()
    (start @ start.T - 2 * torch.eye(7)).max(dim=1).values.mean().backward()
    assert start.grad is not None
    after = start.detach() - 0.1 * start.grad
    assert_close(eq5(7, 4, steps=1), after / after.norm(dim=1, keepdim=True))


def test_same_seed_same_points_whatever_torch_and_numpy_drew(searches, folder):
    first = tammes(9, 4, seed=3)
    (folder / "9x4-seed3.npz").unlink()
    torch.manual_seed(1)
    np.random.default_rng().random()
    assert torch.equal(tammes(9, 4, seed=3), first)
    assert not torch.equal(tammes(9, 4, seed=4), first)
    assert searches == [(9, 4)] * 3


def test_a_search_is_made_once(searches):
    assert torch.equal(tammes(9, 4), tammes(9, 4))
    assert searches == [(9, 4)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: np.savez(path, points=np.eye(9)),
        lambda path: np.savez(path, points=np.eye(9), angle=90.0),
        lambda path: np.savez(path, points=np.eye(9)[:, :4], angle=90.0),
        lambda path: np.savez(path, points=np.array(["a"]), angle=90.0),
        lambda path: np.savez(path, points=tammes(9, 4).numpy().round(6), angle=80.0),
        lambda path: np.savez(path, points=tammes(9, 4).roll(1, 1).numpy(), angle=80.0),
        lambda path: path.write_bytes(one_array()),
        lambda path: np.savez(path, points=2 * tammes(9, 4), angle=min_angle(tammes(9, 4))),
    ],
)
def test_a_damaged_file_is_made_again_with_a_warning(searches, folder, caplog, damage):
    first = tammes(9, 4)
    damage(folder / "9x4-seed0.npz")
    assert torch.equal(tammes(9, 4), first)
    assert torch.equal(tammes(9, 4), first)
    assert len(caplog.records) == 1
    assert len(searches) == 2


def test_a_folder_that_cannot_be_written_costs_a_warning_only(searches, folder, caplog):
    folder.write_text("a file where the folder should be")
    assert tammes(9, 4).shape == (9, 4)
    assert "could not be kept" in caplog.text


def test_nothing_else_stays_in_the_folder(searches, folder):
    tammes(9, 4)
    assert [path.name for path in folder.iterdir()] == ["9x4-seed0.npz"]


@pytest.mark.parametrize("degrees", [0, 1e-9, 1e-3, 45, 90, 179.999, 180])
def test_least_angle_is_accurate_from_nought_to_half_a_turn(degrees):
    turn = math.radians(degrees)
    points = torch.tensor([[1.0, 0.0], [math.cos(turn), math.sin(turn)]], dtype=torch.float64)
    assert min_angle(points) == pytest.approx(degrees, rel=1e-12, abs=1e-13)


@given(st.floats(0.01, 0.99), st.integers(2, 12), st.integers(6, 9))
def test_prototypes_lie_at_one_distance_inside_the_ball(slope, num_classes, dim):
    points = prototypes(num_classes, dim, slope)
    square = points.square().sum(dim=1)
    distance = torch.acosh(1 + 2 * square / (1 - square))  # Eq. (1) from the origin
    assert_close(distance, torch.full_like(distance, 2 * math.atanh(slope)))
    assert_close(points / slope, tammes(num_classes, dim))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 3), "num_classes must be at least 2, got 1"),
        ((0, 3), "num_classes must be at least 2, got 0"),
        ((3, 0), "dim must be at least 1, got 0"),
        ((3, 1), "a line has two directions, not 3: dim must be at least 2"),
    ],
)
def test_sizes_without_an_answer_are_refused(arguments, message):
    for function in (tammes, eq5, lambda *size: prototypes(*size, 0.5)):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


@pytest.mark.parametrize("slope", [0.0, -0.5, 1.0, 1.5, math.nan])
def test_slope_outside_the_ball_is_refused(slope):
    with pytest.raises(ValueError, match=r"slope must lie in \(0, 1\)"):
        prototypes(10, 20, slope)


def test_two_classes_fit_on_a_line():
    assert tammes(2, 1).flatten().sort().values.tolist() == [-1.0, 1.0]


def test_other_wrong_values_are_refused():
    with pytest.raises(ValueError, match="an angle needs two points, got 1"):
        min_angle(torch.ones(1, 3).double())
    with pytest.raises(ValueError, match="lr must be a positive number"):
        eq5(3, 2, lr=0.0)
    with pytest.raises(ValueError, match="starts must be at least 1, got 0"):
        search(9, 4, Rng(0), starts=0)
    assert construct(9, 4) is None
