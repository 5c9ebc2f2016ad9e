"""The verdict of a page says who leads, over whom, and if that is more than chance."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedbolic.core.rows import Row
from fedbolic.report.table_rows import find
from fedbolic.report.verdict import lead, verdict


def seeds(*values):
    return dict(enumerate(map(float, values)))


def test_certainty_is_that_of_a_paired_t_statistic():
    rng = np.random.default_rng(3)
    seen = set()
    for shift in np.linspace(0.05, 2, 40):
        flat = rng.normal(80, 1, 5)
        ours = flat + shift + rng.normal(0, 1, 5)
        if ours.mean() < flat.mean():
            ours, flat = flat, ours
        sure = ttest_rel(ours, flat).statistic > 2
        seen.add(sure)
        text = lead({"flat": seeds(*flat), "ours": seeds(*ours), "trivial": seeds(*[10.0] * 5)})
        assert text.startswith(f"ours leads with {ours.mean():.2f} %, ")
        assert f"{ours.mean() - flat.mean():.2f} points above flat" in text
        assert ("beyond" if sure else "within") + " two standard errors" in text
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({"a": seeds(90, 91)}, "a leads with 90.50 %, but no other row has a score"),
        (
            {"a": seeds(90.0), "b": seeds(91.0)},
            "b leads with 91.00 %, 1.00 points above a, with one",
        ),
        ({"a": seeds(90, 91), "b": seeds(91, 90)}, "a and b share the lead with 90.50 %"),
        ({"a": seeds(9), "b": seeds(9), "c": seeds(9)}, "a, b and c share the lead with 9.00 %"),
        ({"a": seeds(1, 2), "b": {7: 1.0, 8: 1.0}}, "0.50 points above b, over other seeds"),
        ({"a": seeds(2, 3), "b": seeds(1, 2)}, "beyond two standard errors (0.00 each)"),
        ({"a": seeds(2, 3), "b": seeds(float("nan"), 9)}, "a leads with 2.50 %, but no other row"),
        ({"a": seeds(float("nan"))}, "no row has a finite score"),
    ],
)
def test_ties_and_what_is_missing_are_said(scores, said):
    assert said in lead(scores)


def test_a_table_has_a_sentence_for_each_score(tmp_path):
    for name, score in (("ours", 0.9), ("flat", 0.8)):
        folder = tmp_path / name / "seed0"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("seed: 0\n")
        lines = [Row(1, None, "holdout/accuracy", score), Row(1, None, "holdout/mrr", 1 - score)]
        text = "".join(f"{r.round},,{r.name},{r.value}\n" for r in lines)
        (folder / "metrics.csv").write_text(f"round,client,name,value\n{text}")
    first, second = verdict(find(tmp_path)).split(". ")
    assert first.startswith("By accuracy of the server's model (G-FL), ours leads with 90.00 %")
    assert second.startswith("By mean reciprocal rank (MRR), flat leads with 20.00 %, 10.00 points")
