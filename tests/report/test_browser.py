"""Chromium shows the page about runs: every image, no error, nothing from elsewhere."""

import json
import subprocess
import sys

import pytest

from tests.command_line import ROOT

pytestmark = pytest.mark.browser


@pytest.fixture
def seen(runs, config, fedbolic, tmp_path):
    """Answers of the browser about a page of two rows, and its file."""
    pytest.importorskip("PyQt6.QtWebEngineCore", reason="needs pip install PyQt6-WebEngine")
    disc = ROOT / "configs" / "hyperfed" / "quick.yaml"
    tree = ROOT / "configs" / "hierarchies" / "quick.yaml"
    plane = disc, "--method.backbone.dim", "2"
    for name, words in (("a", (config,)), ("b", plane), ("tree", (tree,))):
        found = fedbolic("run", "--config", *words, "--runs", runs, "--name", name)
        assert found[0] == 0, found
    file = tmp_path / "report.html"
    assert fedbolic("report", runs, "--html", file)[0] == 0
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "browser.py", file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), file


def test_a_browser_shows_every_panel_and_asks_for_nothing(seen):
    seen, file = seen
    assert seen["console"] == []
    assert seen["asked"] == [file.resolve().as_uri()]
    # four scores by round and by megabytes, two of clients, seconds, the discs
    assert seen["images"] == 13
    assert seen["frames"] == ["tree"]  # the title that the script of the map has set
    assert seen["broken"] == []
    assert seen["beyond"] == 0  # wide tables scroll in a box of their own
    for heading in ("Results", "Score by round", "Clients", "Time", "Figures", "Maps"):
        assert heading in seen["headings"]
