"""Small federations, plain networks and loops to hold the federated core against."""

import io
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from typing_extensions import override

from fedbolic.data import HOLDOUT, Client, Examples, FederatedData
from fedbolic.federated import Trainer
from fedbolic.nn.backbone import Backbone
from fedbolic.rng import Rng
from fedbolic.types import Meta

RNG = Rng(3)


def federation(sizes=(7, 4, 12), *, dim=5, classes=3, dtype=torch.float64, seed=0, num_test=6):
    generator = torch.Generator().manual_seed(seed)

    def examples(n):
        x = torch.randn(n, dim, generator=generator, dtype=torch.float64).to(dtype)
        return Examples({"x": x, "y": torch.randint(classes, (n,), generator=generator)})

    meta = Meta(classes, (dim,), tuple(sizes))
    clients = tuple(
        Client(i, examples(n), examples(0), examples(num_test), meta) for i, n in enumerate(sizes)
    )
    holdout = Client(HOLDOUT, examples(0), examples(0), examples(9), meta)
    return FederatedData(clients, meta, holdout)


@dataclass(frozen=True)
class NormNet(Backbone):
    """A linear layer, batch norm, ReLU."""

    width: int = 4

    @property
    @override
    def num_features(self) -> int:
        return self.width

    @override
    def build(self, meta: Meta) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(meta.input_shape[0], self.width),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
        )


def plain_network(parameters, buffers=None, *, dim=5, width=4, classes=3, norm=False):
    """A torch module written by hand, with values under the names that the methods use."""
    layers = [nn.Flatten(), nn.Linear(dim, width), *([nn.BatchNorm1d(width)] * norm), nn.ReLU()]
    parts = OrderedDict(body=nn.Sequential(*layers), head=nn.Linear(width, classes))
    network = nn.Sequential(parts).to(next(iter(parameters.values())).dtype)
    network.load_state_dict({**parameters, **(buffers or {})})
    return network.train()


def batches(rng, round, client, *, epochs, batch_size, exchange=0):
    """The named stream of a client's exchange, one permutation after another, cut."""
    stream = rng.at("round", round, "exchange", exchange, "client", client.id, "order")
    generator = stream.generator()
    for _ in range(epochs):
        order = torch.randperm(len(client.train), generator=generator)
        for index in order.split(batch_size or len(order)):
            yield client.train.tensors["x"][index], client.train.tensors["y"][index]


def average(trees, weights):
    """The mean of dicts of tensors by weight."""
    return {
        name: sum(w * tree[name] for w, tree in zip(weights, trees, strict=True)) / sum(weights)
        for name in trees[0]
    }


def values(network):
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def train(method, data, rng=RNG, position=None, **settings):
    """Every position of a run, and all its rows."""
    positions, rows = [], []
    for now, new in Trainer(**settings).run(method, data, rng, position):
        positions.append(now)
        rows += new
    return positions, rows


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def flat(tree, path=""):
    """Leaves by path, written without the code under test."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name in tree for k, v in flat(tree[name], f"{path}/{name}").items()}


def assert_same(x, y):
    """Equal to the last bit: names, types, dtypes, shapes, values."""
    x, y = flat(x), flat(y)
    assert x.keys() == y.keys()
    for path in x:
        assert type(x[path]) is type(y[path]), path
        if isinstance(x[path], torch.Tensor):
            assert x[path].dtype == y[path].dtype, path
            assert torch.equal(x[path], y[path]), path
        else:
            assert x[path] == y[path], path


def assert_near(x, y, atol):
    """Equal names, shapes and dtypes, and values within ``atol``."""
    x, y = flat(x), flat(y)
    assert x.keys() == y.keys()
    for path in x:
        torch.testing.assert_close(
            x[path], y[path], rtol=0, atol=atol, msg=lambda text, path=path: f"{path}: {text}"
        )
