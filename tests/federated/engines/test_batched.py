"""All clients at once give the same results as one client after another."""

import dataclasses
import functools
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedbolic.data import Examples
from fedbolic.federated import (
    Cohort,
    Evaluation,
    FineTune,
    GradientMethod,
    LocalTraining,
    Mean,
    ServerSGD,
)
from fedbolic.federated.batched import joint as joint_forms
from fedbolic.federated.batched.joint import joint
from fedbolic.methods import Apfl, Apple, Ditto, FedAvg, FedDyn, FedRoD, Moon, PFedMe, Scaffold
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD, Adam, Optimizer
from hyperfed import CrossEntropy, HyperFed
from hyperfed.loss import Geodesic, Triplet
from tests.federated.agreement import UNEQUAL, assert_engines_agree, cut, with_
from tests.federated.curved import CurvedNet
from tests.federated.simple_method import SMALL, NormNet, federation
from tests.subjects import every_method, subject


@every_method
@pytest.mark.parametrize("sizes", [(8, 8, 8), (20, 3, 1, 11)], ids=["equal", "unequal"])
def test_every_method_of_the_library_is_the_same(name, sizes, together):
    method, data = subject(name)
    if "rounds" in {field.name for field in dataclasses.fields(method)}:
        method = dataclasses.replace(method, rounds=3)
    tables = all(isinstance(client.train, Examples) for client in data.clients)
    by_steps = isinstance(method, GradientMethod)
    data = cut(data, sizes) if tables and by_steps else data.to("cpu", torch.float64)
    assert_engines_agree(method, data, evaluation=Evaluation(every=3, fine_tuning=FineTune(1)))
    if tables:  # clients' graphs differ in size, so no two form a batch
        assert set(together) == ({len(sizes)} if by_steps else set())


HYPERFED = HyperFed(MLP((4,)), rounds=3, local=LocalTraining(2, 4), lr=0.1)

ADAM = Adam(eps=1e-3)
"""Has a large ``eps``: a bias before batch norm has a gradient of rounding errors only."""

SETTINGS = {
    "several epochs": with_(local=LocalTraining(3, 4)),
    "all of a client at once": with_(local=LocalTraining(3, None)),
    "batches of one": with_(local=LocalTraining(1, 1)),
    "repeats": with_(local=LocalTraining(2, 4, repeats=3)),
    "adam": with_(optimizer=Adam(weight_decay=0.1), lr=0.01),
    "momentum": with_(optimizer=SGD(momentum=0.9)),
    "nesterov": with_(optimizer=SGD(momentum=0.9, nesterov=True)),
    "personal": with_(sharing={"head.*": "personal", "*": "shared"}, backbone=NormNet()),
    "own curvature": with_(
        sharing={"*.curvature.raw": "personal", "*": "shared"}, backbone=CurvedNet()
    ),
    "clipped gradients": with_(local=LocalTraining(2, 4, clip_norm=0.2)),
    "dropout": with_(backbone=MLP((4, 6), dropout=0.5), local=LocalTraining(2, 4)),
    "dropout at ditto": Ditto(MLP((4,), dropout=0.3), rounds=3, local=LocalTraining(2, 4)),
    "fixed": with_(sharing={"head.*": "fixed", "*": "shared"}),
    "fedprox": with_(
        proximal=0.1, server_optimizer=ServerSGD(momentum=0.5), local=LocalTraining(2, 4)
    ),
    "feddyn": FedDyn(NormNet(), rounds=3, local=LocalTraining(2, 4)),
    "scaffold": Scaffold(NormNet(), rounds=3, local=LocalTraining(2, 4)),
    "ditto": Ditto(NormNet(), rounds=3, local=LocalTraining(2, 4, repeats=2)),
    "ditto and adam": Ditto(MLP((4,)), rounds=3, local=LocalTraining(2, 4), optimizer=Adam()),
    "dropout at moon": Moon(MLP((4,), dropout=0.3), rounds=3, local=LocalTraining(2, 4)),
    "fedrod and momentum": FedRoD(
        NormNet(), rounds=3, local=LocalTraining(2, 4), optimizer=SGD(momentum=0.9)
    ),
    "repeats at pfedme": PFedMe(NormNet(), rounds=3, local=LocalTraining(2, 4, repeats=3)),
    "clipped apfl": Apfl(MLP((4,)), rounds=3, local=LocalTraining(2, 4, clip_norm=0.2)),
    "clipped apple": Apple(MLP((4,)), rounds=3, local=LocalTraining(2, 4, clip_norm=0.2)),
    "batch norm": with_(backbone=NormNet(), local=LocalTraining(2, 4), optimizer=ADAM),
    "batch norm over all": with_(backbone=NormNet(), local=LocalTraining(2, None)),
    "one negative": HYPERFED,
    "all negatives": dataclasses.replace(HYPERFED, objective=Triplet(negatives="all")),
    "hard negatives": dataclasses.replace(HYPERFED, objective=Triplet(negatives="hard")),
    "geodesic": dataclasses.replace(HYPERFED, objective=Geodesic()),
    "mixup": dataclasses.replace(HYPERFED, mixup=0.5, clip=None),
    "mixup and batch norm": dataclasses.replace(HYPERFED, mixup=0.5, backbone=NormNet()),
    "draws for all at once": dataclasses.replace(HYPERFED, mixup=0.5, local=LocalTraining(2, None)),
    "own prototypes": dataclasses.replace(HYPERFED, prototypes="own"),
    "trained prototypes": dataclasses.replace(HYPERFED, prototypes="trained"),
    "riemannian momentum": dataclasses.replace(
        HYPERFED, prototypes="trained", optimizer=SGD(momentum=0.5)
    ),
    "riemannian adam": dataclasses.replace(
        HYPERFED, prototypes="trained", optimizer=Adam(), lr=0.01
    ),
    "h-ce-m": dataclasses.replace(
        HYPERFED,
        objective=CrossEntropy(),
        aggregator=Mean(),
        server_optimizer=ServerSGD(momentum=0.5),
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_the_same_whatever_the_sizes(setting, together):
    fine_tuning = Evaluation(every=3, fine_tuning=FineTune(1))
    assert_engines_agree(SETTINGS[setting], federation(UNEQUAL), evaluation=fine_tuning)
    assert together


@dataclass(frozen=True)
class Joint(FedAvg):
    """Has a loss of its own, so the forms of other methods do not apply."""

    def loss(self, model, parameters, buffers, batch, context):
        return super().loss(model, parameters, buffers, batch, context)


@joint(Joint.loss)
def losses_by_one_product_a_layer(method, model, parameters, buffers, batch, context, *, axes):
    x = batch["x"].flatten(2)
    for layer in ("body.1", "head"):
        weight, bias = parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]
        x = torch.baddbmm(bias[:, None], x, weight.mT)
        x = x.relu() if layer == "body.1" else x
    losses = nn.functional.cross_entropy(x.mT, batch["y"], reduction="none")
    return losses, buffers


@dataclass(frozen=True)
class Doubled(Joint):
    """An heir with twice the loss of its base, whose form must not be used."""

    def loss(self, model, parameters, buffers, batch, context):
        losses, buffers = super().loss(model, parameters, buffers, batch, context)
        return 2 * losses, buffers


@dataclass(frozen=True)
class Doubling(FedAvg):
    """An heir with twice the step of its base."""

    def step(self, local, gradients, context):
        return super().step(local, {name: 2 * g for name, g in gradients.items()}, context)


@dataclass(frozen=True)
class Partial(FedAvg):
    """An heir whose step is no function of a class."""

    step = functools.partialmethod(FedAvg.step)


@pytest.mark.parametrize("kind", [Doubled, Doubling, Partial])
def test_an_heir_that_overrides_a_function_loses_the_joint_form_of_its_base(kind, together):
    settings = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(SMALL)}
    assert_engines_agree(kind(**{**settings, "backbone": MLP((4,))}), federation(UNEQUAL))
    assert together


def test_a_joint_form_of_the_loss_is_used_and_is_the_same(together, monkeypatch):
    mapped = []

    def noted(function, **options):
        mapped.append(function.__name__)
        return vmap(function, **options)

    monkeypatch.setattr(joint_forms, "vmap", noted)
    settings = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(SMALL)}
    method = Joint(**{**settings, "backbone": MLP((4,))})
    assert_engines_agree(method, federation(UNEQUAL))
    assert together
    assert "forward" not in mapped


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
    """Descent with steps that depend on the norm of a whole tensor, hence not elementwise."""

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
    """An optimiser that reuses the storage of its arguments, as ``step`` may."""

    def step(self, parameters, gradients, state, *, lr, spaces=None, donate=False):
        for name, x in parameters.items():
            x.add_(gradients[name], alpha=-lr)
        return parameters, {"num_steps": state["num_steps"].add_(1)}


@pytest.mark.parametrize("optimizer", [Clipped(), InPlace()])
def test_a_step_need_not_be_elementwise_nor_leave_local_alone(optimizer, together):
    sizes = (9, 4, 13, 9)  # as many clients as the layer is wide: swapped axes would still fit
    assert_engines_agree(with_(optimizer=optimizer), federation(sizes))
    assert set(together) == {4}


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["adam", "batch norm", "mixup", "trained prototypes"])
def test_it_is_the_same_on_a_gpu(setting):
    assert_engines_agree(SETTINGS[setting], federation(UNEQUAL).to("cuda"))
