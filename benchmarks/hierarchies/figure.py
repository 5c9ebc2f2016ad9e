"""WordNet's mammals in the hyperbolic plane, drawn as the embedding itself.

The table is trained as in ``benchmarks.hierarchies``, in two dimensions. A node is drawn at its
true angle and at its true distance from the origin, that is, at its tangent (polar coordinates, the
native map of Krioukov et al. 2010, arXiv:1006.5169). In the Poincare disc nearly all nodes would
lie on the rim, because two dimensions need distances of 20 and more. Lines are geodesics from a
node to its direct parents.
"""

import colorsys
import io
import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke
from PIL import Image
from torch import Tensor

from benchmarks.hierarchies.rows import Setting, Training, train
from fedbolic.data import Hierarchy
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.manifolds import Lorentz

ROW = "ours, tangents on the hyperboloid, torch Adam; cooled"
SETTING, TRAINING, SEED = Setting(lr=0.1, restart=20), Training(epochs=300), 0

BRANCHES = {
    "canine.n.02": "#d1495b",
    "feline.n.01": "#e98a15",
    "carnivore.n.01": "#c9a227",
    "odd-toed_ungulate.n.01": "#1f7a5c",
    "ungulate.n.01": "#6aa84f",
    "aquatic_mammal.n.01": "#1878b8",
    "rodent.n.01": "#8e5ea2",
    "primate.n.02": "#7a4b2a",
    "bat.n.01": "#4a4e9e",
    "metatherian.n.01": "#d463a8",
    "mammal.n.01": "#8a8f98",
}
"""Colour of every branch; a node has that of the first branch that it belongs to."""

UPPER = """
    mammal.n.01 placental.n.01 carnivore.n.01 ungulate.n.01 dog.n.01 feline.n.01 horse.n.01
    bovid.n.01 deer.n.01 rodent.n.01 primate.n.02 monkey.n.01 whale.n.02 bat.n.01
    marsupial.n.01 bear.n.01 seal.n.09 lagomorph.n.01 antelope.n.01 terrier.n.01 squirrel.n.01
    rat.n.01 hound.n.01 ape.n.01 cattle.n.01
"""
"""Nodes with a label at their place; a label that would cover another one is left out, and so are
names that the hierarchy lacks."""

LEAVES = """
    beagle.n.01 timber_wolf.n.01 red_fox.n.03 bengal_tiger.n.01 siamese_cat.n.01
    giant_panda.n.01 ice_bear.n.01 meerkat.n.01 sea_otter.n.01 raccoon.n.02 common_zebra.n.01
    przewalski's_horse.n.01 giraffe.n.01 bactrian_camel.n.01 hippopotamus.n.01 caribou.n.01
    american_bison.n.01 llama.n.01 domestic_goat.n.01 blue_whale.n.01 killer_whale.n.01
    walrus.n.01 manatee.n.01 house_mouse.n.01 eastern_grey_squirrel.n.01 capybara.n.01
    chimpanzee.n.01 mountain_gorilla.n.01 baboon.n.01 vampire_bat.n.01 fruit_bat.n.01
    koala.n.01 giant_kangaroo.n.01 wombat.n.01 platypus.n.01 african_elephant.n.01
    european_rabbit.n.01 porcupine.n.01 mole.n.06 three-toed_sloth.n.01
"""
"""Leaves with a label around the figure; names that the hierarchy lacks are skipped."""

PAPER, FAINT = "#ffffff", "#f4f5f7"

EXTENT = 1.42
"""Half the width of the figure, in radii of the disc."""


def geodesics(
    start: Float[Tensor, "edges 2"], end: Float[Tensor, "edges 2"], *, num_points: int = 48
) -> Float[Tensor, "edges points 2"]:
    r"""Points along the geodesics between tangents at the origin, as tangents at the origin.

    .. math:: \gamma(t) = \frac{\sinh((1 - t) d) \, x + \sinh(t d) \, y}{\sinh d}
    """
    space = Lorentz(1.0)
    x, y = (space.expmap0(space.lift(v.double())) for v in (start, end))
    d = space.dist(x, y)[:, None, None]
    t = torch.linspace(0, 1, num_points, dtype=torch.float64)[:, None]
    # sinh(a) / sinh(d) without overflow
    share = [
        ((a - 1) * d).exp() * torch.expm1(-2 * a * d) / torch.expm1(-2 * d) for a in (1 - t, t)
    ]
    points = share[0] * x.unsqueeze(1) + share[1] * y.unsqueeze(1)
    # by the space part alone: rounding may leave the time beside the hyperboloid
    norm = points[..., 1:].norm(dim=-1, keepdim=True)
    return points[..., 1:] * torch.asinh(norm) / norm


def spread_angles(angles: Float[Tensor, " n"], gap: float) -> Float[Tensor, " n"]:
    """Angles moved apart until neighbours on the circle differ by ``gap`` or nearly so.

    Example:
        >>> spread_angles(torch.tensor([1.0, 1.0]), 0.2).sort().values
        tensor([0.9000, 1.1000])
    """
    order = angles.argsort()
    moved = angles[order].double()
    for _ in range(2000):
        ahead = torch.cat((moved[1:], moved[:1] + 2 * math.pi)) - moved
        push = (gap - ahead).clamp(min=0) / 2
        push[-1] *= len(moved) > 1
        if float(push.max()) < 1e-6:
            break
        moved = moved - push + push.roll(1)
    result = torch.empty_like(moved)
    result[order] = moved
    return result.to(angles.dtype)


def node_colours(hierarchy: Hierarchy) -> list[str]:
    """Colour of the first branch of ``BRANCHES`` that a node is or descends from."""
    last = list(BRANCHES.values())[-1]
    colours = [last] * len(hierarchy)
    for name, colour in reversed(BRANCHES.items()):
        if name not in hierarchy.names:
            continue
        root = hierarchy.names.index(name)
        below = hierarchy.contains(torch.arange(len(hierarchy)), torch.tensor(root))
        for node in [root, *below.nonzero().flatten().tolist()]:
            colours[node] = colour
    return colours


def darker(colour: str) -> tuple[float, float, float]:
    """A darker colour of the same hue, for text."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return colorsys.hls_to_rgb(hue, 0.72 * light, saturation)


def word(name: str) -> str:
    """The noun of WordNet's name."""
    return name.split(".")[0].replace("_", " ")


def draw(hierarchy: Hierarchy, tangents: Float[Tensor, "n 2"], file: Path) -> None:
    """Draw an embedding as a PNG file."""
    canvas = Figure(figsize=(9.6, 9.6), facecolor=PAPER)
    renderer = FigureCanvasAgg(canvas).get_renderer()
    axes = canvas.add_axes((0, 0, 1, 1))
    radius = 1.005 * float(tangents.norm(dim=1).max())
    axes.set(xlim=(-EXTENT * radius, EXTENT * radius), ylim=(-EXTENT * radius, EXTENT * radius))
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.add_patch(Circle((0, 0), radius, facecolor=FAINT, edgecolor="#d4d8de", linewidth=0.8))
    for share in (0.25, 0.5, 0.75):
        axes.add_patch(Circle((0, 0), share * radius, fill=False, edgecolor="white", linewidth=1))
    colours = node_colours(hierarchy)
    _draw_edges(axes, hierarchy, tangents, colours)
    _draw_nodes(axes, hierarchy, tangents, colours)
    _label_leaves(axes, hierarchy, tangents, colours, radius)
    _label_upper(renderer, axes, hierarchy, tangents, colours)
    pixels = io.BytesIO()
    canvas.savefig(pixels, dpi=100, format="png", facecolor=PAPER)
    # a palette takes a third of the bytes
    Image.open(pixels).convert("RGB").quantize(200, kmeans=3, dither=Image.Dither.NONE).save(
        file, optimize=True
    )


def _draw_edges(axes: Axes, hierarchy: Hierarchy, at: Tensor, colours: list[str]) -> None:
    child, parent = direct_pairs(hierarchy).unbind(1)
    lines = geodesics(at[child], at[parent]).numpy()
    look = {"colors": [colours[i] for i in child.tolist()], "linewidths": 0.6, "alpha": 0.3}
    axes.add_collection(LineCollection(list(lines), capstyle="round", **look, zorder=1))


def _draw_nodes(axes: Axes, hierarchy: Hierarchy, at: Tensor, colours: list[str]) -> None:
    below = torch.bincount(hierarchy.pairs[:, 1], minlength=len(hierarchy)).numpy()
    area = 5 + 9 * np.sqrt(below) ** 1.1
    order = area.argsort()[::-1]  # small nodes above large ones
    axes.scatter(
        *at[order.copy()].T.numpy(),
        s=area[order],
        c=[colours[i] for i in order],
        edgecolors="white",
        linewidths=0.35,
        zorder=2,
    )


def _label_leaves(
    axes: Axes, hierarchy: Hierarchy, at: Tensor, colours: list[str], radius: float
) -> None:
    nodes = [hierarchy.names.index(name) for name in LEAVES.split() if name in hierarchy.names]
    wanted = torch.atan2(at[nodes, 1], at[nodes, 0])
    for node, angle in zip(nodes, spread_angles(wanted, 0.075).tolist(), strict=True):
        way = np.array([math.cos(angle), math.sin(angle)])
        bend = np.stack((at[node].numpy(), 1.012 * radius * way, 1.03 * radius * way))
        axes.plot(*bend.T, color=colours[node], linewidth=0.5, alpha=0.8, zorder=1.5)
        turn, left = math.degrees(angle), way[0] < 0
        x, y = (1.04 * radius * way).tolist()
        axes.text(
            x,
            y,
            word(hierarchy.names[node]),
            rotation=turn + 180 if left else turn,
            rotation_mode="anchor",
            ha="right" if left else "left",
            va="center_baseline",
            fontsize=9,
            color=darker(colours[node]),
        )


def _label_upper(
    renderer: RendererAgg, axes: Axes, hierarchy: Hierarchy, at: Tensor, colours: list[str]
) -> None:
    taken = []
    for name in (name for name in UPPER.split() if name in hierarchy.names):
        node = hierarchy.names.index(name)
        for dx, dy in ((0, 9), (0, -9), (14, 6), (-14, 6), (14, -6), (-14, -6), (0, 17), (0, -17)):
            label = axes.annotate(
                word(name),
                (float(at[node, 0]), float(at[node, 1])),
                (dx, dy),
                textcoords="offset points",
                ha="center" if not dx else ("left" if dx > 0 else "right"),
                va="center",
                fontsize=11,
                fontweight="bold",
                color=darker(colours[node]),
                path_effects=[withStroke(linewidth=2.6, foreground="white")],
                zorder=4,
            )
            box = label.get_window_extent(renderer).expanded(1.04, 1.1)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()


def draw_figure(hierarchy: Hierarchy, file: Path) -> None:
    """Train the table and draw it."""
    trained = train(ROW, hierarchy, setting=SETTING, dim=2, seed=SEED, training=TRAINING)
    print(trained.scores(hierarchy), f"{trained.seconds:.1f} CPU seconds")
    points = trained.table.points().detach().double()
    draw(hierarchy, Lorentz(1.0).logmap0(points)[:, 1:], file)
