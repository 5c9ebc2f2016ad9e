"""Places that stay at a node, and the answers of its owner."""

import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import HolderFiles, agree_names
from fedbolic.hierarchies import Embedding, SlotLayout
from fedbolic.remote.kept_embedding import kept_embedding
from tests.federated.simple_method import train
from tests.remote.transports import away


@pytest.fixture
def shops(tmp_path):
    """Sources of the nodes of three shops, after a run, and the files of their states."""
    (common := tmp_path / "common.csv").write_text("laptops,goods\nphones,goods\n")
    for shop in "abc":
        (tmp_path / f"{shop}.csv").write_text(f"Mac {shop},laptops\nMini {shop},Mac {shop}\n")
    files = [tmp_path / f"{shop}.csv" for shop in "abc"]
    agree_names([*files, common], tmp_path / "all.names")
    agreed = {"common": common, "names": tmp_path / "all.names"}
    own = [HolderFiles({file.stem: file}, **agreed) for file in files]
    data = HolderFiles({file.stem: file for file in files}, common=common).load(Rng(0))
    nodes, seen = away(SlotLayout(), data, tmp_path / "nodes")
    train(SlotLayout(), seen, engine=nodes)
    states = [tmp_path / "nodes" / str(i) / "client_state.pt" for i in range(3)]
    published = SlotLayout("published")
    *_, last = train(published, data)[0]
    nodes, places = published.node_places(last.server_state, data.holdout, {})
    return own, states, Embedding.of(data.holdout.test.hierarchy, places, nodes)


def test_holders_answer_by_the_places_that_all_would_have_published(shops):
    own, states, everything = shops
    maps = [kept_embedding(SlotLayout(), *of) for of in zip(own, states, strict=True)]
    query = maps[0].places[torch.tensor([maps[0].names.index("Mini a")])]
    answers = {pair for one in maps for pair in one.nearest(query, 20)}
    assert answers == set(everything.nearest(query, 20))
    assert {name for name, _ in answers} == set(everything.names)
    assert not any("Mac b" in one.names for one in (maps[0], maps[2]))


def test_what_is_no_kept_embedding_is_refused(shops, tmp_path):
    own, states, _ = shops
    with pytest.raises(FileNotFoundError, match=r"none\.pt is no file"):
        kept_embedding(SlotLayout(), own[0], tmp_path / "none.pt")
    two = dataclasses.replace(own[0], holders={**own[0].holders, **own[1].holders})
    with pytest.raises(ValueError, match="a hierarchy of one client, got 2 clients"):
        kept_embedding(SlotLayout(), two, states[0])
    nodes = tmp_path / "published"
    data = own[0].load(Rng(0))
    engine, seen = away(SlotLayout("published"), data, nodes)
    train(SlotLayout("published"), seen, engine=engine)
    with pytest.raises(ValueError, match="holds no embedding of SlotLayout"):
        kept_embedding(SlotLayout(), own[0], nodes / "0" / "client_state.pt")
