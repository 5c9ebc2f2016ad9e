"""FlatLand's table for hand-written runs, with numbers computed by hand."""

import shutil

import pytest

from benchmarks.flatland import __main__ as flatland

HEADER = "round,client,name,value\n"
CONFIG = "seed: 0\nmethod:\n  class_path: flatland.FlatLand\n  init_args: {rounds: 2}\n"


def of_round(round, prefix, validation, test):
    """Scores of two clients with 10 and 30 test nodes."""
    rows = []
    for client, (v, t, n) in enumerate(zip(validation, test, (10, 30), strict=True)):
        names = {"validation/accuracy": v, "test/accuracy": t, "test/examples": n}
        rows += [f"{round},{client},{prefix}{name},{value}\n" for name, value in names.items()]
    return "".join(rows)


def run_of(better, worse):
    """A run that is best on validation in its first round and on test in its second."""
    return (
        of_round(1, "local/", (0.8, 0.8), better)
        + of_round(2, "local/", (0.7, 0.8), (1.0, 1.0))
        + of_round(1, "", (0.1, 0.1), (1.0, 1.0))
        + of_round(2, "", (0.2, 0.2), worse)
    )


@pytest.fixture
def sweep(tmp_path):
    runs = {
        "Local(E)/seed0": run_of((0.5, 0.7), (0.5, 0.7)),
        "Local(E)/seed1": run_of((0.7, 0.7), (0.5, 0.7)),
        "FlatLand/seed0": run_of((0.6, 0.8), (0.3, 0.5)),
        "FlatLand/seed1": run_of((0.8, 0.8), (0.3, 0.5)),
        "FlatLand/seed2": of_round(1, "local/", (0.9, 0.9), (0.9, 0.9)),  # stopped halfway
    }
    for name, text in runs.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "metrics.csv").write_text(HEADER + text)
    for place, row in enumerate(("Local(E)", "FlatLand")):
        (tmp_path / row / "place").write_text(str(place))
    column = flatland.COLUMN
    (tmp_path / "published.csv").write_text(
        "row,setting,column,value,source\n"
        f'Local(E),Cora,{column},79.94 ± 0.24,"Table 1, so copied from elsewhere"\n'
        f"FlatLand,Cora,{column},80.46 ± 0.28,Table 1\n"
        "FlatLand,Cora,another column,1,Table 1\n"
    )
    return tmp_path


def test_scores_are_of_the_round_chosen_on_validation_and_copies_are_marked(sweep, capsys):
    flatland.table(sweep, ["Local(E)"])
    head, rule, local, ours, *notes = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == local.count("|") == ours.count("|")
    cells = [cell.strip() for cell in local.strip("|").split("|")]
    assert cells == [
        "Local(E)",
        "65.00 ± 7.07",  # 60 and 70
        "67.50 ± 3.54",  # 65 and 70, the second client with triple weight
        "60.00 ± 14.14",
        "60.00 ± 0.00",  # the server's model, chosen by its own validation
        "",
        "79.94 ± 0.24 †",
        "0 of 2",
        "2",
    ]
    cells = [cell.strip() for cell in ours.strip("|").split("|")]
    assert cells[:2] == ["FlatLand", "75.00 ± 7.07"]
    assert cells[4:] == ["40.00 ± 0.00", "+10.00 [+10.00, +10.00]", "80.46 ± 0.28", "0 of 2", "2"]
    assert notes == [
        "",
        "†: copied from elsewhere, not run by the authors.",
        "",
        "1 runs that have not come to their end are left out.",
    ]


def test_every_row_to_compare_with_gets_a_column(sweep, capsys):
    flatland.table(sweep, ["FlatLand", "Local(E)"])
    head, _, local, ours, *_ = capsys.readouterr().out.splitlines()
    assert "| minus FlatLand [95 %] | minus Local(E) [95 %] | published % |" in head
    assert "| -10.00 [-10.00, -10.00] |  | 79.94" in local
    assert "|  | +10.00 [+10.00, +10.00] | 80.46" in ours


def test_an_unknown_row_to_compare_with_is_named_with_the_rows_there_are(sweep):
    with pytest.raises(ValueError, match=r"no row 'Twin', only Local\(E\), FlatLand"):
        flatland.table(sweep, ["Twin"])


def test_tries_are_chosen_on_validation_and_their_test_scores_stay_hidden(tmp_path, capsys):
    for name, validation, test in (("lr=1 scale=l1", 0.6, 0.99), ("lr=2 scale=l2", 0.75, 0.5)):
        folder = tmp_path / f"Local(E) {name}" / "seed0"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(CONFIG.replace("2", "1"))
        text = "".join(
            of_round(1, kind, (validation, validation), (test, test)) for kind in ("local/", "")
        )
        (folder / "metrics.csv").write_text(HEADER + text)
    flatland.choose_tries(tmp_path)
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == "| Local(E) | lr=1 scale=l1 | 60.00 | 60.00 |  |"
    assert second == "| Local(E) | lr=2 scale=l2 | 75.00 | 75.00 | chosen |"


def test_a_figure_has_the_last_accuracies_of_each_setting_with_their_interval(tmp_path, capsys):
    scores = {"K 5/B": (0.5, 0.7), "K 5/A": (0.2,), "K 20/B": (0.6, 0.6)}
    for place, (name, found) in enumerate(scores.items()):
        for seed, last in enumerate(found):
            folder = tmp_path / name / f"seed{seed}"
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(CONFIG)
            rows = f"1,,holdout/accuracy,0.9\n2,,holdout/accuracy,{last}\n2,,test/accuracy,0.8\n"
            (folder / "metrics.csv").write_text(HEADER + rows)
        (folder.parent / "place").write_text(str(place))
        (folder.parent.parent / "place").write_text(str(int(name == "K 20/B")))
    flatland.figure(tmp_path, clients=False)
    title, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert title == f"**{tmp_path.name}**"
    assert head == "| K | 5 | 20 |"
    # Student's 97.5 % quantile with one degree of freedom is tan(.475 pi), the error is .1
    assert rows == ["| B | 60.00 ± 127.06 | 60.00 ± 0.00 |", "| A | 20.00 |  |"]
    flatland.figure(tmp_path, clients=True)
    assert "| B | 80.00 ± 0.00 | 80.00 ± 0.00 |" in capsys.readouterr().out


def test_a_figure_is_empty_where_a_row_has_no_score_or_no_finished_run(sweep, capsys):
    for name in ("Local(E)", "FlatLand"):
        (sweep / "K 5" / name).parent.mkdir(exist_ok=True)
        (sweep / name).rename(sweep / "K 5" / name)
    for run in (sweep / "K 5" / "FlatLand").glob("seed[01]"):
        shutil.rmtree(run)  # the one that stays was stopped halfway
    flatland.figure(sweep, clients=False)
    *_, local, ours = capsys.readouterr().out.splitlines()
    assert (local, ours) == ("| Local(E) |  |", "| FlatLand |  |")
