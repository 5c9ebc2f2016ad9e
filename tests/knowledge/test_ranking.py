"""Filtered ranks against sets and loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import TripleSplit
from fedbolic.knowledge import TripleScore
from fedbolic.knowledge.ranking import tail_rank_scores, tail_ranks


def example(seed, *, entities=6, relations=2, triples=9, known=7, levels=3):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([entities, relations, entities])
    every = (torch.rand(triples + known, 3, generator=generator) * sizes).long().unique(dim=0)
    every = every[torch.randperm(len(every), generator=generator)]
    names = tuple(map(str, range(entities))), tuple(map(str, range(relations)))
    split = TripleSplit(*names, every[:triples], every[triples:])
    # few levels, so that there are ties
    table = torch.randint(levels, (2 * relations, entities, entities), generator=generator).double()
    return split, table


def by_hand(split, table):
    n = len(split.relations)
    true = {tuple(t) for t in torch.cat((split.triples, split.known)).tolist()}
    ranks = []
    for direction in range(2):
        for h, r, t in split.triples.tolist():
            u, relation, v = (h, r, t) if direction == 0 else (t, r + n, h)
            scores = table[relation, u]
            others = [
                e
                for e in range(len(split.entities))
                if e != v and ((u, r, e) if direction == 0 else (e, r, u)) not in true
            ]
            above = sum(bool(scores[e] > scores[v]) for e in others)
            below = sum(bool(scores[e] >= scores[v]) for e in others)
            ranks.append(((1 + above) + (1 + below)) / 2)  # the mean of best and worst
    return ranks


@given(st.integers(0, 10**6), st.integers(1, 10))
def test_ranks_are_those_of_a_loop(seed, chunk):
    split, table = example(seed)
    found = tail_ranks(lambda heads, relations: table[relations, heads], split, chunk=chunk)
    assert found.tolist() == by_hand(split, table)


def test_scores_are_means_of_the_ranks():
    split, table = example(5)
    ranks = by_hand(split, table)
    found = tail_rank_scores(lambda heads, relations: table[relations, heads], split)
    assert found["mrr"] == pytest.approx(sum(1 / r for r in ranks) / len(ranks), abs=1e-15)
    for k in (1, 3, 10):
        assert found[f"hits_at_{k}"] == sum(r <= k for r in ranks) / len(ranks)
    assert found["examples"] == len(split)


def test_equal_scores_have_the_expected_rank():
    names = tuple(map(str, range(101))), ("r",)
    none = torch.empty(0, 3, dtype=torch.int64)
    split = TripleSplit(*names, torch.tensor([[0, 0, 1]]), none)
    assert tail_ranks(lambda h, r: torch.zeros(len(h), 101), split).tolist() == [51.0, 51.0]


def test_nan_is_refused():
    split, table = example(1)
    with pytest.raises(ValueError, match="NaN"):
        tail_ranks(lambda h, r: table[r, h] * torch.nan, split)


@pytest.mark.parametrize("name", ["TransE", "RotatE"])
def test_scores_are_those_of_pykeen_with_its_models(name):
    """With rows of inverse relations by which heads have the scores that PyKEEN gives them."""
    pytest.importorskip("pykeen")
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import RotatE, TransE
    from pykeen.triples import CoreTriplesFactory

    split, _ = example(3, entities=20, relations=3, triples=40, known=60)
    n, m = len(split.entities), len(split.relations)
    factory = CoreTriplesFactory(split.known, n, m)
    settings = {"triples_factory": factory, "embedding_dim": 4, "random_seed": 0}
    model = TransE(scoring_fct_norm=2, **settings) if name == "TransE" else RotatE(**settings)
    model = model.double()
    found = RankBasedEvaluator().evaluate(
        model, split.triples, additional_filter_triples=[split.known], use_tqdm=False
    )
    tables = [
        part[0]().detach()
        for part in (model.entity_representations, model.relation_representations)
    ]
    if name == "TransE":
        score = TripleScore("TransE", 4, "none")
        rows = {"entity": tables[0], "relation": torch.cat((tables[1], -tables[1]))}
    else:  # all real parts first, and unit numbers by their angles
        score = TripleScore("RotatE", 8, "none")
        angles = tables[1].angle()
        entity = torch.cat((tables[0].real, tables[0].imag), 1)
        rows = {"entity": entity, "relation": torch.cat((angles, -angles))}
    ours = tail_rank_scores(
        lambda h, r: score.scores(score.query_of(rows, h, r), rows["entity"]), split
    )
    names = {"mrr": "inverse_harmonic_mean_rank"} | {
        f"hits_at_{k}": f"hits_at_{k}" for k in (1, 3, 10)
    }
    for own, theirs in names.items():
        assert ours[own] == pytest.approx(found.get_metric(f"both.realistic.{theirs}"), abs=1e-6)
