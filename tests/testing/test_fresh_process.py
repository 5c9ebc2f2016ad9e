"""Methods that draw secrets answer alike in another process that draws the same ones."""

import dataclasses
import secrets

import pytest
import torch

from fedbolic.federated import DistributedNoise, LocalTraining, SumPrivacy
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import PrivateSteps
from fedbolic.testing import MethodRun
from fedbolic.testing.fresh_process import fixed_secrets
from fedbolic.testing.methods import pickled_copies_answer_alike_in_another_process
from flatland import FlatLand, LorentzGCN, PrivateForman
from flatland.method import SHARING
from flynn import FlyNN, Histogram
from tests.federated.simple_method import SMALL, federation
from tests.flatland import cases

ONE = dataclasses.replace(SMALL, rounds=1)
NOISY = DistributedNoise(
    ONE, SumPrivacy(survivors=2, dp_delta=1e-2, noise_multiplier=2.0, clip_norm=0.1, bits=24)
)
FORMAN = FlatLand(
    LorentzGCN((4,)), rounds=2, local=LocalTraining(1, None), curvature=PrivateForman(0.5)
)
EXAMPLES = {
    "SecureSum": SecureSum(ONE),
    "DistributedNoise": NOISY,
    "SecureSum of DistributedNoise": SecureSum(NOISY),
    "PrivateSteps": PrivateSteps(ONE, steps=2, rate=0.5, dp_delta=1e-2),
    "FlyNN": FlyNN(dim=40, fan_in=3, active=4, privacy=Histogram(1.0)),
    "SecureSum of FlyNN": SecureSum(FlyNN(dim=40, fan_in=3, active=4, privacy=Histogram(1.0))),
}
GRAPHS = {
    "PrivateForman": FORMAN,
    "PrivateForman, fixed": dataclasses.replace(
        FORMAN, sharing={**SHARING, "curvature.*": "fixed"}
    ),
}
FLAT, WITH_GRAPHS = (
    data.to("cpu", torch.float32) for data in (federation((6, 4, 5)), cases.federation())
)
RUNS = {name: MethodRun(method, FLAT) for name, method in EXAMPLES.items()}
RUNS |= {name: MethodRun(method, WITH_GRAPHS) for name, method in GRAPHS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_method_that_draws_secrets_answers_alike_in_another_process(name):
    pickled_copies_answer_alike_in_another_process(RUNS[name])


def test_fixed_secrets_repeat_and_differ_from_the_systems():
    drawn = []
    for _ in range(2):
        with fixed_secrets():
            drawn.append([secrets.token_bytes(32), secrets.token_bytes(), secrets.randbelow(99)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]
    assert len({*map(len, drawn[0][:2]), 32}) == 1
    assert secrets.token_bytes(32) != drawn[0][0]
