"""Knowledge graphs, their files, splits and partitions."""

import gzip
from pathlib import Path

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    ByEntity,
    ByRelation,
    Families,
    PartitionedTriples,
    RandomTriples,
    TripleFile,
    TripleFolder,
    Triples,
    WordNetRelations,
)

RNG = Rng(2)
FAMILIES = Families(2, 4).read(None)
ROWS = "lion\tis_a\tcat\ncat\teats\tfish\nlion\tis_a\tcat\nlion\tseen_with\tlion\n"


def named(part):
    return FAMILIES.names(part)


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.tsv.gz"])
def test_a_table_is_read(tmp_path, name):
    data = ROWS.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    graph = TripleFile(Path(name)).read(tmp_path)
    assert graph.entities == ("cat", "fish", "lion")
    assert graph.names(graph.train) == [
        ("lion", "is_a", "cat"),
        ("cat", "eats", "fish"),
        ("lion", "seen_with", "lion"),
    ]


def test_n_triples_are_read(tmp_path):
    pytest.importorskip("rdflib")
    text = '<http://a> <http://r> <http://b> .\n<http://a> <http://name> "A" .\n'
    text += "_:b0 <http://r> <http://b> .\n<http://a> <http://r> _:b0 .\n"
    (tmp_path / "a.nt").write_text(text)
    graph = TripleFile(Path("a.nt")).read(tmp_path)
    assert graph.names(graph.train) == [("http://a", "http://r", "http://b")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tb\n", "line 1: expected a head"),
        ("a\t\tc\n", "empty name"),
        ("a\tr\tb\nx\n", "line 2"),
        ("", "entities need at least 2"),
    ],
)
def test_damaged_lines_are_named(tmp_path, text, words):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(ValueError, match=words) as found:
        TripleFile(Path("a.tsv")).read(tmp_path)
    assert str(found.value).count("a.tsv") == 1


def test_a_file_of_another_ending_or_nowhere_is_refused(tmp_path):
    (tmp_path / "a.xml").write_text("a\tr\tb")
    with pytest.raises(ValueError, match="must end in"):
        TripleFile(Path("a.xml")).read(tmp_path)
    with pytest.raises(FileNotFoundError, match="file of triples"):
        TripleFile(Path("b.tsv")).read(tmp_path)


def test_a_published_folder_keeps_its_split(tmp_path):
    for part, text in (
        ("train", "a\tr\tb\nb\tr\tc\n"),
        ("valid", "c\tr\ta\n"),
        ("test", "a\tr\tc\n"),
    ):
        (tmp_path / f"{part}.txt").write_text(text)
    graph = TripleFolder(tmp_path).read(None)
    parts = [graph.names(part) for part in (graph.train, graph.validation, graph.test)]
    assert parts == [
        [("a", "r", "b"), ("b", "r", "c")],
        [("c", "r", "a")],
        [("a", "r", "c")],
    ]
    data = PartitionedTriples(TripleFolder(tmp_path), RandomTriples(1)).load(RNG)
    assert (len(data.holdout.test), data.sizes) == (1, (2,))


@pytest.mark.parametrize(
    ("triples", "words"),
    [([[0, 0, 9]], "does not exist"), ([[0, 0, 1]] * 2, "repeated"), ([[0, -1, 1]], "not exist")],
)
def test_impossible_triples_are_refused(triples, words):
    none = torch.empty(0, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=words):
        Triples(("a", "b"), ("r",), torch.tensor(triples), none, none)


def test_held_out_triples_follow_from_no_other_triple_of_their_ends():
    split = FAMILIES.held_out(RNG, 0.1, 0.2)
    sizes = [len(part) for part in (split.train, split.validation, split.test)]
    total = len(FAMILIES.train)
    assert sizes == [
        total - round(0.1 * total) - round(0.2 * total),
        round(0.1 * total),
        round(0.2 * total),
    ]
    assert sorted(named(split.all)) == sorted(named(FAMILIES.train))
    train = named(split.train)
    linked = {frozenset((h, t)) for h, _, t in train}
    assert not [t for t in named(split.test) if frozenset((t[0], t[2])) in linked]
    assert {x for h, _, t in train for x in (h, t)} == set(FAMILIES.entities)
    assert {r for _, r, _ in train} == set(FAMILIES.relations)


def test_pairs_with_two_relations_are_not_held_out():
    triples = [("a", "r", "b"), ("b", "s", "a"), ("a", "r", "c"), ("b", "s", "c"), ("c", "r", "d")]
    triples += [("d", "r", "a"), ("d", "s", "b")]
    graph = Triples.named(triples)
    for seed in range(20):
        split = graph.held_out(Rng(seed), 0.0, 0.14)
        assert not {("a", "r", "b"), ("b", "s", "a")} & set(graph.names(split.test))
    with pytest.raises(ValueError, match="use lower rates"):
        graph.held_out(RNG, 0.4, 0.5)


def test_inverse_triples_of_one_relation_are_left_out():
    graph = Triples.named([("a", "r", "b"), ("b", "r", "a"), ("b", "s", "a"), ("a", "r", "c")])
    kept = graph.without_inverses()
    assert kept.names(kept.train) == [("a", "r", "b"), ("b", "s", "a"), ("a", "r", "c")]


def test_a_cut_keeps_the_entities_with_the_most_triples():
    graph = FAMILIES.cut(20)
    counts = torch.bincount(FAMILIES.train[:, [0, 2]].flatten()).tolist()
    kept = sorted(range(len(counts)), key=lambda i: (-counts[i], i))[:20]
    inside = [
        (h, r, t)
        for (h, r, t), (u, _, v) in zip(named(FAMILIES.train), FAMILIES.train.tolist(), strict=True)
        if {u, v} <= set(kept)
    ]
    assert graph.names(graph.train) == inside


@pytest.mark.parametrize("kind", [ByRelation, ByEntity, RandomTriples])
def test_every_triple_has_one_client(kind):
    data = PartitionedTriples(Families(2, 4), kind(3), test_rate=0.1).load(RNG)
    whole = data.holdout.test
    for part in ("train", "validation", "test"):
        triples = torch.cat([getattr(client, part).triples for client in data.clients])
        assert len(triples.unique(dim=0)) == len(triples)
    assert torch.equal(triples.unique(dim=0), whole.triples.unique(dim=0))
    for client in data.clients:
        held = torch.cat((client.train.triples, client.validation.triples, client.test.triples))
        assert torch.equal(client.test.known.unique(dim=0), held.unique(dim=0))
        assert len(client.train) > 0


def test_a_relation_or_a_head_lies_at_one_client():
    for kind, column in ((ByRelation, 1), (ByEntity, 0)):
        data = PartitionedTriples(Families(2, 4), kind(3)).load(RNG)
        sets = [set(c.train.triples[:, column].tolist()) for c in data.clients]
        assert sum(map(len, sets)) == len(set.union(*sets))


@pytest.mark.parametrize("seed", range(5))
def test_clients_have_triples_even_if_one_head_has_most_of_them(seed):
    triples = [("hub", "r", f"leaf{i}") for i in range(20)]
    graph = Triples.named([*triples, ("a", "r", "hub"), ("b", "r", "hub")])
    owners = ByEntity(3).owners(graph, Rng(seed))
    assert torch.bincount(owners).sort().values.tolist() == [1, 1, 20]


@pytest.mark.parametrize("kind", [ByRelation, ByEntity, RandomTriples])
def test_too_many_clients_are_refused(kind):
    with pytest.raises(ValueError, match="use fewer clients"):
        PartitionedTriples(Families(1, 2), kind(400)).load(RNG)


def test_keys_say_which_triples_are_known():
    data = PartitionedTriples(Families(1, 3), ByRelation(2)).load(RNG)
    split, n, m = data.holdout.test, data.meta.num_classes, data.meta.input_shape[1]
    true = {tuple(t) for t in torch.cat((split.triples, split.known)).tolist()}
    both = true | {(t, r + m, h) for h, r, t in true}
    assert split.tail_keys.tolist() == sorted((r * n + h) * n + t for h, r, t in both)
    assert split.to("cpu", torch.float64).numbering == split.numbering


@pytest.mark.data
def test_wordnet_is_cut_to_the_documented_size(data_root):
    graph = WordNetRelations().read(data_root)
    assert (len(graph.entities), len(graph.relations)) == (9695, 10)
