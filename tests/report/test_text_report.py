"""Tables of hand-written runs, with means computed by hand."""

import itertools
import re
import sys

import pytest
import torch

from fedbolic.core.figure import DiscFigure
from fedbolic.core.rows import Row
from fedbolic.report.table_rows import find
from fedbolic.report.text_report import (
    CHOSEN,
    DOWN,
    G_FL,
    MEAN,
    P_FL,
    RIDGE_G,
    RIDGE_P,
    ROUNDS,
    UP,
    VALIDATION,
    WORST,
    report,
    summary,
    table,
)
from fedbolic.run.record import RunFolder

HEADER = "round,client,name,value\n"
FIRST = """\
1,,holdout/accuracy,0.3
1,,test/accuracy,0.4
1,0,test/accuracy,0.6
1,1,test/accuracy,0.2
1,,validation/accuracy,0.5
1,,bytes/up,1000000
1,,bytes/down,2000000
2,,holdout/accuracy,0.5
2,,test/accuracy,0.7
2,0,test/accuracy,0.8
2,1,test/accuracy,0.5
2,,validation/accuracy,0.5
2,,bytes/up,500000
2,,bytes/down,250000
"""
SECOND = FIRST.replace("2,,holdout/accuracy,0.5", "2,,holdout/accuracy,0.6")


@pytest.fixture
def write(tmp_path):
    """Write a run's folder by hand."""

    def write(name, text=FIRST, *, place=None):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("seed: 0\n")
        (folder / "metrics.csv").write_text(HEADER + text)
        if place is not None:
            (folder.parent / "place").write_text(str(place))
        return tmp_path / "runs"

    return write


def cells(text):
    """Cells of the first Markdown table by row and column."""
    first = itertools.dropwhile(lambda line: not line.startswith("|"), text.splitlines())
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("|"), first)
    ]
    head, rule, *rows = lines
    assert set("".join(rule)) == {"-"}
    assert all(len(row) == len(head) for row in rows)
    return head[1:], {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def save_figure(run):
    RunFolder(run).save_figures({"here": DiscFigure(torch.zeros(1, 2), torch.tensor([0]))})


def rows_of(write):
    return find(write("a/seed0"))[0].folders[0].rows()


def test_the_numbers_of_one_run(write):
    found = summary(rows_of(write))
    assert found == pytest.approx(
        {
            G_FL: 50.0,  # the last round
            P_FL: 70.0,  # weighted by examples, as in the run's row
            MEAN: 65.0,  # (80 + 50) / 2
            WORST: 50.0,
            VALIDATION: 50.0,
            CHOSEN: 30.0,  # round 1: the first of equal validation scores
            UP: 1.5,
            DOWN: 2.25,
            ROUNDS: 2,
        }
    )


def test_the_choice_never_looks_at_the_test_set(write):
    better_validation_first = FIRST.replace(
        "1,,validation/accuracy,0.5", "1,,validation/accuracy,0.9"
    )
    better_validation_last = FIRST.replace(
        "2,,validation/accuracy,0.5", "2,,validation/accuracy,0.9"
    )
    for name, text, chosen in (
        ("first/seed0", better_validation_first, 30.0),
        ("last/seed0", better_validation_last, 50.0),
    ):
        rows = find(write(name, text) / name.split("/")[0])[0].folders[0].rows()
        assert summary(rows)[CHOSEN] == pytest.approx(chosen)


def test_fine_tuned_scores_are_preferred_at_the_clients(write):
    tuned = "2,,fine_tuned/accuracy,0.9\n2,0,fine_tuned/accuracy,1.0\n2,1,fine_tuned/accuracy,0.7\n"
    write("a/seed0", FIRST + tuned)
    found = summary(find(write("b/seed0"))[0].folders[0].rows())
    assert found[P_FL] == pytest.approx(90.0)
    assert found[MEAN] == pytest.approx(85.0)
    assert found[WORST] == pytest.approx(70.0)
    assert found[G_FL] == pytest.approx(50.0)


def test_ridge_head_scores_have_columns_and_legends_where_a_run_has_them(write):
    ridge = (
        "2,,ridge_head/holdout/accuracy,0.55\n2,,ridge_head/accuracy,0.75\n"
        "2,0,ridge_head/accuracy,0.9\n2,,ridge_head/bytes/up,3000000\n"
    )
    write("a/seed0")
    runs = write("b/seed0", FIRST + ridge)
    text = report([runs])
    head, rows = cells(text)
    assert head[:6] == [G_FL, P_FL, MEAN, WORST, RIDGE_G, RIDGE_P]
    assert (rows["b"][RIDGE_G], rows["b"][RIDGE_P]) == ("55", "75")
    assert rows["a"][RIDGE_G] == rows["a"][RIDGE_P] == ""
    assert {rows[name][UP] for name in "ab"} == {"1.5"}
    assert {rows[name][P_FL] for name in "ab"} == {"70"}
    assert f"{RIDGE_G}: accuracy" in text.replace("\n", " ")
    assert "ridge head" not in report([runs / "a"])


def test_what_was_not_measured_has_no_number(write):
    found = summary([Row(3, None, "train/loss", 1.0)])
    assert set(found) == {UP, DOWN, ROUNDS}
    assert summary([]) == {}


def test_a_mean_and_deviation_over_seeds(write):
    write("a/seed0")
    head, rows = cells(table(find(write("a/seed1", SECOND))))
    assert list(rows) == ["a"]
    assert rows["a"][G_FL] == "55.00 ± 7.07"  # sqrt((25 + 25) / 1), not / 2
    assert rows["a"][P_FL] == "70"  # without a spread, if all seeds agree
    assert rows["a"]["seeds"] == "2"
    assert head == [G_FL, P_FL, MEAN, WORST, VALIDATION, CHOSEN, UP, DOWN, ROUNDS, "seeds"]


def test_one_seed_has_no_deviation(write):
    _, rows = cells(table(find(write("a/seed0"))))
    assert rows["a"][G_FL] == "50"
    assert rows["a"]["seeds"] == "1"


def test_a_column_without_numbers_is_left_out_and_a_cell_left_empty(write):
    write("local/seed0", "1,,test/accuracy,0.4\n1,0,test/accuracy,0.4\n")
    head, _ = cells(table(find(write("local/seed1", "1,,test/accuracy,0.4\n"))))
    assert G_FL not in head
    assert CHOSEN not in head
    head, rows = cells(table(find(write("z/seed0"))))
    assert rows["local"][G_FL] == ""
    assert rows["local"][WORST] == "40"
    assert rows["z"][G_FL] == "50"


def test_a_run_without_a_number_counts_as_no_seed(write):
    write("a/seed0")
    _, rows = cells(table(find(write("a/seed1", ""))))
    assert rows["a"]["seeds"] == "1"
    assert rows["a"][G_FL] == "50"


def test_rows_of_a_sweep_stand_in_its_own_order(write):
    write("s/zebra/seed0", place=0)
    write("s/ant/seed0", place=1)
    write("s/ant/seed1", place=1)
    runs = write("s/bee/seed0", place=10)
    assert [row.name for row in find(runs / "s")] == ["zebra", "ant", "bee"]
    assert [len(row.folders) for row in find(runs / "s")] == [1, 2, 1]


def test_several_sweeps_are_not_shuffled_together(write):
    for name, place in (("s/z/seed0", 0), ("s/a/seed0", 1), ("t/y/seed0", 0), ("t/b/seed0", 1)):
        runs = write(name, place=place)
    assert [row.name for row in find(runs)] == ["z", "a", "y", "b"]


def test_a_run_a_row_and_all_runs_may_be_asked_for(write):
    write("a/seed0")
    runs = write("b/seed0", SECOND)
    assert [row.name for row in find(runs)] == ["a", "b"]
    assert [row.name for row in find(runs / "b")] == ["b"]
    assert [row.name for row in find(runs / "b" / "seed0")] == ["b"]


def test_a_draft_that_a_killed_process_left_is_no_run(write):
    runs = write("a/seed0")
    (runs / "a" / ".seed1.x1y2").mkdir()
    (runs / "a" / ".seed1.x1y2" / "config.yaml").touch()
    assert [len(row.folders) for row in find(runs)] == [1]


def test_runs_below_a_hidden_folder_are_found_when_it_is_named(write):
    runs = write(".mine/a/seed0")
    assert [row.name for row in find(runs / ".mine")] == ["a"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"there is no run in {path}"):
            report([path])
        assert not (tmp_path / "report.md").exists()


def test_rows_of_one_name_from_two_folders_are_both_shown(write):
    write("x/FedAvg/seed0")
    runs = write("y/FedAvg/seed0", SECOND)
    _, rows = cells(report([runs / "x", runs / "y"]))
    assert {name: row[G_FL] for name, row in rows.items()} == {
        str(runs / "x" / "FedAvg"): "50",
        str(runs / "y" / "FedAvg"): "60",
    }


def test_every_setting_of_a_sweep_has_its_own_table_plot_and_published_numbers(write):
    write("s/One/FedAvg/seed0")
    runs = write("s/Two/FedAvg/seed0", SECOND)
    head, line = "row,setting,column,value,source\n", "FedAvg,One,G-FL %,12.3,Table 1\n"
    (runs / "s" / "One" / "published.csv").write_text(head + line)
    text = report([runs / "s"])
    one, two = text.split("## Two")
    assert one.startswith("## One")
    assert "12.3" in one
    assert "12.3" not in two
    assert (cells(one)[1]["FedAvg"][G_FL], cells(two)[1]["FedAvg"][G_FL]) == ("50", "60")
    assert text.count("Last round;") == 1
    assert (runs / "s" / "One" / "accuracy.png").exists()
    assert (runs / "s" / "Two" / "accuracy.png").exists()
    saved = (runs / "s" / "report.md").read_text()
    assert saved.startswith(text)
    assert re.findall(r"<(.*)>", saved) == ["One/accuracy.png", "Two/accuracy.png"]


def test_published_numbers_stand_beside_ours_with_their_source(write):
    write("FedAvg/seed0")
    runs = write("Other/seed0")
    (runs / "published.csv").write_text(
        "row,setting,column,value,source\n"
        'FedAvg,Set,G-FL %,48.1 ± 0.3,"Table 2, page 7"\n'
        "FedAvg,Set,P-FL %,71.0,Table 3\n"
        "Absent,Set,G-FL %,99.9,Table 4\n"
    )
    text = report([runs])
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    head = [cell.strip() for cell in lines[0]]
    assert head[1:5] == [G_FL, "published", P_FL, "published"]
    assert [cell.strip() for cell in lines[2]][:5] == ["FedAvg", "50", "48.1 ± 0.3", "70", "71.0"]
    assert [cell.strip() for cell in lines[3]][:5] == ["Other", "50", "", "70", ""]
    assert "Published: Table 2, page 7; Table 3." in text
    assert "99.9" not in text
    assert "Table 4" not in text


def test_without_published_numbers_there_is_no_such_column(write):
    runs = write("FedAvg/seed0")
    assert "ublished" not in report([runs])


def test_the_table_and_the_plot_are_written_to_the_first_folder(write):
    write("a/seed0")
    runs = write("b/seed0")
    text = report([runs / "a", runs / "b"])
    assert (runs / "a" / "report.md").read_text() == text + "\n![accuracy](<accuracy.png>)\n"
    assert (runs / "a" / "accuracy.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert not (runs / "b" / "report.md").exists()


def test_a_report_may_be_made_again(write):
    runs = write("a/seed0")
    assert report([runs]) == report([runs])


def test_without_matplotlib_the_table_is_made_and_no_plot(write, monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    runs = write("a/seed0")
    save_figure(runs / "a" / "seed0")
    assert "| a " in report([runs])
    assert "![" not in (runs / "report.md").read_text()
    assert not (runs / "accuracy.png").exists()
    assert not (runs / "a" / "seed0" / "figures" / "here.png").exists()


def test_a_report_draws_the_figures_of_every_run_beside_their_arrays(write):
    pytest.importorskip("matplotlib")
    write("a/seed0")
    write("a/seed1")
    runs = write("b/seed0")
    for run in ("a/seed0", "a/seed1"):
        save_figure(runs / run)
    report([runs])
    shown = re.findall(r"<(.*)>", (runs / "report.md").read_text())
    assert shown == ["accuracy.png", "a/seed0/figures/here.png"]  # of one seed
    drawn = {str(file.relative_to(runs)) for file in runs.rglob("*.png")}
    assert drawn == {"accuracy.png", *(f"a/seed{k}/figures/here.png" for k in (0, 1))}


def test_rows_are_compared_to_a_reference_over_tables_and_seeds(write, tmp_path):
    for setting, row, seed, accuracy in (
        ("near", "ours", 0, 0.6), ("near", "ours", 1, 0.8), ("near", "theirs", 0, 0.5),
        ("near", "theirs", 1, 0.5), ("far", "ours", 0, 0.4), ("far", "theirs", 0, 0.5),
    ):  # fmt: skip
        text = f"1,,holdout/accuracy,{accuracy}\n"
        runs = write(f"{setting}/{row}/seed{seed}", text)
    text = report([runs], reference="theirs")
    ours = next(line for line in text.splitlines() if line.startswith("| ours") and "+" in line)
    cells = [cell.strip() for cell in ours.strip("|").split("|")]
    assert cells[1] == "+10.00"  # the mean of 10, 30 and -10
    assert cells[3:] == ["3", "1.33"]
    # q = 1.960 and CD = q sqrt(2 * 3 / 18), from the table of Demsar (2006)
    assert "differ by less than 1.13 are not distinct" in " ".join(text.split())
    assert (runs / "ranks_g-fl.png").exists()
    assert "difference" not in report([runs])
    with pytest.raises(ValueError, match="there is no row 'others', only"):
        report([runs], reference="others")


def test_a_reference_without_a_score_of_one_kind_is_compared_by_the_others(write):
    write("ours/seed0", "1,,holdout/accuracy,0.6\n1,,test/accuracy,0.5\n")
    runs = write("local/seed0", "1,,test/accuracy,0.75\n")
    text = report([runs], reference="local")
    assert "-25.00" in text
    assert not (runs / "ranks_g-fl.png").exists()
    assert (runs / "ranks_p-fl.png").exists()


def test_quantiles_of_the_clients_follow_the_table_of_their_setting(write):
    runs = write("FedAvg/seed0")
    text = report([runs])
    first, second = text.split("Accuracy at the clients in %")
    assert "worst 10 %, mean" not in first
    _, rows = cells(second)
    expected = ["50.0", "50.0", "53.0", "57.5", "65.0", "72.5", "77.0", "80.0", "2"]
    assert list(rows["FedAvg"].values()) == expected
    assert "Accuracy at the clients" not in report(
        [write("Other/seed0", "1,,holdout/accuracy,1\n") / "Other"]
    )


def test_an_unfinished_run_is_counted_apart_and_gives_no_number(write):
    write("a/seed0")
    runs = write("a/seed1", SECOND)
    (runs / "a" / "seed1" / "environment.json").write_text('{"rounds": 3}')
    (runs / "a" / "seed1" / "times.csv").write_text("round,exchange,seconds\n1,0,1.0\n2,0,1.0\n")
    text = report([runs])
    _, rows = cells(text)
    assert (rows["a"][G_FL], rows["a"]["seeds"]) == ("50", "1 (1 unfinished)")
    assert "finished runs alone" in " ".join(text.split())
    (runs / "a" / "seed1" / "times.csv").write_text("round,exchange,seconds\n3,0,1.0\n")
    text = report([runs])
    assert cells(text)[1]["a"]["seeds"] == "2"
    assert "finished" not in text
