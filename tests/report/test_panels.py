"""Panels show the given numbers, as images with their text as text."""

import xml.etree.ElementTree as ET

import pytest

from fedbolic.core.rows import Row
from fedbolic.report.panels import (
    clients_panel,
    curvatures_panel,
    curves_panel,
    megabytes_panel,
    seconds_panel,
)
from fedbolic.run.run_files import ExchangeTime

pytest.importorskip("matplotlib.figure")


def run(*scores, sent=1e6, name="a"):
    return [
        row
        for round, score in enumerate(scores, 1)
        for row in (Row(round, None, name, score), Row(round, None, "bytes/up", sent))
    ]


def words(image):
    """Texts of an SVG image, which must be well-formed XML."""
    return [node.text for node in ET.fromstring(image).iter("{http://www.w3.org/2000/svg}text")]


GOOD, POOR = run(0.5, 0.7, 0.8, 0.9), run(0.1, 0.1, 0.1, 0.1)


def test_curves_are_means_over_seeds_with_final_values(drawn):
    image = curves_panel({"ours": [run(0.2, 0.4), run(0.4, 0.8)]}, "a")
    assert drawn[0].axes[0].lines[0].get_ydata() == pytest.approx([30.0, 60.0])
    assert "ours: 60.00 ± 28.28" in words(image)


def test_the_enlarged_curves_show_the_better_half_at_the_end(drawn):
    curves_panel({"good": [GOOD], "poor": [POOR]}, "a")
    whole, enlarged = drawn[0].axes
    assert enlarged.get_xlim() == (2, 4)
    low, high = enlarged.get_ylim()
    assert 10 < low < 70 < 90 < high
    assert whole.get_ylim()[0] < 10


def test_a_method_of_one_round_is_a_level_and_one_of_many_a_line(drawn):
    curves_panel({"once": [run(0.3)], "often": [GOOD]}, "a")
    once, often = drawn[0].axes[0].lines
    assert list(once.get_ydata()) == [30.0, 30.0]
    assert list(often.get_xdata()) == [1, 2, 3, 4]


def test_megabytes_are_added_up_and_silent_rows_left_out(drawn):
    image = megabytes_panel({"ours": [GOOD], "silent": [run(0.5, 0.6, sent=0.0)]}, "a")
    (line,) = drawn[0].axes[0].lines
    assert list(line.get_xdata()) == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert "silent" not in words(image)


def test_clients_stand_in_order_around_their_median(drawn):
    clients_panel({"ours": [0.9, 0.1, 0.5], "none": []})
    (axes,) = drawn[0].axes
    assert list(axes.patches[0].get_data().values) == pytest.approx([10.0, 50.0, 90.0])
    assert axes.lines[0].get_ydata()[0] == pytest.approx(50.0)


def test_curvatures_of_all_clients_and_seeds_are_sorted(drawn):
    seeds = [[Row(1, 0, "c", 2.0), Row(1, 1, "c", 0.5)], [Row(1, 0, "c", 1.0)]]
    curvatures_panel({"ours": seeds, "flat": [GOOD]}, "c")
    (line,) = drawn[0].axes[0].lines
    assert list(line.get_ydata()) == [0.5, 1.0, 2.0]


def test_seconds_are_stacked_to_the_mean_of_the_whole_runs(drawn):
    spans = [[ExchangeTime(1, 0, 1.0), ExchangeTime(2, 0, 2.0)], [ExchangeTime(1, 0, 5.0)]]
    seconds_panel({"ours": [[], []]}, {"ours": spans})
    bars = drawn[0].axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(4.0)
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(4.0)


def test_what_nobody_measured_has_no_panel():
    nothing = {"ours": [[Row(1, None, "train/loss", 1.0)]]}
    assert curves_panel(nothing, "a") is None
    assert megabytes_panel(nothing, "a") is None
    assert clients_panel({"ours": []}) is None
    assert curvatures_panel(nothing, "c") is None
    assert seconds_panel(nothing, {"ours": [[]]}) is None


def test_equal_numbers_give_equal_images():
    assert curves_panel({"ours": [GOOD]}, "a") == curves_panel({"ours": [GOOD]}, "a")


@pytest.mark.parametrize("name", ["<b>", "a & b", "$x_2$", "é ü"])
def test_any_name_of_a_row_is_shown_as_it_is(name):
    assert f"{name}: 90.00" in words(curves_panel({name: [GOOD]}, "a"))
