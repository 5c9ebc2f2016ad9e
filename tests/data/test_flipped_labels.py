import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    BlockModel,
    Examples,
    FederatedData,
    FlippedLabels,
    Graphs,
    Partitioned,
    Source,
)
from tests.federated.simple_method import assert_same

SOURCE = Partitioned(partition=IID(5), validation_rate=0.2)


def splits(client):
    return {name: getattr(client, name).all() for name in ("train", "validation", "test")}


def test_only_training_labels_of_the_chosen_clients_are_flipped():
    honest, data = SOURCE.load(Rng(0)), FlippedLabels(SOURCE, (1, 4)).load(Rng(0))
    assert data.meta == honest.meta
    assert data.sizes == honest.sizes
    assert [client.id for client in data.clients] == [0, 1, 2, 3, 4]
    for old, new in zip(honest.clients, data.clients, strict=True):
        expected = splits(old)
        if old.id in (1, 4):
            labels = [9 - y for y in expected["train"]["y"].tolist()]
            expected["train"] = {**expected["train"], "y": torch.tensor(labels)}
        assert_same(splits(new), expected)
    assert_same(splits(data.holdout), splits(honest.holdout))


def test_flipping_twice_gives_the_honest_data():
    twice = FlippedLabels(FlippedLabels(SOURCE, (0, 3)), (0, 3)).load(Rng(0))
    for old, new in zip(SOURCE.load(Rng(0)).clients, twice.clients, strict=True):
        assert_same(splits(new), splits(old))


def test_no_client_gives_the_honest_data():
    data = FlippedLabels(SOURCE, ()).load(Rng(0))
    assert_same(splits(data.clients[2]), splits(SOURCE.load(Rng(0)).clients[2]))


@dataclasses.dataclass(frozen=True)
class WithoutLabels(Source):
    def load(self, rng):
        data = SOURCE.load(rng)
        clients = [
            dataclasses.replace(client, train=Examples({"x": client.train.all()["x"]}))
            for client in data.clients
        ]
        return FederatedData(tuple(clients), data.meta)


@pytest.mark.parametrize("source", [WithoutLabels(), Graphs(BlockModel())], ids=["none", "graph"])
def test_examples_without_class_labels_are_refused(source):
    with pytest.raises(ValueError, match="examples of client 1 have no class labels 'y' to flip"):
        FlippedLabels(source, (1,)).load(Rng(0))


def test_unknown_clients_are_refused():
    with pytest.raises(ValueError, match=r"clients \[5\] have no labels, as the ids are 0 .. 4"):
        FlippedLabels(SOURCE, (5,)).load(Rng(0))


@pytest.mark.parametrize("clients", [(2, 2), (-1,)])
def test_ids_that_are_negative_or_repeated_are_refused(clients):
    with pytest.raises(ValueError, match="clients must be different ids from 0 on"):
        FlippedLabels(SOURCE, clients)
