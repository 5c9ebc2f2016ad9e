"""Plots show the given numbers; without the extra, only the figures are missing."""

import itertools
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from fedbolic.core.figure import DiscFigure, EmbeddingFigure, write_figure
from fedbolic.core.rows import Row
from fedbolic.manifolds import Poincare
from fedbolic.report.figure_plots import draw_figure, nearest_marks, pca
from fedbolic.report.plots import draw_figures, plot, plot_ranks
from fedbolic.run.record import RunFolder

pytest.importorskip("matplotlib.figure")
image = pytest.importorskip("matplotlib.image")

ACCURACIES = {"holdout/accuracy": [(0.3, 0.5), (0.3, 0.6)], "test/accuracy": [(0.4, 0.7)] * 2}
"""Values of each metric in two rounds, for each of two seeds."""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def measured(seed):
    return [
        Row(round, None, name, seeds[seed][round - 1])
        for name, seeds in ACCURACIES.items()
        for round in (1, 2)
    ]


def circle(num_classes, radius=0.9):
    angles = torch.arange(num_classes) * 2 * math.pi / num_classes
    return radius * torch.stack([angles.cos(), angles.sin()], dim=1)


def disc(num_classes=3, radius=0.5):
    return DiscFigure(circle(num_classes, radius), torch.arange(num_classes), circle(num_classes))


def drawing(folder, figure):
    """Pixels of a figure after saving, drawing and reading."""
    folder.save_figures({"a": figure})
    draw_figure(folder.figures()[0], title="t", digest="")
    return image.imread(folder.path / "figures" / "a.png")


@pytest.mark.parametrize(
    "rows", [[], [Row(1, None, "train/loss", 0.5)], [Row(1, None, "holdout/accuracy", 0.5)]]
)
def test_a_plot_of_little_or_nothing_is_a_plot(rows, tmp_path):
    plot({"a": [rows]}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [file.name for file in tmp_path.iterdir()] == ["plot.png"]


def test_a_plot_shows_mean_and_range_over_seeds(tmp_path, drawn):
    plot({"a": [measured(0), measured(1)]}, tmp_path / "plot.png")
    left, right = drawn[0].axes
    assert list(left.lines[0].get_xdata()) == [1, 2]
    assert left.lines[0].get_ydata() == pytest.approx([30.0, 55.0])
    assert right.lines[0].get_ydata() == pytest.approx([40.0, 70.0])
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((30.0, 60.0))


def test_a_busy_machine_is_not_warned_of(tmp_path, monkeypatch):
    hours = itertools.count(0, 3600)
    clock = SimpleNamespace(perf_counter=lambda: next(hours))
    monkeypatch.setattr("matplotlib.legend.time", clock)
    plot({"a": [measured(0)]}, tmp_path / "plot.png")  # a warning is an error
    assert next(hours) > 0


def test_a_plot_is_drawn_again_when_what_it_shows_has_changed(tmp_path, drawn):
    file = tmp_path / "plot.png"
    plot({"a": [measured(0)]}, file)
    plot({"a": [[*measured(0), Row(2, None, "train/loss", 0.1)]]}, file)
    assert len(drawn) == 1
    for changed in ({"b": [measured(0)]}, {"b": [measured(1)]}, {"b": [measured(1), measured(0)]}):
        plot(changed, file)
    plot_ranks({"a": 1.0, "b": 2.0}, 1.0, file)
    plot_ranks({"a": 1.0, "b": 2.0}, 1.0, file)
    plot_ranks({"a": 1.0, "b": 2.0}, 1.5, file)
    assert len(drawn) == 6
    file.unlink()
    plot_ranks({"a": 1.0, "b": 2.0}, 1.5, file)
    assert len(drawn) == 7


def test_a_figure_is_drawn_again_when_its_points_or_its_title_have_changed(folder, drawn):
    for title, radius in (("t", 0.5), ("t", 0.5), ("t", 0.4), ("u", 0.4), ("u", 0.4)):
        (folder.path / "figures").mkdir(exist_ok=True)
        with (folder.path / "figures" / "a.npz").open("wb") as file:
            write_figure(disc(radius=radius), file)
        draw_figures({title: folder})
    assert [canvas.axes[0].get_title()[0] for canvas in drawn] == ["t", "t", "u"]


def test_a_disc_is_drawn_and_follows_its_points_and_marks(folder):
    first = drawing(folder, disc())
    assert len({tuple(pixel) for pixel in first.reshape(-1, first.shape[-1])}) > 10
    assert (drawing(folder, disc()) == first).all()
    assert (drawing(folder, disc(radius=0.4)) != first).any()
    without = drawing(folder, DiscFigure(disc().points, disc().labels))
    assert without.shape == first.shape
    assert (without != first).any()


def test_a_disc_is_round_and_shows_where_every_point_of_a_class_is(folder, drawn):
    given = DiscFigure(circle(4, 0.5), torch.tensor([1, 0, 1, 25]), circle(26))
    drawing(folder, given)
    (axes,) = drawn[0].axes
    assert axes.get_aspect() == 1
    (boundary,) = axes.patches
    assert (boundary.center, boundary.radius) == ((0, 0), 1)
    by_label = {c.get_label(): c.get_offsets() for c in axes.collections}
    for label in (0, 1, 25):
        expected = given.points[given.labels == label]
        assert torch.as_tensor(by_label[str(label)]).float().equal(expected)
    assert [text.get_text() for text in axes.texts] == [str(k) for k in range(26)]
    for text, place in zip(axes.texts, given.marks.tolist(), strict=True):
        assert list(text.xy) == place
    assert axes.get_title() == "t: a in the Poincaré disc"


def test_26_classes_differ_in_colour_or_shape(folder, drawn):
    drawing(folder, disc(26))
    points = [c for c in drawn[0].axes[0].collections if c.get_label() in map(str, range(26))]
    looks = {(c.get_facecolor().tobytes(), c.get_paths()[0].vertices.tobytes()) for c in points}
    assert len(points) == len(looks) == 26
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.texts] == [str(k) for k in range(26)]


def test_a_disc_without_a_point_is_drawn(folder):
    drawing(folder, DiscFigure(torch.empty(0, 2), torch.empty(0, dtype=torch.long)))


class FirstTwo:
    """Replacement for umap-learn: projects to the first two coordinates."""

    calls = 0

    def __init__(self, *, random_state, n_jobs):
        assert random_state is not None  # otherwise drawings would differ

    def fit_transform(self, points):
        type(self).calls += 1
        return points[:, :2]


@pytest.fixture
def projection(monkeypatch):
    monkeypatch.setattr(FirstTwo, "calls", 0)
    stand_in = SimpleNamespace(UMAP=FirstTwo, __spec__=object())
    monkeypatch.setitem(sys.modules, "umap", stand_in)
    return FirstTwo


EMBEDDING = EmbeddingFigure(
    torch.arange(15.0).reshape(3, 5), torch.tensor([0, 1, 1]), of="tangents"
)


def test_an_embedding_is_projected_and_its_title_says_so(folder, drawn, projection):
    drawing(folder, EMBEDDING)
    (axes,) = drawn[0].axes
    assert axes.get_title() == "t: UMAP of tangents"
    assert [c.get_offsets().tolist() for c in axes.collections] == [[[0, 1]], [[5, 6], [10, 11]]]


def test_a_projection_that_is_there_is_kept_until_the_points_change(folder, projection):
    folder.save_figures({"a": EMBEDDING})
    for _ in range(2):
        draw_figures({"t": folder})
    assert projection.calls == 1
    folder.save_figures({"a": EMBEDDING})
    draw_figures({"t": folder})
    assert projection.calls == 2


def test_without_umap_principal_components_are_drawn_and_named(folder, drawn, monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "umap", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "umap" else name)
    folder.save_figures({"a": EMBEDDING, "b": disc()})
    draw_figures({"t": folder})
    assert not caplog.records
    assert {file.name for file in folder.path.rglob("*.png*")} == {"a.png", "b.png"}
    assert drawn[0].axes[0].get_title() == "t: PCA of tangents"


def test_principal_components_are_those_of_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition")
    points = torch.randn(30, 6, generator=torch.Generator().manual_seed(0)).double()
    points *= torch.tensor([5.0, 3.0, 1.0, 0.5, 0.2, 0.1])
    expected = decomposition.PCA(2, svd_solver="full").fit_transform(points.numpy())
    found = pca(points)
    signs = (found * torch.from_numpy(expected)).sum(dim=0).sign()
    torch.testing.assert_close(found * signs, torch.from_numpy(expected))


@pytest.mark.parametrize("shape", [(1, 5), (4, 1), (0, 3)])
def test_few_points_and_one_dimension_are_projected_to_a_plane(shape):
    found = pca(torch.ones(shape))
    assert found.shape == (shape[0], 2)
    assert found.isfinite().all()


def test_a_figure_that_cannot_be_drawn_is_named_and_the_others_are_drawn(folder, caplog):
    folder.save_figures({"a": disc(), "b": disc(), "c": disc()})
    (folder.path / "figures" / "b.npz").write_bytes(b"PK")
    draw_figures({"t": folder})
    (record,) = caplog.records
    assert "b.npz" in record.getMessage()
    assert {file.name for file in folder.path.rglob("*.png*")} == {"a.png", "c.png"}


def test_without_matplotlib_nothing_is_drawn_or_said(folder, monkeypatch, caplog):
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder.save_figures({"a": disc()})
    draw_figures({"t": folder})
    plot({"a": [measured(0)]}, folder.path / "plot.png")
    assert not caplog.records
    assert list(folder.path.rglob("*.png*")) == []


def test_ranks_are_drawn_where_they_are_and_joined_below_the_critical_difference(drawn, tmp_path):
    plot_ranks({"b": 2.5, "a": 1.0, "c": 3.0}, 1.0, tmp_path / "ranks.png")
    (axes,) = drawn[0].axes
    places = {text.get_text().split()[0]: text.xy[0] for text in axes.texts}
    assert places == {"a": 1.0, "b": 2.5, "c": 3.0}
    (bar,) = [line for line in axes.lines if line.get_color() == "black"]
    assert list(bar.get_xdata()) == [2.5, 3.0]
    assert (tmp_path / "ranks.png").exists()


def test_the_nearest_mark_is_that_of_the_hyperbolic_distance():
    marks = torch.tensor([[0.1, 0.0], [0.9, 0.2], [-0.3, -0.6], [0.5, -0.5]], dtype=torch.float64)
    found, width = nearest_marks(marks, 40), 40
    along = (torch.arange(width, dtype=torch.float64) + 0.5) * 2 / width - 1
    for row, y in enumerate(along):
        for column, x in enumerate(along):
            if x**2 + y**2 < 1:
                at = torch.stack([x, y]).expand_as(marks)
                distances = Poincare(1.0).dist(at, marks)
                assert distances[found[row, column]] == pytest.approx(float(distances.min()))


@pytest.mark.parametrize("dashed", [False, True])
def test_a_disc_is_tinted_unless_boundaries_are_given(drawn, folder, dashed):
    line = {
        "curves": torch.tensor([[0.0, -1.0], [0.0, 1.0]]),
        "curve_ids": torch.zeros(2, dtype=torch.int64),
        "curve_labels": torch.zeros(1, dtype=torch.int64),
        "curve_dashed": torch.tensor([dashed]),
    }
    points = DiscFigure(circle(2, 0.5), torch.arange(2), circle(2), **line)
    folder.save_figures({"disc": points})
    draw_figures({"run": folder})
    assert len(drawn[0].axes[0].images) == (not dashed)
