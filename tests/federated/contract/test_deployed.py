"""Refusals of a deployment: every wrapper passes on those of the method that it wraps."""

import dataclasses
import inspect
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
from typing_extensions import override

import fedbolic.methods  # noqa: F401  # defines further wrappers
from fedbolic.federated import ClientPrivacy, DistributedNoise
from fedbolic.federated.contract.wrapping_method import WrappingMethod
from fedbolic.federated.noise.draws import SystemKeys
from fedbolic.federated.privacy.sum_privacy import SumPrivacy
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, PrivateSteps
from flatland import FlatLand, PrivateForman
from flynn import FlyNN, Histogram
from tests.seeded import SeededKeys

PRIVACY = SumPrivacy(survivors=3, dp_delta=1e-2, noise_multiplier=1.0)
SETTINGS = {
    SecureSum: {"threshold": 3, "keys": Path("keys")},
    DistributedNoise: {"privacy": PRIVACY},
}


@dataclass(frozen=True)
class Unsafe(FedAvg):
    """A method that no node may run."""

    @override
    def check_deployed(self, *, summed=1):
        raise ValueError("unsafe as such")


def wrappers(base=WrappingMethod):
    """All classes of the code base that wrap a method."""
    found = set() if inspect.isabstract(base) else {base}
    found = found.union(*map(wrappers, base.__subclasses__()))
    return {each for each in found if each.__module__.startswith("fedbolic.")} - {WrappingMethod}


def wrapped(kind, method, **settings):
    """A wrapper around any method, without a look at whether the two fit."""
    made = object.__new__(kind)
    settings = {"method": method, **SETTINGS.get(kind, {}), **settings}
    for field in dataclasses.fields(kind):
        object.__setattr__(made, field.name, settings.get(field.name, field.default))
    return made


def refusal(method):
    """Text of the refusal of a deployment; empty if there is none."""
    try:
        method.check_deployed()
    except ValueError as error:
        return str(error)
    return ""


def test_all_pairs_of_wrappers_pass_on_the_refusals_of_what_they_wrap():
    kinds = sorted(wrappers(), key=lambda kind: kind.__name__)
    assert {SecureSum, DistributedNoise, PrivateSteps} < set(kinds)
    for outer, inner in itertools.product(kinds, kinds):
        assert refusal(wrapped(outer, wrapped(inner, Unsafe())))
        unmasked = DistributedNoise in (outer, inner) and (outer, inner) != (
            SecureSum, DistributedNoise
        )  # fmt: skip
        assert bool(refusal(wrapped(outer, wrapped(inner, FedAvg())))) == unmasked
        if inner is SecureSum:
            for lack in ("threshold", "keys"):
                assert refusal(wrapped(outer, wrapped(inner, FedAvg(), **{lack: None})))
        if inner is DistributedNoise:
            for kept in (outer, SecureSum):
                seeded = wrapped(inner, FedAvg(), noise=SeededKeys())
                assert refusal(wrapped(kept, wrapped(outer, seeded)))


def test_a_threshold_below_the_noise_is_found_through_any_wrapper():
    for between in wrappers() - {SecureSum, DistributedNoise}:
        noisy = wrapped(DistributedNoise, FedAvg())
        assert not refusal(wrapped(SecureSum, wrapped(between, noisy)))
        found = refusal(wrapped(SecureSum, wrapped(between, noisy), threshold=2))
        assert "the noise of 3 clients is counted" in found


@pytest.mark.parametrize(
    "method",
    [
        FlyNN(privacy=Histogram(1.0), noise=SeededKeys()),
        FlatLand(curvature=PrivateForman(noise=SeededKeys())),
        DistributedNoise(FedAvg(), PRIVACY, noise=SeededKeys()),
    ],
)
def test_noise_from_a_seed_is_refused_alone_and_in_a_sum(method):
    if not isinstance(method, DistributedNoise):
        assert "a server may know" in refusal(method)
    assert "a server may know" in refusal(wrapped(SecureSum, method))


def test_no_setting_of_the_code_base_makes_noise_follow_from_a_seed():
    for kind in (DistributedNoise, ClientPrivacy, FlyNN, PrivateForman):
        (field,) = [field for field in dataclasses.fields(kind) if field.name == "noise"]
        assert field.default == SystemKeys()
    assert SystemKeys.__subclasses__() == [SeededKeys]
    assert not SeededKeys.__module__.startswith(("fedbolic", "flatland", "flynn"))
