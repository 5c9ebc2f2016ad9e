"""The figure of mammals: geodesics by their equation, a PNG."""

import math

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy
from fedbolic.manifolds import Lorentz

pytest.importorskip("matplotlib")
image = pytest.importorskip("matplotlib.image")

from benchmarks.hierarchies import figure as hierarchy_figure  # noqa: E402  (needs matplotlib)


def test_geodesics_have_equal_steps_and_the_length_of_the_distance():
    space = Lorentz(1.0)
    generator = Rng(0).generator()
    start, end = (3 * torch.randn(5, 2, generator=generator, dtype=torch.float64) for _ in "ab")
    curves = hierarchy_figure.geodesics(start, end, num_points=9)
    torch.testing.assert_close(curves[:, 0], start)
    torch.testing.assert_close(curves[:, -1], end)
    x = space.expmap0(space.lift(curves))
    steps = space.dist(x[:, 1:], x[:, :-1])
    whole = space.dist(x[:, 0], x[:, -1])
    torch.testing.assert_close(steps, (whole / 8)[:, None].expand_as(steps))


def test_geodesics_between_far_points_pass_near_the_origin():
    ends = torch.tensor([[30.0, 0.0]]), torch.tensor([[-30.0, 0.1]])
    middle = hierarchy_figure.geodesics(*ends, num_points=3)[0, 1]
    assert middle.isfinite().all()
    assert middle.norm() < 0.1


def test_spread_angles_keep_their_order_and_a_gap():
    angles = torch.tensor([0.1, 3.0, 0.1, 0.12, -3.1, 3.1], dtype=torch.float64)
    moved = hierarchy_figure.spread_angles(angles, 0.3)
    ordered = moved.sort().values
    gaps = torch.cat((ordered[1:], ordered[:1] + 2 * math.pi)) - ordered
    assert gaps.min() > 0.299
    assert (moved[[4, 0]] < moved[[3, 1]]).all()
    alone = torch.tensor([0.0, 1.0])
    assert torch.equal(hierarchy_figure.spread_angles(alone, 0.3), alone)


NAMES = ("mammal.n.01", "placental.n.01", "carnivore.n.01", "feline.n.01", "koala.n.01")


def test_nodes_have_the_colour_of_their_narrowest_branch():
    edges = torch.tensor([[1, 0], [2, 1], [3, 2], [4, 0]])
    zoo = Hierarchy(NAMES, edges).closure()
    branches = hierarchy_figure.BRANCHES
    assert hierarchy_figure.node_colours(zoo) == [
        branches[name]
        for name in ("mammal.n.01",) * 2 + ("carnivore.n.01", "feline.n.01", "mammal.n.01")
    ]


def test_a_figure_is_drawn(tmp_path):
    edges = torch.tensor([[1, 0], [2, 1], [3, 2], [4, 0]])
    zoo = Hierarchy(NAMES, edges).closure()
    tangents = torch.tensor([[0.1, 0], [1, 1], [3, 3], [8, 9], [-9, 1]], dtype=torch.float64)
    hierarchy_figure.draw(zoo, tangents, tmp_path / "a.png")
    pixels = image.imread(tmp_path / "a.png")
    assert pixels.shape[0] == pixels.shape[1]
    assert len({tuple(pixel) for pixel in pixels[::4, ::4].reshape(-1, pixels.shape[-1])}) > 5
