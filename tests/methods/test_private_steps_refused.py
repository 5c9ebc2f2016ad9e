"""Refusals of DP-SGD, which type checks of the call would hide."""

import pytest

from fedbolic.methods import FedAvg, PrivateSteps
from tests.subjects import every_configuration, settings


@every_configuration
def test_methods_that_the_proof_does_not_cover_are_refused(name):
    method = settings(name)["method"]
    if type(method) is FedAvg:
        assert PrivateSteps(method).rounds == method.rounds
    else:
        with pytest.raises(ValueError, match=f"covers FedAvg, .* not {type(method).__name__}"):
            PrivateSteps(method)
