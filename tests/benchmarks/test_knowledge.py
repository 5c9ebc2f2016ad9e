"""The benchmark of knowledge graphs on generated families: baseline, choice of steps, tables."""

import dataclasses

import pytest

from benchmarks import knowledge
from benchmarks.results import Results
from fedbolic.core.rng import Rng
from fedbolic.data import Families


@pytest.fixture(autouse=True)
def families(monkeypatch):
    monkeypatch.setattr(knowledge, "WordNetRelations", lambda: Families(2, 3))
    short = dataclasses.replace(knowledge.METHOD, dim=4, rounds=1)
    monkeypatch.setattr(knowledge, "METHOD", short)


def test_popularity_ranks_by_the_number_of_training_triples(tmp_path):
    (client,) = knowledge.federation(tmp_path, 1, 0).clients
    train, test = client.train.triples.tolist(), client.test
    known = {tuple(t) for t in (*train, *test.known.tolist())}
    ranks = []
    for h, r, t in test.triples.tolist():
        for right, place in ((t, 2), (h, 0)):
            counts = [sum(x[1] == r and x[place] == e for x in train) for e in range(30)]
            triple = [h, r, t]
            others = []
            for e in range(30):
                triple[place] = e
                others += [e] if e != right and tuple(triple) not in known else []
            above = sum(counts[e] > counts[right] for e in others)
            ranks.append(1 + above + sum(counts[e] == counts[right] for e in others) / 2)
    mrr = sum(1 / rank for rank in ranks) / len(ranks)
    assert knowledge.popularity(tmp_path, 0)["test/mrr"] == pytest.approx(mrr, abs=1e-12)


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ({0.003: 0.2, 0.01: 0.5, 0.03: 0.3}, 0.01),  # no further step size is tried
        ({0.003: 0.2, 0.01: 0.5, 0.03: 0.6, 0.1: 0.7, 0.3: 0.1}, 0.1),
        ({0.0003: 0.5, 0.001: 0.6, 0.003: 0.4, 0.01: 0.3, 0.03: 0.2}, 0.001),
    ],
)
def test_the_step_size_with_the_best_validation_is_chosen(found, best, tmp_path, monkeypatch):
    monkeypatch.setattr(
        knowledge, "trained", lambda *given: {"validation/mrr": found[given[4]], "test/mrr": 0.0}
    )
    results = Results(tmp_path / "a.csv", quiet=True)
    assert knowledge.chosen(results, tmp_path, "RotE", "pooled") == best


@pytest.mark.parametrize("way", knowledge.WAYS)
def test_a_run_gives_all_figures(way, tmp_path):
    clients = 1 if way == "pooled" else 3
    found = knowledge.trained(tmp_path, "RotH", way, clients, 0.01, 0)
    assert {f"test/{name}" for name in knowledge.FIGURES} <= found.keys()
    assert found["lr"] == 0.01


def test_published_splits_are_trained_where_they_are_at_hand(tmp_path):
    (tmp_path / "WN18RR").mkdir()
    graph = Families(2, 3).read(None).held_out(Rng(0), 0.05, 0.05)
    for name, part in (("train", graph.train), ("valid", graph.validation), ("test", graph.test)):
        lines = ["\t".join(triple) for triple in graph.names(part)]
        (tmp_path / "WN18RR" / f"{name}.txt").write_text("\n".join(lines))
    found = knowledge.of_wn18rr(tmp_path, "RotE")
    assert {f"test/{name}" for name in knowledge.FIGURES} <= found.keys()
    with pytest.raises(FileNotFoundError, match="folder of triples"):
        knowledge.of_wn18rr(tmp_path / "WN18RR", "RotE")


def test_twins_are_compared_seed_by_seed(tmp_path, capsys):
    results = Results(tmp_path / "a.csv", quiet=True)
    for score, values in (("RotE", (0.1, 0.3)), ("RotH", (0.2, 0.5))):
        for seed, value in enumerate(values):
            figures = {f"test/{name}": value for name in knowledge.FIGURES}
            results.known["test", "pooled", score, "1", str(seed)] = {**figures, "lr": 0.01}
    knowledge.show(results, ["0", "1"])
    text = capsys.readouterr().out
    assert "| pooled | 1 | RotH - RotE | +0.1500 (0.0500) |" in text
    assert "| pooled | 1 | RotE | 0.01 | 2 | 0.2000" in text
    assert "| RotH | 0.473 | 0.551 | untested | untested |" in text
