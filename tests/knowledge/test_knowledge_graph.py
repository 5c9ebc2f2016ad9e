"""KnowledgeGraph against its tables and triples, by name."""

import numpy as np
import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import ByRelation, Families, PartitionedTriples
from fedbolic.knowledge import KnowledgeEmbedding, KnowledgeGraph, TripleScorer
from tests.federated.simple_method import train

RNG = Rng(4)
SOURCE = PartitionedTriples(Families(1, 3), ByRelation(2))
METHOD = KnowledgeEmbedding(dim=4, rounds=2)


@pytest.fixture(scope="module", params=["RotH", "MuRP", "ComplEx"])
def trained(request):
    data = SOURCE.load(RNG)
    method = KnowledgeEmbedding(score=request.param, dim=4, rounds=2)
    states, _ = train(method, data, RNG)
    message = method.broadcast(states[-1].server_state, -1)
    found = method.triple_tables(message, data.holdout, {})
    return KnowledgeGraph.of(data.holdout.test, found["score"], found["tables"]), data


def scorer_of(graph):
    scorer = TripleScorer(graph.scorer, len(graph), 2 * len(graph.relations)).double()
    scorer.load_state_dict(graph.tables)
    return scorer


def test_tails_and_heads_are_all_entities_by_descending_score(trained):
    graph, _ = trained
    scorer, n = scorer_of(graph), len(graph)
    h, r = 3, 1
    tails = [(graph.entities[t], scorer(torch.tensor([h, r, t])).item()) for t in range(n)]
    found = graph.tails(graph.entities[h], graph.relations[r], n)
    assert [s for _, s in found] == sorted((s for _, s in found), reverse=True)
    assert dict(found) == pytest.approx(dict(tails), abs=1e-12)
    assert graph.tails(graph.entities[h], graph.relations[r], 2) == found[:2]
    back = r + len(graph.relations)
    heads = [(graph.entities[e], scorer(torch.tensor([h, back, e])).item()) for e in range(n)]
    found = graph.heads(graph.entities[h], graph.relations[r], n)
    assert dict(found) == pytest.approx(dict(heads), abs=1e-12)


def test_a_score_is_that_of_the_triple(trained):
    graph, _ = trained
    expected = scorer_of(graph)(torch.tensor([2, 0, 5])).item()
    names = graph.entities[2], graph.relations[0], graph.entities[5]
    assert graph.score(*names) == pytest.approx(expected, abs=1e-12)


def test_new_tails_and_heads_are_in_no_known_triple(trained):
    graph, data = trained
    known = {
        tuple(t)
        for c in data.clients
        for t in (*c.train.triples.tolist(), *c.test.triples.tolist())
    }
    for h, r, t in known:
        head, relation, tail = graph.entities[h], graph.relations[r], graph.entities[t]
        assert tail not in dict(graph.tails(head, relation, len(graph), new=True))
        assert tail in dict(graph.tails(head, relation, len(graph)))
        assert head not in dict(graph.heads(tail, relation, len(graph), new=True))


def test_the_index_finds_the_nearest_places(trained):
    graph, _ = trained
    relation = graph.relations[0]
    if graph.scorer.parts.curvature == "flat":
        with pytest.raises(ValueError, match="no curvature"):
            graph.index(relation)
        return
    places = graph.places(relation)
    _, numbers, _ = graph.index(relation).search([0, 4], k=3)
    for query, row in zip((0, 4), numbers, strict=True):
        distances = places[torch.tensor([query])].cdist(places)[0]
        assert [int(number) for number in row] == distances.argsort()[:3].tolist()


def test_rows_are_tangents(trained):
    graph, _ = trained
    assert np.array_equal(graph.to_numpy(), graph.tables["entity"][:, :4].numpy())
    assert graph.to_numpy(np.float32).dtype == np.float32


def test_a_file_is_read_back_equal(trained, tmp_path):
    graph, _ = trained
    graph.save(tmp_path / "a.npz", {"origin": "test"})
    again = KnowledgeGraph.load(tmp_path / "a.npz")
    for name in ("entities", "relations", "scorer"):
        assert getattr(again, name) == getattr(graph, name)
    assert torch.equal(again.known, graph.known)
    assert again.tables.keys() == graph.tables.keys()
    assert all(torch.equal(again.tables[name], graph.tables[name]) for name in graph.tables)
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        graph.save(tmp_path / "a.csv")


def test_damaged_files_are_refused(trained, tmp_path):
    graph, _ = trained
    graph.save(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    nan = {**arrays, "entity": arrays["entity"] * np.nan}
    short = {**arrays, "relation": arrays["relation"][1:]}
    far = {**arrays, "known": np.array([[0, 0, len(graph)]])}
    for number, damaged in enumerate((nan, short, far, {"known": arrays["known"]})):
        np.savez(tmp_path / f"{number}.npz", **damaged)
        with pytest.raises(ValueError, match="holds no knowledge graph"):
            KnowledgeGraph.load(tmp_path / f"{number}.npz")
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="holds no knowledge graph"):
        KnowledgeGraph.load(tmp_path / "b.npz")


def test_unknown_names_are_answered_by_names_like_them(trained):
    graph, _ = trained
    with pytest.raises(
        ValueError, match="no entity 'family_person1': did you mean 'family0_person1"
    ):
        graph.tails("family_person1", "parent")
    with pytest.raises(ValueError, match="no relation 'parents': did you mean 'parent'"):
        graph.heads("family0_person1", "parents")


def test_clients_without_common_tables_have_their_own():
    data = SOURCE.load(RNG)
    method = KnowledgeEmbedding(dim=4, rounds=1, personal=("entity",))
    states, _ = train(method, data, RNG)
    state = states[-1]
    message = method.broadcast(state.server_state, 0)
    assert method.triple_tables(message, data.holdout, {}) is None
    found = method.triple_tables(message, data.clients[0], state.client_states[0])
    assert found["tables"]["entity"] is state.client_states[0]["own"]["entity"]
