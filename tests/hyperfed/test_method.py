"""HyperFed compared with its definition: steps by hand, prototypes by geometry, aggregation."""

import dataclasses
import logging
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from torch.testing import assert_close
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import HOLDOUT, IID, Digits, Examples, FederatedData, Partitioned
from fedbolic.federated import (
    AggregatedUpdate,
    Evaluation,
    LocalTraining,
    Mean,
    MinNorm,
    ServerSGD,
    Trainer,
)
from fedbolic.nn.network.backbone import MLP, Backbone, ConvNet
from hyperfed import CrossEntropy, Geodesic, HyperFed, Triplet
from hyperfed.loss import cosines, prototype_distance
from hyperfed.prototypes import prototypes
from tests.federated.simple_method import NormNet, federation

RNG = Rng(5)
META = Meta(3, (5,), 3)
NET = MLP(widths=(4,))
WHOLE = LocalTraining(epochs=2, batch_size=None)
ALL = Triplet(negatives="all")


@dataclass(frozen=True)
class Linear(Backbone):
    """One linear layer without bias, whose features can have any length."""

    dim: int = 4

    @property
    @override
    def num_features(self) -> int:
        return self.dim

    @override
    def build(self, meta: Meta) -> nn.Module:
        return nn.Linear(meta.input_shape[0], self.dim, bias=False)


def train(method, data, evaluation=None):
    trainer = Trainer(evaluation=evaluation or Evaluation())
    *_, (state, rows) = trainer.run(method, data, RNG)
    return state.server_state, {row.name: row.value for row in rows if row.client is None}


def updates(method, data, server_state):
    """Updates of all clients in the first round."""
    return {
        client.id: method.local_update(
            method.broadcast(server_state, client.id), client, {}, RNG.at("client", client.id)
        )[0]
        for client in data.clients
    }


@pytest.fixture
def ball():
    return pytest.importorskip("geoopt").PoincareBall()


@pytest.fixture(scope="module")
def digits():
    return Partitioned(Digits(), IID(4)).load(Rng(0))


@pytest.fixture(scope="module")
def trained(digits):
    method = HyperFed(ConvNet(dim=20), rounds=2, local=LocalTraining(2, 32), aggregator=Mean())
    return method, train(method, digits)[0]


def test_the_prediction_is_the_largest_cosine_and_the_nearest_prototype(digits, trained, ball):
    method, server_state = trained
    client = digits.holdout
    local, context = method.start(method.broadcast(server_state, HOLDOUT), client, {})
    model = method.model(client.meta)
    predicted = method.predict(model, local, client.test.tensors, context).argmax(dim=-1)
    z = model(local["parameters"], {}, client.test.tensors["x"])[0].double()
    points = prototypes(10, 20, 0.9)
    assert torch.equal(predicted, cosines(z, points).argmax(dim=-1))
    assert torch.equal(predicted, prototype_distance(z, points).argmin(dim=-1))
    short = z * (z.norm(dim=-1, keepdim=True).clamp(max=3.1) / z.norm(dim=-1, keepdim=True))
    nearest = ball.dist(ball.expmap0(short)[:, None], points).argmin(dim=-1)
    assert torch.equal(predicted, nearest)


def descent(server_state, batch, objective, *, lr, num_steps):
    """Delta of torch's full-batch gradient descent for one layer and a ReLU."""
    points = prototypes(3, 4, 0.9).float().double()
    layer = nn.Linear(5, 4).double()
    names = {f"body.1.{name}": value for name, value in layer.named_parameters()}
    layer.load_state_dict(
        {name.removeprefix("body.1."): server_state["parameters"][name].clone() for name in names}
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    for _ in range(num_steps):
        optimizer.zero_grad()
        objective.losses(layer(batch["x"]).relu(), points, batch).mean().backward()
        optimizer.step()
    return {
        name: value.detach() - server_state["parameters"][name] for name, value in names.items()
    }


@pytest.mark.parametrize("objective", [ALL, Geodesic(), CrossEntropy()])
def test_a_local_update_is_plain_gradient_descent(objective):
    data = federation()
    method = HyperFed(NET, lr=0.1, local=WHOLE, objective=objective)
    server_state = tree.to(method.init(META, RNG), "cpu", torch.float64)
    for i, update in updates(method, data, server_state).items():
        batch = data.clients[i].train.tensors
        expected = descent(server_state, batch, objective, lr=0.1, num_steps=2)
        assert_close(update.payload["delta"], expected)
        assert update.weight == data.clients[i].size


def test_the_authors_mixed_loss_is_added_with_its_weight():
    data = federation()
    plain = HyperFed(NET, objective=ALL)
    mixed = dataclasses.replace(plain, mixup=2.0)
    client = data.clients[0]
    server_state = tree.to(plain.init(META, RNG), "cpu", torch.float64)
    local, context = plain.start(plain.broadcast(server_state, 0), client, {})
    draws = mixed.draw(1, client.size, torch.Generator().manual_seed(0))
    mask = torch.ones(client.size, dtype=torch.bool)
    batch = {**client.train.tensors, "mask": mask, **{n: d[0] for n, d in draws.items()}}
    model = plain.model(META)
    parameters, buffers = local["parameters"], local["buffers"]
    extra = (
        mixed.loss(model, parameters, buffers, batch, context)[0]
        - plain.loss(model, parameters, buffers, batch, context)[0]
    )

    share = torch.sin(torch.pi / 2 * draws["share"][0]) ** 2
    partner = draws["partner"][0].argsort()
    x, y = batch["x"], batch["y"]
    z = model(parameters, {}, share * x + (1 - share) * x[partner])[0]
    logits = 0.9 * normalize(z) @ normalize(context["own"]["prototypes"]["head.weight"]).T
    log = logits.log_softmax(dim=-1)
    rows = torch.arange(len(y))
    assert_close(extra, -2 * (share * log[rows, y] + (1 - share) * log[rows, y[partner]]))


def test_clients_with_the_same_data_step_as_the_average_does():
    same = federation(sizes=(8, 8, 8))
    one = same.clients[0].train
    clients = tuple(dataclasses.replace(client, train=one) for client in same.clients)
    data = FederatedData(clients, same.meta, same.holdout)
    method = HyperFed(NET, rounds=3, local=WHOLE, objective=ALL)
    consistent, rows = train(method, data)
    average, _ = train(dataclasses.replace(method, aggregator=Mean()), data)
    for name, value in average["parameters"].items():
        assert_close(consistent["parameters"][name], value)
    assert rows["ca/length"] == pytest.approx(1)


def test_a_client_that_wants_no_change_does_not_stop_the_others():
    data = federation(sizes=(6, 6))
    happy = Examples({"x": torch.zeros(6, 5).double(), "y": data.clients[1].train.tensors["y"]})
    clients = (data.clients[0], dataclasses.replace(data.clients[1], train=happy))
    data = FederatedData(clients, data.meta, data.holdout)
    method = HyperFed(Linear(), local=WHOLE, objective=ALL)  # no bias: zeros give no gradient
    server_state = tree.to(method.init(data.meta, RNG), "cpu", torch.float64)
    total = method.aggregator.aggregate(updates(method, data, server_state).items())
    assert_close(
        total.payload["delta"],
        updates(method, data, server_state)[0].payload["delta"],
        rtol=1e-12,
        atol=0,
    )
    assert total.metrics["ca/weight_zero"] == 1


def test_running_statistics_are_averaged_by_size_and_not_by_consistent_weights():
    data = federation(sizes=(7, 4, 12))
    method = HyperFed(NormNet(), local=LocalTraining(1, 4), objective=ALL)
    server_state = tree.to(method.init(META, RNG), "cpu", torch.float64)
    found = updates(method, data, server_state)
    after = method.server_update(server_state, method.aggregator.aggregate(found.items()))
    name = "body.2.running_mean"
    sizes = {i: update.weight for i, update in found.items()}
    mean = sum(sizes[i] * u.payload["buffers"][name] for i, u in found.items()) / sum(
        sizes.values()
    )
    assert_close(after["buffers"][name], mean)
    assert "clipped" not in after["buffers"]


def test_features_beyond_the_bound_are_counted_and_hold_nobody_back():
    data = federation()
    method = HyperFed(Linear(), lr=1e-30, clip=1.0, local=LocalTraining(3, 5), objective=ALL)
    server_state = tree.to(method.init(META, RNG), "cpu", torch.float64)
    weight = server_state["parameters"]["body.weight"]
    for i, update in updates(method, data, server_state).items():
        long = (data.clients[i].train.tensors["x"] @ weight.T).norm(dim=1) > 1.0
        assert update.metrics["train/clipped"] == pytest.approx(float(long.double().mean()))
    unbounded = dataclasses.replace(method, clip=None)
    assert {
        u.metrics["train/clipped"] for u in updates(unbounded, data, server_state).values()
    } == {0.0}


def test_server_momentum_adds_up_steps():
    method = HyperFed(NET, server_optimizer=ServerSGD(momentum=0.5), aggregator=Mean())
    server_state = method.init(META, RNG)
    delta = tree.map(torch.ones_like, server_state["parameters"])
    for expected in (1.0, 1.5, 1.75):
        before = server_state["parameters"]
        server_state = method.server_update(
            server_state, AggregatedUpdate({"delta": delta, "buffers": {}}, 1.0, (0,))
        )
        moved = tree.subtract(server_state["parameters"], before)
        assert_close(moved, tree.scale(delta, expected))


def test_trained_prototypes_start_alike_move_and_stay_in_the_ball():
    data = federation()
    method = HyperFed(
        NET,
        rounds=3,
        prototypes="trained",
        aggregator=Mean(),
        server_optimizer=ServerSGD(momentum=0.9),
        lr=3.0,
    )
    server_state, _ = train(method, data)
    start = prototypes(3, 4, 0.9)
    learned = server_state["parameters"]["head.weight"].double()
    assert_close(method.init(META, RNG)["parameters"]["head.weight"].double(), start)
    assert not torch.allclose(learned, start, atol=1e-3)
    assert (learned.norm(dim=1) < 1).all()


def test_a_trained_prototype_takes_riemannian_steps(ball):
    data = federation()
    method = HyperFed(
        NET, prototypes="trained", lr=0.1, local=LocalTraining(1, None), objective=ALL
    )
    server_state = tree.to(method.init(META, RNG), "cpu", torch.float64)
    client = data.clients[0]
    delta = updates(method, data, server_state)[0].payload["delta"]["head.weight"]
    points = server_state["parameters"]["head.weight"].clone().requires_grad_()
    body = {n: v for n, v in server_state["parameters"].items() if n != "head.weight"}
    z, _ = method.model(META)(body, {}, client.train.tensors["x"])
    loss = ALL.losses(z, points, client.train.tensors).mean()
    (gradient,) = torch.autograd.grad(loss, points)
    expected = ball.expmap(points, -0.1 * ball.egrad2rgrad(points, gradient)).detach()
    assert_close(server_state["parameters"]["head.weight"] + delta, expected)


def test_own_prototypes_are_those_of_all_turned_and_there_is_no_global_model():
    data = federation()
    method = HyperFed(NET, rounds=1, prototypes="own", aggregator=Mean())
    server_state = method.init(META, RNG)
    common = prototypes(3, 4, 0.9).float()
    seen = []
    for client in data.clients:
        _, context = method.start(method.broadcast(server_state, client.id), client, {})
        own = context["own"]["prototypes"]["head.weight"]
        assert_close(torch.cdist(own, own), torch.cdist(common, common), atol=1e-5, rtol=0)
        assert_close(own.norm(dim=1), torch.full((3,), 0.9))
        seen.append(own)
    assert not torch.allclose(seen[0], seen[1], atol=1e-2)
    _, rows = train(method, data)
    assert not any(name.startswith(("holdout", "ridge_head")) for name in rows)
    assert "test/accuracy" in rows


@pytest.mark.parametrize(("given", "lr"), [(0.3, 0.3), (None, 0.1)])
def test_fine_tuning_has_its_own_step_size(given, lr):
    data = federation()
    method = HyperFed(NET, lr=0.1, local=WHOLE, objective=ALL)
    server_state = tree.to(method.init(META, RNG), "cpu", torch.float64)
    for i, update in updates(method.fine_tuning(epochs=1, lr=given), data, server_state).items():
        expected = descent(server_state, data.clients[i].train.tensors, ALL, lr=lr, num_steps=1)
        assert_close(update.payload["delta"], expected)


def test_the_figure_of_a_disc_is_the_geometry_and_of_more_dimensions_says_what_it_is(digits, ball):
    client = digits.holdout
    for dim in (2, 3):
        method = HyperFed(ConvNet(dim=dim))
        server_state = method.init(digits.meta, RNG)
        figure = method.figures(server_state, digits)["test"]
        z = method.model(client.meta)(server_state["parameters"], {}, client.test.tensors["x"])[0]
        assert torch.equal(figure.labels, client.test.tensors["y"])
        if dim == 2:
            points = ball.expmap0(z.double()).float()
            assert_close(figure.points, points)
            assert_close(figure.marks, prototypes(10, 2, 0.9).float())
        else:
            assert_close(figure.points, z)
            assert figure.of == "tangent vectors at the origin"
    own = HyperFed(ConvNet(dim=2), prototypes="own")
    assert own.figures(own.init(digits.meta, RNG), digits) == {}


@pytest.mark.parametrize("aggregator", [Mean(), MinNorm(), MinNorm(normalize="l2")])
def test_a_step_size_of_three_tenths_gives_no_nan_where_features_are_bounded(aggregator, digits):
    method = HyperFed(rounds=2, local=LocalTraining(5, 32), aggregator=aggregator)
    server_state, rows = train(method, digits)
    assert tree.is_finite(server_state)
    assert rows["clients/failed"] == 0


@pytest.mark.parametrize(("margin", "warns"), [(5.2, False), (5.4, True)])
def test_a_margin_that_cannot_be_met_is_reported(margin, warns, caplog):
    with caplog.at_level(logging.WARNING, logger="fedbolic"):
        # ten classes in 20 dimensions are 5.306 apart: appendix table of the specification
        HyperFed(objective=Triplet(margin)).init(Meta(10, (1, 28, 28), 1), RNG)
    assert ("larger than the least distance between prototypes, 5.31" in caplog.text) == warns


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slope": 1.0}, "at 1 the prototypes are infinitely far away"),
        ({"slope": 0.0}, r"slope must lie in \(0, 1\), got 0.0"),
        ({"clip": 0.0}, "clip must be a positive number, got 0"),
        ({"mixup": -1.0}, "mixup must be 0 or more, got -1"),
        ({"lr": 0.0}, "lr must be a positive number"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HyperFed(**settings)


@pytest.mark.parametrize(
    ("num_classes", "dim", "message"),
    [
        (1, 20, "num_classes must be at least 2, got 1"),
        (3, 1, "a line has two directions"),
    ],
)
def test_prototypes_that_cannot_be_are_reported(num_classes, dim, message):
    with pytest.raises(ValueError, match=message):
        HyperFed(MLP(widths=(dim,))).init(Meta(num_classes, (5,), 1), RNG)


def test_two_classes_on_a_line_train():
    data = federation(classes=2)
    method = HyperFed(Linear(1), rounds=2, aggregator=Mean())
    server_state, rows = train(method, data)
    assert tree.is_finite(server_state)
    assert 0 <= rows["holdout/accuracy"] <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fixed", "trained", "own"])
def test_rounds_on_a_gpu_equal_those_on_the_cpu(kind, digits):
    method = HyperFed(rounds=2, local=LocalTraining(1, 32), prototypes=kind, mixup=2.0)
    states = [
        tree.to(train(method, digits.to(torch.device(device), torch.float64))[0], "cpu")
        for device in ("cpu", "cuda")
    ]
    for name, value in states[0]["parameters"].items():
        assert_close(states[1]["parameters"][name], value, rtol=0, atol=1e-8)
