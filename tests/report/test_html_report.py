"""The page about runs is one well-formed file that needs no network and shows the runs' numbers."""

import base64
import re
import sys
import xml.etree.ElementTree as ET

import pytest
import torch

from fedbolic.core.figure import DiscFigure, EmbeddingFigure
from fedbolic.report import html_report
from fedbolic.report.html_report import page, write_page
from fedbolic.report.text_report import report
from fedbolic.run.record import RunFolder

HEADER, TIMES = "round,client,name,value\n", "round,exchange,seconds\n1,0,2.0\n2,0,1.0\n"
METRICS = """\
1,,holdout/accuracy,0.3
1,,test/accuracy,0.4
1,,bytes/up,1000000
1,,bytes/down,2000000
2,,holdout/accuracy,0.5
2,,test/accuracy,0.7
2,0,test/accuracy,0.8
2,1,test/accuracy,0.5
2,0,train/curvature,0.75
2,1,train/curvature,1.25
2,,bytes/up,500000
2,,bytes/down,250000
"""
CONFIG = "method:\n  class_path: m.FedAvg\n  init_args: {{rounds: 2, lr: {lr}}}\nseed: 0\n"
LINKS = ("href", "src", "srcset", "action")


class Page:
    """Elements of a page, which must be well-formed XML."""

    def __init__(self, text):
        nodes = list(ET.fromstring(text).iter())
        self.tags = {node.tag for node in nodes}
        self.targets = [node.get("id") for node in nodes if node.get("id")]
        self.links = [node.get(name) for node in nodes for name in LINKS if node.get(name)]
        self.images = [(node.get("alt"), node.get("src")) for node in nodes if node.tag == "img"]
        self.headings = [node.text for node in nodes if node.tag in ("h1", "h2", "h3")]
        self.cells = [node.text for node in nodes if node.tag in ("td", "th")]


@pytest.fixture
def write(tmp_path):
    """Write a run's folder by hand."""

    def write(name, *, lr=0.1, metrics=METRICS):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(CONFIG.format(lr=lr))
        (folder / "metrics.csv").write_text(HEADER + metrics)
        (folder / "times.csv").write_text(TIMES)
        (folder / "environment.json").write_text('{"rounds": 2}')
        return tmp_path / "runs"

    return write


@pytest.fixture
def _without_panels(monkeypatch):
    """Leave the images out of a page, which take most of its time."""
    monkeypatch.setattr(html_report, "installed", lambda: False)


@pytest.mark.usefixtures("_without_panels")
def test_a_private_row_has_what_it_has_spent(write):
    spent = "1,,privacy/epsilon,0.75\n2,,privacy/epsilon,1.625\n"
    write("private/seed0", metrics=METRICS + spent)
    text = page([write("plain/seed0", lr=0.2)])
    cells = Page(text).cells
    assert cells.count("epsilon") == cells.count("1.625") == 1
    assert "0.75" not in cells
    assert html_report.COSTS in text


def decoded(images):
    """Kind and content of every image; SVG must be well-formed XML."""
    for _, source in images:
        kind, _, text = source.removeprefix("data:image/").partition(";base64,")
        content = base64.b64decode(text, validate=True)
        if kind == "svg+xml":
            ET.fromstring(content)
        else:
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
        yield kind, content


PANELS = ("Score by round", "Score by megabytes", "Clients", "Curvatures", "Time")


def test_a_page_has_every_section_and_its_panels(write):
    pytest.importorskip("matplotlib")
    write("a/seed0")
    runs = write("b/seed0", lr=0.2)
    point = DiscFigure(torch.zeros(1, 2), torch.tensor([0]))
    cloud = EmbeddingFigure(torch.eye(3), torch.tensor([0, 0, 1]), of="features")
    RunFolder(runs / "a" / "seed0").save_figures({"disc": point, "cloud": cloud})
    found = Page(page([runs]))
    assert found.headings[2:] == [
        *("Results", *PANELS, "Figures", "What was asked", "Differences of the configurations"),
    ]
    kinds = [kind for kind, _ in decoded(found.images)]
    assert kinds == ["svg+xml"] * 7 + ["png"] * 2  # two scores by round and by megabytes


def test_a_page_is_one_file_without_scripts_or_links_out(write):
    runs = write("a/seed0")
    for setting in ("one", "two"):
        write(f"s/{setting}/c/seed0", metrics="")  # no panels, which take most of the time
    text = page([runs / "a", runs / "s"])
    found = Page(text)
    assert "script" not in found.tags
    inside = [link for link in found.links if link.startswith("#")]
    assert {link[1:] for link in inside} == set(found.targets)
    assert len(found.targets) == 3  # one for each table
    assert all(link.startswith("data:image/") for link in set(found.links) - set(inside))
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.usefixtures("_without_panels")
def test_the_table_is_that_of_the_report_with_published_numbers(write):
    runs = write("a/seed0")
    (runs / "published.csv").write_text(
        'row,setting,column,value,source\na,Set,G-FL %,48.1 ± 0.3,"Table 2"\n'
    )
    text = page([runs])
    cells = Page(text).cells
    place = cells.index("G-FL %")
    assert cells[place : place + 2] == ["G-FL %", "published"]
    assert cells[cells.index("48.1 ± 0.3") - 1] == "50"
    assert "Published: Table 2." in text


@pytest.mark.usefixtures("_without_panels")
def test_quantiles_of_the_clients_are_those_of_two_points(write):
    cells = Page(page([write("a/seed0")])).cells
    start = cells.index("clients") + 1
    assert cells[start : start + 10] == [
        *("a", "50.0", "50.0", "53.0", "57.5", "65.0", "72.5", "77.0", "80.0", "2"),
    ]


@pytest.mark.usefixtures("_without_panels")
def test_an_unfinished_run_is_named_and_left_out_of_numbers_and_plots(write):
    write("a/seed0")
    runs = write("a/seed1", metrics=METRICS.replace("2,,holdout/accuracy,0.5\n", ""))
    (runs / "a" / "seed1" / "times.csv").write_text(TIMES.replace("2,0,1.0\n", ""))
    text = page([runs])
    cells = Page(text).cells
    assert "1 (1 unfinished)" in cells
    assert cells[cells.index("clients") + 10] == "2"  # those of one run
    assert "finished runs alone" in text


@pytest.mark.usefixtures("_without_panels")
def test_the_options_that_differ_are_listed_with_their_values(write):
    write("a/seed0", lr=0.1)
    cells = Page(page([write("b/seed0", lr=0.2)])).cells
    assert cells[cells.index("option") :] == ["option", "a", "b", "method.lr", "0.1", "0.2"]


@pytest.mark.usefixtures("_without_panels")
def test_runs_of_one_configuration_have_no_table_of_differences(write):
    assert "Differences" not in page([write("a/seed0")])


@pytest.mark.usefixtures("_without_panels")
def test_names_of_rows_are_shown_and_never_read_as_markup(write):
    names = {"<script>alert(1)<", "a & b", 'quo"ted'}
    runs = [write(f"{name}/seed0") for name in names]
    found = Page(page(runs[:1]))
    assert "script" not in found.tags
    assert names <= set(found.cells)


@pytest.mark.usefixtures("_without_panels")
def test_rows_are_compared_to_a_reference(write):
    write("ours/seed0")
    runs = write("theirs/seed0", metrics="1,,holdout/accuracy,0.25\n")
    assert "+25.00" in page([runs], reference="theirs")
    with pytest.raises(ValueError, match="there is no row 'others'"):
        page([runs], reference="others")


def test_a_run_that_has_just_begun_is_shown(write):
    found = Page(page([write("a/seed0", metrics="")]))
    assert "a" in found.cells


@pytest.mark.parametrize("config", ["{", "- 1", "", "\xff"])
def test_a_damaged_configuration_is_named(write, config):
    runs = write("a/seed0")
    (runs / "a" / "seed0" / "config.yaml").write_text(config, encoding="latin-1")
    with pytest.raises(ValueError, match=r"config\.yaml is damaged"):
        page([runs])


def test_runs_whose_scores_are_not_finite_are_shown_by_report_and_page(write):
    for seed, name in enumerate(("nan", "inf", "-inf")):
        bad = re.sub(r",[0-9.]+$", f",{name}", METRICS, flags=re.MULTILINE)
        write(f"{name}/seed0", metrics=bad)
        runs = write(f"mixed/seed{seed}", metrics=bad)
    assert "nan" in report(runs / "nan")
    assert {"nan", "mixed"} <= set(Page(page([runs / "nan", runs / "mixed"])).cells)
    write("good/seed0")
    for text in (report(runs, reference="good"), written := page([runs], reference="good")):
        assert {"nan ± nan", "50"} <= set(re.split(r" *[|<>] *", text))
    assert list(decoded(Page(written).images))


def test_without_matplotlib_the_tables_are_there_and_the_extra_is_named(write, monkeypatch):
    runs = write("a/seed0")
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = Page(text := page([runs]))
    assert found.images == []
    assert "fedbolic[plots]" in text
    assert "G-FL %" in found.cells


@pytest.mark.usefixtures("_without_panels")
def test_a_page_is_written_whole_or_not_at_all(write, tmp_path):
    runs = write("a/seed0")
    write_page([runs], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page([runs])
    assert not list(tmp_path.glob("*.draft"))
    with pytest.raises(OSError, match="the page cannot be written"):
        write_page([runs], tmp_path / "nowhere" / "report.html")
    with pytest.raises(FileNotFoundError, match="there is no run"):
        write_page([tmp_path / "nothing"], tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()
