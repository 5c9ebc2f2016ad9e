"""Gradient methods under secure aggregation give the results that they give without it."""

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import Apfl, Apple, FedMTL, FedNova, FedProto, FedRep, FedRoD, Moon, PFedMe
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import RNG, assert_near, federation, train

SETTINGS = {"backbone": MLP((4,)), "rounds": 2, "local": LocalTraining(2, 3), "lr": 0.2}
KINDS = (FedNova, Moon, FedRoD, FedRep, PFedMe, Apfl, FedProto, FedMTL)
METHODS = [kind(**SETTINGS) for kind in KINDS]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_masked_run_ends_like_one_in_the_clear(method):
    data = federation()
    secret, clear = (train(m, data, RNG)[0][-1] for m in (SecureSum(method), method))
    assert_near(secret.server_state["inner"], clear.server_state, 1e-5)  # sums in fixed point
    for i, kept in clear.client_states.items():
        assert_near(secret.client_states[i]["inner"], kept, 1e-5)


def test_core_models_that_the_server_needs_one_by_one_are_refused():
    with pytest.raises(ValueError, match="Gather"):
        SecureSum(Apple(**SETTINGS))
