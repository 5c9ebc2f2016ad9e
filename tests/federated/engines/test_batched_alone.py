"""Clients that cannot be batched with the others, and their effect on the others."""

import dataclasses
import logging
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedbolic.data import Examples
from fedbolic.data.contract.client import Split
from fedbolic.federated import Batched, Failure, LocalTraining, Sequential
from fedbolic.federated.batched import stacking
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.memory_estimate import LIBRARIES, MemoryEstimate
from fedbolic.methods import FedAvg, Majority
from fedbolic.nn.network.backbone import MLP, Backbone
from tests.federated.agreement import (
    TOLERANCE,
    UNEQUAL,
    assert_engines_agree,
    exchange,
    first_message,
    padded_work,
    with_,
    with_client,
)
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    NormNet,
    assert_near,
    assert_same,
    federation,
    flat,
    train,
)


def test_results_come_in_ascending_order_and_what_is_kept_owns_its_storage():
    data = federation((3, 9, 3, 5))
    for i in (1, 2):  # they hold one tensor more, so they cannot be batched with the others
        more = {"z": torch.zeros(data.clients[i].size)}
        tensors = {**data.clients[i].train.tensors, **more}
        data = with_client(data, i, train=Examples(tensors))
    method = with_(sharing={"head.*": "personal", "*": "shared"}, backbone=NormNet())
    plain, fast = (exchange(e, method, data) for e in (Sequential(), Batched()))
    assert [client.id for client, *_ in fast] == [0, 1, 2, 3]
    seen = set()
    for (client, update, client_state), (same, expected, kept) in zip(fast, plain, strict=True):
        assert client is same
        assert_near(update.payload, expected.payload, TOLERANCE)
        assert_near(client_state, kept, TOLERANCE)
        assert update.weight == expected.weight
        assert update.metrics == pytest.approx(expected.metrics, abs=TOLERANCE)
        assert update.metrics["train/examples"] == client.size
        for leaf in flat(client_state).values():
            assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()
        for leaf in (*flat(update.payload).values(), *flat(client_state).values()):
            assert leaf.data_ptr() not in seen  # a sum reads payloads as rows of one tensor
            assert not leaf.requires_grad
            seen.add(leaf.data_ptr())


def test_the_budget_of_memory_says_how_many_go_together(together):
    data = federation((8,) * 5)
    message = first_message(SMALL, data, 0)
    task = ClientTask.begin(SMALL, message, data.clients[0], {}, RNG)
    one = MemoryEstimate(SMALL).megabytes(task)
    everybody = exchange(Batched(), SMALL, data)
    assert together == [5]
    for client_state, groups in ((one / 2, [1] * 5), (2.5 * one, [2, 2, 1]), (4.5 * one, [4, 1])):
        together.clear()
        found = exchange(Batched(LIBRARIES + client_state), SMALL, data)
        assert together == groups
        for (_, update, _), (_, expected, _) in zip(found, everybody, strict=True):
            assert_near(update.payload, expected.payload, TOLERANCE)


@pytest.mark.parametrize("rows", [slice(None), 0, -1])
@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
def test_nan_at_one_client_stays_there(rows, backbone, together, caplog):
    data = federation((7, 10, 3))
    x = data.clients[1].train.tensors["x"].clone()
    x[rows] = math.nan
    data = with_client(data, 1, train=Examples({**data.clients[1].train.tensors, "x": x}))
    method = with_(backbone=backbone)
    plain, fast = (exchange(e, method, data) for e in (Sequential(), Batched()))
    for i in (0, 2):
        assert_near(fast[i][1].payload, plain[i][1].payload, TOLERANCE)
    assert not all(leaf.isfinite().all() for leaf in flat(fast[1][1].payload).values())
    assert together == [3]
    assert_engines_agree(method, data)
    assert "client 1 is left out" in caplog.text


@dataclass(frozen=True, eq=False)
class Broken(Split):
    """Data on a failing disk."""

    size: int

    def __len__(self):
        return self.size

    def at(self, index):
        raise OSError("the disk is gone")

    def to(self, device, dtype=None):
        return self


def with_bad_label(data, client_id):
    tensors = data.clients[client_id].train.tensors
    return with_client(data, client_id, train=Examples({**tensors, "y": tensors["y"] + 3}))


@pytest.mark.parametrize("fault", ["label", "disk"])
def test_a_client_that_raises_fails_alone(fault, together, caplog):
    data, bad = federation(SIZES), 2
    data = (
        with_bad_label(data, bad) if fault == "label" else with_client(data, bad, train=Broken(5))
    )
    caplog.set_level(logging.INFO, "fedbolic")
    engine = Batched()
    plain, fast = (exchange(e, SMALL, data) for e in (Sequential(), engine))
    for (client, update, _), (_, expected, _) in zip(fast, plain, strict=True):
        if client.id == bad:
            assert isinstance(update, Failure)
            assert type(update.error) is type(expected.error)
            assert str(update.error) == str(expected.error)
        else:
            assert_near(update.payload, expected.payload, TOLERANCE)
    together.clear()
    exchange(engine, SMALL, federation(SIZES))
    assert together == [4]  # the method itself can still be batched
    assert not caplog.records


class Branching(nn.Module):
    """Data-dependent control flow, which vmap refuses."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


@dataclass(frozen=True)
class Unbatchable(Backbone):
    """An ordinary network with a part that cannot be vectorised, or not across clients."""

    part: type[nn.Module] = Branching

    @property
    def num_features(self):
        return 4

    def build(self, meta):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(meta.input_shape), 4), self.part())


class Histogram(nn.Module):
    """An operation without a batching rule: vmap would warn and loop."""

    def forward(self, x):
        return x * torch.histc(x.detach(), 3)[0]


@pytest.mark.parametrize("part", [Branching, Histogram, nn.RReLU])
def test_what_vmap_refuses_is_run_one_by_one_and_said_once(part, together, caplog):
    caplog.set_level(logging.INFO, "fedbolic")
    method = with_(backbone=Unbatchable(part), rounds=2)
    (*_, plain), _ = train(method, federation(SIZES))
    (*_, fast), _ = train(method, federation(SIZES), engine=Batched())
    assert_same(fast.server_state, plain.server_state)
    (record,) = caplog.records
    assert record.message.startswith("the clients of FedAvg are run one by one: ")
    assert together == [4]


class Constant(FedAvg):
    """A method that overrides ``local_update``."""

    def local_update(self, message, client, client_state, rng):
        update, client_state = super().local_update(message, client, client_state, rng)
        return dataclasses.replace(update, weight=1.0), client_state


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Majority(), "it takes no gradient steps"),
        (Constant(MLP((4,)), rounds=2), "it overrides local_update"),
    ],
)
def test_what_is_not_given_in_steps_is_run_one_by_one_and_said_once(
    method, reason, together, caplog
):
    caplog.set_level(logging.INFO, "fedbolic")
    (*_, plain), rows = train(method, federation(SIZES))
    engine = Batched()
    for _ in range(2):
        (*_, fast), new = train(method, federation(SIZES), engine=engine)
        assert_same(fast.server_state, plain.server_state)
        assert new == rows
    assert [r.message.rpartition(": ")[2] for r in caplog.records] == [reason]
    assert not together


@pytest.mark.parametrize("engine", [Sequential(), Batched()])
def test_a_loss_that_is_already_a_mean_is_refused(engine):
    @dataclass(frozen=True)
    class Averaging(FedAvg):
        def loss(self, model, parameters, buffers, batch, context):
            losses, buffers = super().loss(model, parameters, buffers, batch, context)
            return losses.mean(), buffers

    method = Averaging(MLP((4,)), rounds=2, local=LocalTraining(1, 4))
    for _, update, _ in exchange(engine, method, federation(SIZES)):
        assert isinstance(update, Failure)
        assert "the loss must return one number per example" in str(update.error)


@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
def test_the_work_that_is_reported_is_the_work_that_is_done(backbone, monkeypatch):
    masks, step = [], stacking.joint_step

    def noted(method, model, server_state, batch, context, dims):
        masks.append(batch["mask"])
        return step(method, model, server_state, batch, context, dims)

    monkeypatch.setattr(stacking, "joint_step", noted)
    method, data = with_(backbone=backbone, local=LocalTraining(2, 8)), federation(UNEQUAL)
    exchange(Batched(), method, data)
    model = method.model(data.meta)
    plans = [method.plan(model, client, RNG) for client in data.clients]
    reported = padded_work([p.lengths for p in plans], mixes_examples=model.mixes_examples)
    counted = sum(int(mask.sum()) for mask in masks)
    assert counted == sum(int(plan.lengths.sum()) for plan in plans)
    assert sum(mask.numel() for mask in masks) == pytest.approx(reported * counted)
    assert (reported == 1) == model.mixes_examples
