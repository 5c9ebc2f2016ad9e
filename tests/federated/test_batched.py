"""All clients at once give what one after another give."""

import dataclasses
import logging
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedbolic import tree
from fedbolic.baselines import Ditto, Majority, Scaffold
from fedbolic.data import Examples, FederatedData
from fedbolic.data.client import Split
from fedbolic.federated import (
    Batched,
    Cohort,
    Evaluation,
    Failure,
    FedAvg,
    Mean,
    Schedule,
    Sequential,
    Tune,
    stacked,
)
from fedbolic.federated import batched as engine
from fedbolic.federated.footprint import Footprint
from fedbolic.federated.stacked import Task, padded_work
from fedbolic.nn.backbone import MLP, Backbone
from fedbolic.optim import SGD, Adam, Optimizer
from hyperfed import CrossEntropy, HyperFed
from hyperfed.loss import Geodesic, Triplet
from tests.federated.boring import (
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
from tests.test_contract import every_method, subject

TOLERANCE = 1e-10
UNEQUAL = (9, 1, 12, 3, 1, 20)


@pytest.fixture(autouse=True)
def together(monkeypatch):
    """The sizes of the groups that were advanced together, in their order."""
    groups, advance = [], engine.advance

    def noted(method, tasks):
        groups.append(len(tasks))
        return advance(method, tasks)

    monkeypatch.setattr(engine, "advance", noted)
    return groups


def with_(**settings):
    return dataclasses.replace(SMALL, **settings)


def change(data, client_id, **splits):
    """The federation with other data at one client."""
    clients = [dataclasses.replace(c, **splits) if c.id == client_id else c for c in data.clients]
    return FederatedData(tuple(clients), data.meta, data.holdout)


def cut(data, sizes):
    """The first clients with the first few training examples, in float64."""
    clients = [
        dataclasses.replace(c, train=Examples(c.train.at(torch.arange(min(n, c.size)))))
        for c, n in zip(data.clients, sizes, strict=False)
    ]
    meta = dataclasses.replace(data.meta, sizes=tuple(c.size for c in clients))
    clients = [dataclasses.replace(c, meta=meta) for c in clients]
    return FederatedData(tuple(clients), meta, data.holdout).to("cpu", torch.float64)


def exchange(engine, method, data, rng=RNG):
    """What an engine gives for all clients in a first exchange."""
    messages = {client.id: first_message(method, data, client.id) for client in data.clients}
    return list(engine.run(method, messages, data.clients, {}, rng))


def first_message(method, data, client_id):
    state = method.init(data.meta, RNG)
    return method.broadcast(tree.to(state, "cpu", torch.float64), client_id)


def assert_engines_agree(method, data, **settings):
    """The runs of Sequential and Batched hold the same state, memories and rows."""
    (*_, plain), rows = train(method, data, RNG, **settings)
    (*_, fast), new = train(method, data, RNG, engine=Batched(), **settings)
    assert_near(fast.state, plain.state, TOLERANCE)
    assert fast.memories.keys() == plain.memories.keys()
    for i, memory in plain.memories.items():
        assert_near(fast.memories[i], memory, TOLERANCE)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=TOLERANCE)


@every_method
@pytest.mark.parametrize("sizes", [(8, 8, 8), (20, 3, 1, 11)], ids=["equal", "unequal"])
def test_every_method_of_the_house_is_the_same(name, sizes, together):
    method, data = subject(name)
    if not isinstance(method, Majority):
        method = dataclasses.replace(method, rounds=3)
    assert_engines_agree(method, cut(data, sizes), evaluation=Evaluation(every=3, tune=Tune(1)))
    assert set(together) == (set() if isinstance(method, Majority) else {len(sizes)})


HYPERFED = HyperFed(MLP((4,)), rounds=3, schedule=Schedule(2, 4), lr=0.1)

ADAM = Adam(eps=1e-3)
"""A bias before batch norm has a gradient of rounding errors, which Adam divides by their size."""

SETTINGS = {
    "several epochs": with_(schedule=Schedule(3, 4)),
    "all of a client at once": with_(schedule=Schedule(3, None)),
    "batches of one": with_(schedule=Schedule(1, 1)),
    "repeats": with_(schedule=Schedule(2, 4, repeats=3)),
    "adam": with_(optimizer=Adam(weight_decay=0.1), lr=0.01),
    "momentum": with_(optimizer=SGD(momentum=0.9)),
    "nesterov": with_(optimizer=SGD(momentum=0.9, nesterov=True)),
    "personal": with_(sharing={"head.*": "personal", "*": "shared"}, backbone=NormNet()),
    "fixed": with_(sharing={"head.*": "fixed", "*": "shared"}),
    "fedprox": with_(proximal=0.1, momentum=0.5, schedule=Schedule(2, 4)),
    "scaffold": Scaffold(NormNet(), rounds=3, schedule=Schedule(2, 4)),
    "ditto": Ditto(NormNet(), rounds=3, schedule=Schedule(2, 4, repeats=2)),
    "ditto and adam": Ditto(MLP((4,)), rounds=3, schedule=Schedule(2, 4), optimizer=Adam()),
    "batch norm": with_(backbone=NormNet(), schedule=Schedule(2, 4), optimizer=ADAM),
    "batch norm over all": with_(backbone=NormNet(), schedule=Schedule(2, None)),
    "one negative": HYPERFED,
    "all negatives": dataclasses.replace(HYPERFED, objective=Triplet(negatives="all")),
    "hard negatives": dataclasses.replace(HYPERFED, objective=Triplet(negatives="hard")),
    "geodesic": dataclasses.replace(HYPERFED, objective=Geodesic()),
    "mixup": dataclasses.replace(HYPERFED, mixup=0.5, clip=None),
    "mixup and batch norm": dataclasses.replace(HYPERFED, mixup=0.5, backbone=NormNet()),
    "draws for all at once": dataclasses.replace(HYPERFED, mixup=0.5, schedule=Schedule(2, None)),
    "own prototypes": dataclasses.replace(HYPERFED, prototypes="own"),
    "trained prototypes": dataclasses.replace(HYPERFED, prototypes="trained"),
    "riemannian momentum": dataclasses.replace(
        HYPERFED, prototypes="trained", optimizer=SGD(momentum=0.5)
    ),
    "riemannian adam": dataclasses.replace(
        HYPERFED, prototypes="trained", optimizer=Adam(), lr=0.01
    ),
    "h-ce-m": dataclasses.replace(
        HYPERFED, objective=CrossEntropy(), aggregator=Mean(), momentum=0.5
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_the_same_whatever_the_sizes(setting, together):
    tune = Evaluation(every=3, tune=Tune(1))
    assert_engines_agree(SETTINGS[setting], federation(UNEQUAL), evaluation=tune)
    assert together


def test_clients_without_examples_or_without_a_full_batch_take_part(together):
    for sizes in ((5, 0, 9), (1, 1, 1)):
        for backbone in (MLP((4,)), NormNet()):
            assert_engines_agree(with_(backbone=backbone), federation(sizes))
    assert set(together) == {3}


@pytest.mark.parametrize("method", [SMALL, SETTINGS["scaffold"], SETTINGS["ditto"]])
def test_partial_participation_is_the_same(method):
    assert_engines_agree(method, federation(UNEQUAL), cohort=Cohort(0.5))


@dataclass(frozen=True)
class Clipped(Optimizer):
    """Descent whose steps look at a whole tensor, which is not elementwise."""

    def init(self, parameters):
        return {"num_steps": torch.ones(())}

    def step(self, parameters, gradients, state, *, lr, spaces=None, donate=False):
        steps = {n: lr * g / g.norm().clamp(min=0.01) for n, g in gradients.items()}
        moved = {n: x - steps[n] / state["num_steps"] for n, x in parameters.items()}
        return moved, {"num_steps": state["num_steps"] + 1}

    def change_curvature(self, state, old, new):
        return state


@dataclass(frozen=True)
class InPlace(Clipped):
    """It reuses the storage of what it is given, as a step may."""

    def step(self, parameters, gradients, state, *, lr, spaces=None, donate=False):
        for name, x in parameters.items():
            x.add_(gradients[name], alpha=-lr)
        return parameters, {"num_steps": state["num_steps"].add_(1)}


@pytest.mark.parametrize("optimizer", [Clipped(), InPlace()])
def test_a_step_need_not_be_elementwise_nor_leave_local_alone(optimizer, together):
    sizes = (9, 4, 13, 9)  # as many clients as the width of a layer: mistaken axes would fit
    assert_engines_agree(with_(optimizer=optimizer), federation(sizes))
    assert set(together) == {4}


def test_results_come_in_ascending_order_and_own_their_storage():
    data = federation((3, 9, 3, 5))
    for i in (1, 2):  # these hold one tensor more, so they cannot go together with the others
        more = {"z": torch.zeros(data.clients[i].size)}
        tensors = {**data.clients[i].train.tensors, **more}
        data = change(data, i, train=Examples(tensors))
    method = SETTINGS["personal"]
    plain, fast = (exchange(e, method, data) for e in (Sequential(), Batched()))
    assert [client.id for client, *_ in fast] == [0, 1, 2, 3]
    seen = set()
    for (client, update, memory), (same, expected, kept) in zip(fast, plain, strict=True):
        assert client is same
        assert_near(update.payload, expected.payload, TOLERANCE)
        assert_near(memory, kept, TOLERANCE)
        assert update.weight == expected.weight
        assert update.metrics == pytest.approx(expected.metrics, abs=TOLERANCE)
        assert update.metrics["train/examples"] == client.size
        for leaf in (*flat(update.payload).values(), *flat(memory).values()):
            assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()
            assert leaf.untyped_storage().data_ptr() not in seen
            assert not leaf.requires_grad
            seen.add(leaf.untyped_storage().data_ptr())


def test_the_budget_of_memory_says_how_many_go_together(together):
    data = federation((8,) * 5)
    message = first_message(SMALL, data, 0)
    task = Task.begin(SMALL, message, data.clients[0], {}, RNG)
    one = Footprint(SMALL).megabytes(task)
    everybody = exchange(Batched(), SMALL, data)
    assert together == [5]
    for memory, groups in ((one / 2, [1] * 5), (2.5 * one, [2, 2, 1]), (4.5 * one, [4, 1])):
        together.clear()
        found = exchange(Batched(memory), SMALL, data)
        assert together == groups
        for (_, update, _), (_, expected, _) in zip(found, everybody, strict=True):
            assert_near(update.payload, expected.payload, TOLERANCE)


@pytest.mark.parametrize("rows", [slice(None), 0, -1])
@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
def test_nan_at_one_client_stays_there(rows, backbone, together, caplog):
    data = federation((7, 10, 3))
    x = data.clients[1].train.tensors["x"].clone()
    x[rows] = math.nan
    data = change(data, 1, train=Examples({**data.clients[1].train.tensors, "x": x}))
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
    """Data on a disk that fails."""

    size: int

    def __len__(self):
        return self.size

    def at(self, index):
        raise OSError("the disk is gone")

    def to(self, device, dtype=None):
        return self


def with_bad_label(data, client_id):
    tensors = data.clients[client_id].train.tensors
    return change(data, client_id, train=Examples({**tensors, "y": tensors["y"] + 3}))


@pytest.mark.parametrize("fault", ["label", "disk"])
def test_a_client_that_raises_fails_alone(fault, together, caplog):
    data, bad = federation(SIZES), 2
    data = with_bad_label(data, bad) if fault == "label" else change(data, bad, train=Broken(5))
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
    assert together == [4]  # the method is not to blame
    assert not caplog.records


class Branching(nn.Module):
    """What it does depends on the data, which vmap refuses."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


@dataclass(frozen=True)
class Unbatchable(Backbone):
    """A plain network around a part that cannot be vectorised, or only one client after another."""

    part: type[nn.Module] = Branching

    @property
    def num_features(self):
        return 4

    def build(self, meta):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(meta.input_shape), 4), self.part())


class Histogram(nn.Module):
    """An operation without a rule for batches: vmap would warn and loop."""

    def forward(self, x):
        return x * torch.histc(x.detach(), 3)[0]


@pytest.mark.parametrize("part", [Branching, Histogram, nn.Dropout])
def test_what_vmap_refuses_is_run_one_by_one_and_said_once(part, together, caplog):
    caplog.set_level(logging.INFO, "fedbolic")
    method = with_(backbone=Unbatchable(part), rounds=2)
    torch.manual_seed(0)
    (*_, plain), _ = train(method, federation(SIZES))
    torch.manual_seed(0)
    (*_, fast), _ = train(method, federation(SIZES), engine=Batched())
    if part is not nn.Dropout:  # that draws from the global stream: no engine can repeat it
        assert_same(fast.state, plain.state)
    (record,) = caplog.records
    assert record.message.startswith("the clients of FedAvg are run one by one: ")
    assert together == [4]


class Constant(FedAvg):
    """A method with local work of its own."""

    def local_update(self, message, client, memory, rng):
        update, memory = super().local_update(message, client, memory, rng)
        return dataclasses.replace(update, weight=1.0), memory


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Majority(), "it makes no steps"),
        (Constant(MLP((4,)), rounds=2), "it has a local_update of its own"),
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
        assert_same(fast.state, plain.state)
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

    method = Averaging(MLP((4,)), rounds=2, schedule=Schedule(1, 4))
    for _, update, _ in exchange(engine, method, federation(SIZES)):
        assert isinstance(update, Failure)
        assert "the loss must give a number per example" in str(update.error)


@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
def test_the_work_that_is_reported_is_the_work_that_is_done(backbone, monkeypatch):
    masks, step = [], stacked._step

    def noted(method, model, state, batch, context, dims):
        masks.append(batch["mask"])
        return step(method, model, state, batch, context, dims)

    monkeypatch.setattr(stacked, "_step", noted)
    method, data = with_(backbone=backbone, schedule=Schedule(2, 8)), federation(UNEQUAL)
    exchange(Batched(), method, data)
    model = method.model(data.meta)
    plans = [method.plan(model, client, RNG) for client in data.clients]
    reported = padded_work([p.lengths for p in plans], mixes_examples=model.mixes_examples)
    counted = sum(int(mask.sum()) for mask in masks)
    assert counted == sum(int(plan.lengths.sum()) for plan in plans)
    assert sum(mask.numel() for mask in masks) == pytest.approx(reported * counted)
    assert (reported == 1) == model.mixes_examples


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["adam", "batch norm", "mixup", "trained prototypes"])
def test_it_is_the_same_on_a_gpu(setting):
    assert_engines_agree(SETTINGS[setting], federation(UNEQUAL).to("cuda"))
