"""Chromium shows the page of a hierarchy: hostile names, deep places, search, narrow windows."""

import json
import subprocess
import sys

import pytest
import torch

from fedbolic.data import Hierarchy
from fedbolic.hierarchies import Embedding
from fedbolic.hierarchies.view import write_view
from fedbolic.manifolds import PolarPlaces
from tests.command_line import ROOT

pytestmark = pytest.mark.browser

NAMES = (
    "root",
    "</script><script>document.title = 'broken'</script>",
    "\"'\\\n",
    "дом 🏠",
    "deep",
    "twin",
)

SCRIPT = """(() => {
  const go = i => {choose(-1); here = arrival(here, hi[i], lo[i], radius[i]).place; draw()};
  const places = names.map((_, i) => {
    go(i);
    return {name: names[i], offset: Math.hypot(px[i] - middle.x, py[i] - middle.y) / size}});
  const i = names.indexOf("deep");
  zoom = 1;
  go(i);
  const j = names.indexOf("twin"), share = ps[j];
  element("find").value = "дом"; element("find").oninput(); take(0);
  const found = names[chosen];
  canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowUp", bubbles: true}));
  return {places, share, found, above: names[chosen], title: document.title,
    told: element("name").textContent, colour: getComputedStyle(document.body).color};
})()"""


def look(folder, *words):
    """The browser's answers about a page of six nodes, two of them at radius 64."""
    pytest.importorskip("PyQt6.QtWebEngineCore", reason="needs pip install PyQt6-WebEngine")
    parents = torch.tensor([[1, 0], [2, 0], [3, 1], [4, 3], [5, 3]])
    turns = torch.tensor([0, 2**60, 2**62, 2**60 + 5, 2**60 + 7, 2**60 + 7 + 2**3])
    radii = torch.tensor([0.0, 5.0, 5.0, 30.0, 44.0, 64.0]).double()
    file, script = folder / "page.html", folder / "script.js"
    places = PolarPlaces(turns, radii)
    write_view(Embedding(Hierarchy(NAMES, parents).names, places, parents), file, title="Six")
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, ROOT / "tests" / "browser.py", file, "--script", script, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), file, places


def test_every_node_comes_to_the_middle_and_nothing_else_is_asked_for(tmp_path):
    seen, file, places = look(tmp_path)
    assert seen["console"] == []
    assert seen["asked"] == [file.resolve().as_uri()]
    answer = seen["answer"]
    assert answer["title"] == "Six"
    assert {each["name"] for each in answer["places"]} == set(NAMES)
    assert all(each["offset"] < 1e-6 for each in answer["places"])
    between = float(places[torch.tensor([4])].dist(places[torch.tensor([5])]))
    share = float(torch.tanh(torch.tensor(between / 2)))
    assert answer["share"] == pytest.approx(share, abs=1e-9)
    assert (answer["found"], answer["above"], answer["told"]) == (NAMES[3], NAMES[1], NAMES[1])


@pytest.mark.parametrize("size", ["1280x800", "500x900", "340x600"])
def test_no_window_scrolls_sideways(tmp_path, size):
    seen, *_ = look(tmp_path, "--size", size)
    assert (seen["console"], seen["beyond"]) == ([], 0)


def test_the_page_follows_a_dark_system(tmp_path):
    light, dark = (look(tmp_path, *words)[0]["answer"]["colour"] for words in ((), ("--dark",)))
    assert light != dark
