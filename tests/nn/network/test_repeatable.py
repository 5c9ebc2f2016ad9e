"""Replacements for torch's dropouts: the same distribution, other random bits."""

import pytest
import torch
from torch import nn

from fedbolic.nn.layers.dropout import AlphaDropout, ChannelDropout, Dropout
from fedbolic.nn.network.model import Model
from fedbolic.nn.network.repeatable import with_own_dropout

CASES = {
    "Dropout": (nn.Dropout, (40, 50)),
    "Dropout1d": (nn.Dropout1d, (20, 30, 4)),
    "Dropout1d, one example": (nn.Dropout1d, (600, 4)),
    "Dropout2d": (nn.Dropout2d, (20, 30, 2, 3)),
    "Dropout2d, one axis": (nn.Dropout2d, (20, 30, 4)),
    "Dropout3d": (nn.Dropout3d, (20, 30, 2, 1, 3)),
    "Dropout3d, one example": (nn.Dropout3d, (600, 2, 1, 3)),
    "AlphaDropout": (nn.AlphaDropout, (40, 50)),
}


def channels(x, kind, shape):
    """Outputs for inputs of ones, with one axis for the values that are dropped together."""
    if kind in (nn.Dropout, nn.AlphaDropout):
        return x.reshape(-1, 1)
    return x.reshape(600, -1)


@pytest.mark.parametrize("p", [0.2, 0.7])
@pytest.mark.parametrize(("kind", "shape"), CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore:dropout2d. Received a 3D input")
def test_a_dropout_is_torch_s_but_for_the_coins(kind, shape, p):
    theirs = kind(p)
    ours, names = with_own_dropout(kind(p))
    assert names == ("",)
    assert type(ours) in (Dropout, ChannelDropout, AlphaDropout)
    x = torch.ones(shape, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = channels(theirs(x), kind, shape)
    found = channels(ours(x), kind, shape)
    values = expected.unique()
    torch.testing.assert_close(found.unique(), values, rtol=1e-6, atol=1e-12)
    assert torch.equal(found, found[:, :1].expand_as(found))  # dropped together or not at all
    away = values[0] if kind is not nn.AlphaDropout else values.min()
    share = (found[:, 0] - away).abs().lt(1e-6).double().mean()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / len(found)) ** 0.5)
    assert torch.equal(ours.eval()(x), x)


def test_alpha_dropout_keeps_mean_and_variance():
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = AlphaDropout(0.4)(x)
    assert y.mean().item() == pytest.approx(0, abs=0.02)
    assert y.var().item() == pytest.approx(1, abs=0.03)


class Twice(nn.Module):
    """One dropout used twice, a disabled one, a deterministic one, and one of a subclass."""

    class Mine(nn.Dropout):
        """A subclass may behave differently, so it is not replaced."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Dropout(0.5)
        self.parts = nn.ModuleList([nn.Linear(3, 3), nn.Dropout(0.0), nn.Dropout(1.0)])
        self.mine = self.Mine(0.5)

    def forward(self, x):
        return self.second(self.first(self.parts[0](x)))


def test_only_coins_of_torch_s_own_classes_are_replaced_and_sharing_stays():
    network, names = with_own_dropout(Twice())
    assert names == ("first", "second")
    assert network.first is network.second
    assert [type(m) for m in network.parts] == [nn.Linear, nn.Dropout, nn.Dropout]
    assert type(network.mine) is Twice.Mine
    assert with_own_dropout(network)[1] == ()


def test_a_model_starts_with_the_parameters_of_the_network_it_was_given():
    def build():
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))

    model = Model(build)
    parameters, buffers = model.init(seed=7)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = build()
    for name, value in network.named_parameters():
        assert torch.equal(parameters[name], value), name
    assert list(buffers) == ["1.dropout_seed"]
    x = torch.ones(5, 4)
    assert torch.equal(model(parameters, buffers, x)[0], network.eval()(x))


def test_a_part_of_a_model_has_its_dropouts(caplog):
    caplog.set_level("INFO", "fedbolic")
    model = Model(lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))))
    _, buffers = model.part("0").init(seed=0)
    assert list(buffers) == ["1.dropout_seed"]
    assert [r.message.rpartition(": ")[2] for r in caplog.records] == ["0.1"]
