"""Networks with activation checkpoints train as they do without, in every engine."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from fedbolic.federated import Batched, Graphed, LocalTraining, RunStoppedError, Sequential
from fedbolic.methods import FedAvg, Moon
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.nn.network.backbone import Backbone
from tests.federated.simple_method import assert_near, federation, train


class Segmented(nn.Module):
    """Layers in a segment, which may be in a larger one."""

    def __init__(self, reentrant, nested):
        super().__init__()
        self.reentrant, self.nested = reentrant, nested
        self.first = nn.Linear(5, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Dropout(0.4), nn.Linear(4, 4))
        self.last = nn.Sequential(nn.Tanh(), nn.Dropout(0.4))

    def forward(self, x):
        x = self.first(x).tanh()
        return self.segment(self.whole, x) if self.nested else self.whole(x)

    def whole(self, x):
        return self.segment(self.last, self.segment(self.inner, x))

    def segment(self, layer, x):
        if self.reentrant is None:
            return layer(x)
        return checkpoint(layer, x, use_reentrant=self.reentrant)


@dataclass(frozen=True)
class Segments(Backbone):
    """The layers as a backbone; with ``reentrant`` of ``None`` no activation is forgotten."""

    reentrant: bool | None
    nested: bool = True

    @property
    @override
    def num_features(self) -> int:
        return 4

    @override
    def build(self, meta):
        return Segmented(self.reentrant, self.nested)


LOCAL = LocalTraining(2, 4)


def test_every_engine_trains_the_network_without_checkpoints(caplog):
    data = federation()
    for engine in (Sequential(), Batched(), Graphed()):
        for make in (FedAvg, Moon):  # Moon passes through several networks before it goes back
            kept, recomputed = (
                train(make(Segments(mode), rounds=2, local=LOCAL), data, engine=engine)
                for mode in (None, False)
            )
            # torch 2.11 adds some gradients in another order under checkpoints; other masks of
            # dropout would move them by far more
            assert_near(recomputed[0][-1].server_state, kept[0][-1].server_state, 1e-12)
            found, expected = ([row.value for row in rows] for _, rows in (recomputed, kept))
            assert found == pytest.approx(expected, rel=0, abs=1e-12)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert "one by one" not in caplog.text


def test_reentrant_checkpoints_are_refused_by_name(caplog):
    method = FedAvg(Segments(True, nested=False), rounds=1, local=LOCAL)
    for engine in (Sequential(), Batched(), Graphed()):
        caplog.clear()
        with pytest.raises(RunStoppedError):
            train(method, federation(), engine=engine)
        assert "set use_reentrant=False" in caplog.text


def test_hooks_on_saved_tensors_are_on_again_after_a_call():
    train(FedAvg(Segments(False), rounds=1, local=LOCAL), federation())
    seen, x = [], torch.ones(1, requires_grad=True)
    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        x.exp()
    assert seen
