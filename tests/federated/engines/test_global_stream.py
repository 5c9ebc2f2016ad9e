"""Networks that draw from torch's global random stream: engines reproduce the draws per client.

The oracles are a second run that begins with another state of the stream, and the state of the
stream after each run.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn.functional import dropout
from typing_extensions import override

from fedbolic.federated import Batched, Evaluation, FineTune, Sequential, TrainerState, Workers
from fedbolic.federated.batched.joint import joint
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import Backbone
from tests.federated.simple_method import (
    RNG,
    SMALL,
    assert_same,
    federation,
    saved_and_loaded,
    train,
)
from tests.remote.transports import away

SIZES = (9, 4, 9)


class Forgotten(nn.Module):
    """A functional dropout that is also active in evaluation."""

    def forward(self, x):
        return dropout(x, 0.5)


class StochasticDepth(nn.Module):
    """A residual branch that is skipped for some examples in training."""

    def forward(self, x):
        return x + x.tanh() * (torch.rand(len(x), 1, dtype=x.dtype) < 0.5) * self.training


class Attending(nn.Module):
    """Torch's attention, which stores its dropout as a number instead of a module."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@dataclass(frozen=True)
class Drawing(Backbone):
    """A linear layer and a part that draws random numbers."""

    part: Callable[[], nn.Module]

    @property
    def num_features(self):
        return 4

    @override
    def build(self, meta):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(meta.input_shape), 4), self.part())


PARTS = [nn.RReLU, Forgotten, StochasticDepth, Attending, nn.FeatureAlphaDropout]
every_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)


def method_with(part, kind=FedAvg):
    fields = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(FedAvg)}
    return kind(**{**fields, "backbone": Drawing(part), "rounds": 2})


def run(method, seed, state=None, data=None, **settings):
    """A run that begins with a given state of the global stream and restores that state."""
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    data = federation(SIZES) if data is None else data
    positions, rows = train(
        method, data, RNG, state, evaluation=Evaluation(fine_tuning=FineTune(1)), **settings
    )
    assert torch.equal(torch.get_rng_state(), before)
    return positions, rows


@every_part
@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=repr)
def test_runs_of_one_seed_are_equal_whatever_was_drawn_before(part, engine):
    (*_, first), rows = run(method_with(part), seed=1)
    (*_, second), again = run(method_with(part), seed=2, engine=engine)
    assert_same(first.server_state, second.server_state)
    assert rows == again


@every_part
def test_a_resumed_run_ends_with_the_same_bytes(part):
    positions, rows = run(method_with(part), seed=1)
    middle = TrainerState.restore(saved_and_loaded(positions[0].checkpoint()))
    (*_, end), rest = run(method_with(part), seed=2, state=middle)
    assert_same(end.server_state, positions[-1].server_state)
    assert rest == [row for row in rows if row.round > 1]


@pytest.mark.processes
def test_workers_give_what_sequential_gives():
    (*_, plain), rows = run(method_with(nn.RReLU), seed=1)
    (*_, shared), again = run(method_with(nn.RReLU), seed=2, engine=Workers(num=2))
    assert_same(shared.server_state, plain.server_state)
    assert rows == again


def test_nodes_give_what_sequential_gives(tmp_path):
    method, data = method_with(Forgotten), federation(SIZES)
    (*_, plain), rows = run(method, seed=1)
    nodes, seen = away(method, data, tmp_path, evaluation=Evaluation(fine_tuning=FineTune(1)))
    (*_, far), again = run(method, seed=2, data=seen, engine=nodes)
    assert_same(far.server_state, plain.server_state)
    assert [row.value for row in again] == pytest.approx([row.value for row in rows], abs=1e-12)


def test_draws_differ_from_client_to_client_and_from_round_to_round():
    class Keeping(FedAvg):
        """Sends a draw of the global stream at each client as a metric."""

        def local_update(self, message, client, client_state, rng):
            update, client_state = super().local_update(message, client, client_state, rng)
            return dataclasses.replace(
                update, metrics={"draw": float(torch.rand(()))}
            ), client_state

    _, rows = run(method_with(nn.Identity, Keeping), seed=1)
    drawn = [row.value for row in rows if row.name == "draw" and row.client is not None]
    assert len(set(drawn)) == len(drawn) == 2 * len(SIZES)


class Joint(FedAvg):
    """A method that draws once for all clients in its joint loss, where vmap would refuse."""

    def loss(self, model, parameters, buffers, batch, context):
        losses, buffers = super().loss(model, parameters, buffers, batch, context)
        return losses * (0.5 if torch._C._functorch.maybe_current_level() else 1.0), buffers


@joint(Joint.loss)
def _joint_losses(method, model, parameters, buffers, batch, context, *, axes):
    def loss(*given):
        return method.loss(model, *given)

    losses, buffers = vmap(loss, in_dims=(0, 0, *axes))(parameters, buffers, batch, context)
    return losses * torch.rand(losses.shape), buffers


def test_what_is_drawn_for_all_clients_at_once_is_thrown_away_and_said(together, caplog):
    caplog.set_level(logging.INFO, "fedbolic")
    (*_, plain), rows = run(method_with(nn.Identity, Joint), seed=1)
    (*_, fast), again = run(method_with(nn.Identity, Joint), seed=2, engine=Batched())
    assert together[0] == len(SIZES)
    assert_same(fast.server_state, plain.server_state)
    assert rows == again
    assert "draws from torch's global random stream" in caplog.text


DROPOUTS = [
    lambda: nn.Dropout(0.3),
    lambda: nn.AlphaDropout(0.3),
    lambda: nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Dropout1d(0.3), nn.Flatten()),
    lambda: nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Dropout2d(0.3), nn.Flatten()),
    lambda: nn.Sequential(nn.Unflatten(1, (4, 1, 1, 1)), nn.Dropout3d(0.3), nn.Flatten()),
]


@pytest.mark.parametrize("part", DROPOUTS, ids=["0d", "alpha", "1d", "2d", "3d"])
def test_clients_with_torch_s_dropouts_advance_together(part, together, caplog):
    caplog.set_level(logging.INFO, "fedbolic")
    method = method_with(part)
    (*_, plain), rows = run(method, seed=1)
    (record,) = caplog.records
    assert "dropouts of torch are replaced" in record.message
    (*_, fast), again = run(method, seed=2, engine=Batched())
    assert together[0] == len(SIZES)
    for name, value in plain.server_state["parameters"].items():
        torch.testing.assert_close(fast.server_state["parameters"][name], value, rtol=0, atol=1e-10)
    assert [row.value for row in again] == pytest.approx([row.value for row in rows], abs=1e-10)
    undropped, _ = run(method_with(nn.Identity), seed=1)
    assert not torch.equal(
        undropped[-1].server_state["parameters"]["head.bias"],
        plain.server_state["parameters"]["head.bias"],
    )
