"""The page of a hierarchy: its data as they were, and its geometry by mpmath."""

import base64
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

import fedbolic.hierarchies.view
from fedbolic.data import Hierarchy
from fedbolic.hierarchies import Embedding, TreeLayout
from fedbolic.hierarchies.view import view_page
from fedbolic.manifolds import Euclidean, Lorentz, ManifoldPlaces, PolarPlaces

HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"'`${x}\\",
    "\n\t\0",
    "дом 家 🏠",
    "@data@",
    "<!--",
)


def unpacked(text):
    """Head and columns of a page's data, read as the page reads them."""
    (data,) = re.findall(r'<script id="data" type="text/plain">(.*)</script>', text)
    raw = gzip.decompress(base64.b64decode(data))
    length = int(np.frombuffer(raw, "<u4", 1)[0])
    head, rest = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    columns, n = [], len(head["names"])
    for kind in ("<f8", "<u4", "<u4", "<u2"):
        columns.append(np.frombuffer(rest, kind, n))
        rest = rest[columns[-1].nbytes :]
    assert rest == b""
    return head, columns


def embedding(places=None):
    """A tree of hostile names in which node 4 has two parents."""
    pairs = torch.tensor([[1, 0], [2, 0], [3, 1], [4, 1], [4, 2], [5, 2]])
    hierarchy = Hierarchy(HOSTILE, pairs)
    return Embedding(HOSTILE, places or TreeLayout("sectors").place(hierarchy), pairs)


def parents_of(depths):
    open_nodes, found = [], []
    for node, depth in enumerate(depths.tolist()):
        del open_nodes[depth:]
        found.append(open_nodes[-1] if open_nodes else -1)
        open_nodes.append(node)
    return found


def test_a_page_holds_names_parents_and_places_exactly():
    made = embedding()
    head, (radii, high, low, depths) = unpacked(view_page(made, title="<b>"))
    names, parents = head["names"], parents_of(depths)
    pairs = {(names[i], names[p]) for i, p in enumerate(parents) if p >= 0}
    pairs |= {(names[i], names[p]) for i, p in head["more"]}
    assert pairs == {(HOSTILE[u], HOSTILE[v]) for u, v in made.parents.tolist()}
    assert head["title"] == "<b>"
    turns = made.places.turns.numpy().view(np.uint64)
    for row, name in enumerate(names):
        node = HOSTILE.index(name)
        assert radii[row] == made.places.radii[node]
        assert (int(high[row]) << 32) + int(low[row]) == int(turns[node])


def test_names_are_data_and_never_part_of_the_page():
    hostile, plain = (
        view_page(embedding()),
        view_page(Embedding(("a",), embedding().places[torch.tensor([0])])),
    )
    strip = re.compile(r'(?<=text/plain">).*?(?=</script>)')
    assert strip.sub("", hostile) == strip.sub("", plain)
    assert re.findall(r"https?:|src=|href=|@import|url\(", hostile) == []


def test_a_table_of_any_curvature_keeps_distances_from_the_origin():
    space = Lorentz(4.0)
    tangents = torch.tensor([[0.3, 0.0, 0.0], [0.0, 1.1, 0.0], [0.0, 2.0, 0.1]]).double()
    points = space.expmap0(space.lift(tangents))
    head, (radii, *_) = unpacked(
        view_page(Embedding(("a", "b", "c"), ManifoldPlaces(space, points)))
    )
    found = dict(zip(head["names"], radii.tolist(), strict=True))
    for name, tangent in zip("abc", tangents, strict=True):
        assert found[name] == pytest.approx(2 * float(tangent.norm()))  # in units of 1 / sqrt(c)
    assert "3 dimensions" in head["note"]


def test_a_flat_table_is_refused():
    flat = ManifoldPlaces(Euclidean(), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="not in a hyperbolic space"):
        view_page(Embedding(("a", "b"), flat))


def test_turns_of_32_bits_are_the_upper_half():
    places = PolarPlaces(torch.tensor([-1, 5], dtype=torch.int32), torch.ones(2).double())
    head, (_, high, low, _) = unpacked(view_page(Embedding(("a", "b"), places)))
    assert dict(zip(head["names"], high.tolist(), strict=True)) == {"a": 2**32 - 1, "b": 5}
    assert not low.any()


def run(script):
    """Value of a script in Node.js after the page's geometry, from JSON."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    source = Path(fedbolic.hierarchies.view.__file__).with_name("view_plane.js").read_text()
    whole = f"{source}\nconsole.log(JSON.stringify((() => {{{script}}})()));"
    return json.loads(subprocess.run([node, "-e", whole], capture_output=True, check=True).stdout)


def test_a_label_leaves_out_a_parents_name_that_a_sign_ends():
    names = {"item 1": "item 1", "item 12": "item 12", "item 1 > 3": "3", "item 1.n.02": "n.02"}
    source = Path(fedbolic.hierarchies.view.__file__).with_name("view_map.js").read_text()
    short = source[source.index("function short") :].partition("\n}\n")[0]
    tree = f"const names = {list(names)}, parent = [-1, 0, 0, 0];"
    assert run(f"{tree} {short}}} return names.map((_, i) => short(i));") == list(names.values())


def disc(turn, rest, radius):
    """A place as a complex number of the disc, with 200 digits."""
    angle = 2 * mpmath.pi * turn / mpmath.mpf(2) ** 64 + mpmath.mpf(rest)
    return mpmath.tanh(mpmath.mpf(radius) / 2) * mpmath.expj(angle)


def seen_from(place, tilt, point):
    """A point of the disc after the isometry that moves a place to the middle of the screen."""
    moved = (point - place) / (1 - mpmath.conj(place) * point)
    outward = place / abs(place) if place else 1
    return moved / outward * mpmath.expj(tilt)


def cases(count=24):
    """Pairs of places at radii up to 100, some of them a few last bits of a turn apart."""
    rng = np.random.default_rng(0)
    for k in range(count):
        one, gap = int(rng.integers(2**63)) * 2, int(2.0 ** rng.uniform(0, 63))
        yield one, (one + (-gap if k % 2 else gap)) % 2**64, *rng.uniform(0.01, 100, 2).tolist()


def halves(turn):
    return f"hi: {turn >> 32}, lo: {turn & 0xFFFFFFFF}"


def test_a_node_stands_where_mpmath_puts_it_at_radii_to_100():
    pairs = list(cases())
    given = ",".join(
        f"[{{{halves(a)}, rest: 0, r: {q}, tilt: 0}}, {b >> 32}, {b & 0xFFFFFFFF}, {r}]"
        for a, b, q, r in pairs
    )
    found = run(f"return [{given}].map(each => bearing(...each));")
    with mpmath.workdps(200):
        for (a, b, q, r), each in zip(pairs, found, strict=True):
            true = seen_from(disc(a, 0, q), 0, disc(b, 0, r))
            assert each["d"] == pytest.approx(float(2 * mpmath.atanh(abs(true))), rel=1e-12)
            assert abs(mpmath.mpc(each["x"], each["y"]) - true / abs(true)) < 1e-9


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_a_flight_follows_the_geodesic_and_keeps_its_angle_on_the_screen(share):
    pairs = list(cases())
    given = ",".join(
        f"[{{{halves(a)}, rest: 0, r: {q}, tilt: 0.7}}, {b >> 32}, {b & 0xFFFFFFFF}, {r}]"
        for a, b, q, r in pairs
    )
    found = run(
        f"return [{given}].map(([here, ...to]) => {{const way = arrival(here, ...to);"
        f" return {{...along(here, way, {share}), d: way.to.d, angle: way.angle}};}});"
    )
    with mpmath.workdps(200):
        for (a, b, q, r), at in zip(pairs, found, strict=True):
            place = disc((at["hi"] << 32) + at["lo"], at["rest"], at["r"])
            for turn, radius, part, way in ((a, q, share, -1), (b, r, 1 - share, 1)):
                true = seen_from(place, at["tilt"], disc(turn, 0, radius))
                far = 2 * mpmath.atanh(abs(true))
                assert float(far) == pytest.approx(part * at["d"], abs=1e-6 + 1e-12 * at["d"])
                if part * at["d"] > 1e-3 and at["r"] > 1e-3:
                    assert abs(true / abs(true) - way * mpmath.expj(at["angle"])) < 1e-4
