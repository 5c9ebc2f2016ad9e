"""Points outside the ball cause one warning for each layer and are counted at clients."""

import dataclasses
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from typing_extensions import override

from fedbolic.federated import Batched, Sequential
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn import MLR, ChangeCurvature, Linear
from fedbolic.nn.functional.clamped import COUNTS, Counter
from fedbolic.nn.functional.space import HyperbolicModule
from fedbolic.nn.network.backbone import Backbone
from tests.federated.simple_method import RNG, SMALL, assert_same, federation, train
from tests.nn.cases import CASES, DIM

BALLS = {name: case for name, case in CASES.items() if case.kind is Poincare}
every_ball = pytest.mark.parametrize("case", BALLS.values(), ids=BALLS)


def far(case, factor=3.0):
    """Features of which all but the first lie outside the ball of curvature 1."""
    x = torch.full((*case.shape, DIM), factor * DIM**-0.5, dtype=torch.float64)
    x[0] *= 0.1
    return x


def outside_of(x, c):
    return int((c * x.double().square().sum(-1) >= 1).sum())


def reader(layer):
    """The module that reads the points; of a graph convolution, its linear map."""
    return next(module for module in layer.modules() if isinstance(module, HyperbolicModule))


@every_ball
def test_a_layer_of_the_ball_warns_once(case):
    layer, x = case.make(1.0), far(case)
    layer(case.inputs(1.0))
    layer(x * 0)  # the origin
    expected = f"{outside_of(x, 1.0)} of {x[..., 0].numel()} points outside the ball"
    with pytest.warns(UserWarning, match=expected) as caught:
        assert layer(x).equal(layer(x)) or layer.training  # two calls
    name = type(reader(layer)).__name__
    (told,) = [w for w in caught if str(w.message).startswith(f"{name}(")]
    assert "ToManifold(Poincare())" in str(told.message)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.kind is Lorentz])
def test_a_layer_of_the_other_model_does_not_warn(name):
    case = CASES[name]
    case.make(1.0)(case.inputs(1.0, radius=6.0))


@every_ball
def test_points_of_the_boundary_are_points(case):
    """Outputs of layers cause no warning, even points at the limit of a dtype and rounded ones."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for c in (0.05, 1.0, 30.0):
            layer = case.make(c).to(dtype)
            layer(case.inputs(float(reader(layer).input_c), radius=100.0).to(dtype))


def test_the_curvature_of_the_inputs_counts():
    x = torch.tensor([[1.5, 0.0]])
    ChangeCurvature(Poincare(0.25), Poincare(4.0))(x)
    with pytest.warns(UserWarning, match="1 of 1 points"):
        ChangeCurvature(Poincare(4.0), Poincare(0.25))(x)
    with pytest.warns(UserWarning, match="1 of 1 points"):
        Linear(Poincare(c=Curvature(1.0)), 2, 2)(x)
    Linear(Poincare(c=0.0), 2, 2)(x)  # in flat space every point is inside


def test_neither_vmap_nor_another_device_is_looked_at():
    layer, x = Linear(Poincare(), 2, 3), torch.full((4, 2), 3.0)
    parameters = dict(layer.named_parameters())
    vmap(lambda row: functional_call(layer, parameters, (row,)))(x)
    layer.to("meta")(x.to("meta"))
    assert not layer._warned


def test_the_count_of_a_batch_leaves_out_what_is_masked():
    x = torch.tensor([[[0.1, 0.0], [3.0, 0.0]], [[3.0, 0.0], [3.0, 0.0]], [[0.1, 0.0], [0.1, 0.0]]])
    layer = Linear(Poincare(), 2, 2)
    layer._warned = True
    for mask, expected in (([1, 1, 1], (3, 6)), ([1, 0, 1], (1, 4)), ([0, 1, 0], (2, 2))):
        with Counter(torch.tensor(mask).bool()) as counter:
            layer(x)
        assert tuple(counter.total()[COUNTS].tolist()) == expected
    with Counter(torch.ones(5, dtype=torch.bool)) as counter:
        layer(x)
        layer(x)
        nn.Linear(2, 2)(x)
    assert tuple(counter.total()[COUNTS].tolist()) == (6, 12)  # all count without a mask
    with Counter(torch.ones(5, dtype=torch.bool)) as counter:
        nn.Linear(2, 2)(x)
    assert counter.total() == {}


@dataclass(frozen=True)
class Raw(Backbone):
    """A head of the ball directly on the inputs."""

    curvature: float = 1.0

    @property
    def num_features(self):
        return 4

    @override
    def build(self, meta):
        return nn.Sequential(nn.Flatten(), MLR(Poincare(c=self.curvature), 5, 4))


LR = 1e-30
"""Step size with which the huge gradients of points of the boundary give no huge model."""


def measured(method, data, engine):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*outside the ball")
        _, rows = train(method, data, RNG, engine=engine)
    name = "train/clamped_fraction"
    return {(row.round, row.client): row.value for row in rows if row.name == name}


@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=repr)
def test_the_clamped_share_is_reported_for_every_client_and_round(engine):
    """The share of all visits of examples, by hand; short batches and padding do not change it."""
    data, c = federation((9, 4, 12, 1)), 0.3
    method = dataclasses.replace(SMALL, backbone=Raw(c), rounds=2, lr=LR)
    found = measured(method, data, engine)
    for client in data.clients:
        x = client.train.tensors["x"]
        share = outside_of(x, c) / len(x)
        for round in (1, 2):
            assert found[round, client.id] == pytest.approx(share, abs=1e-12)
    sizes = [client.size for client in data.clients]
    assert len({found[1, i] for i in range(4)}) > 1
    mean = sum(n * found[1, i] for i, n in enumerate(sizes)) / sum(sizes)
    assert found[1, None] == pytest.approx(mean)


def test_a_network_without_a_ball_reports_nothing():
    assert measured(SMALL, federation(), Sequential()) == {}
    assert measured(SMALL, federation(), Batched()) == {}


@pytest.mark.filterwarnings("ignore:.*outside the ball")
@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=repr)
def test_counting_changes_no_digit(engine, monkeypatch):
    """Neither the training nor the payload changes."""
    data, method = federation((9, 4, 12)), dataclasses.replace(SMALL, backbone=Raw(0.3), lr=LR)
    counted, _ = train(method, data, RNG, engine=engine)
    monkeypatch.setattr("fedbolic.nn.functional.space.look", lambda *_, **__: False)
    plain, _ = train(method, data, RNG, engine=engine)
    assert_same(counted[-1].server_state, plain[-1].server_state)
    assert counted[-1].server_state["buffers"] == {}
