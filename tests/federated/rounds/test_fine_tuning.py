"""The exchange of fine-tuning."""

import pytest

from fedbolic.core.rng import Rng
from fedbolic.federated.rounds.fine_tuning import FineTuningPhase
from fedbolic.methods import FedNova
from fedbolic.testing import assert_same
from tests.subjects import subject


def test_an_update_without_a_part_is_no_fault_of_a_method_that_bounds_its_parts():
    assert FineTuningPhase(FedNova()).find_fault({}, {}, 0.0) is None


@pytest.mark.parametrize("name", ["fedavg", "feddyn", "scaffold", "fedgta", "fedpub", "gcfl"])
def test_a_client_is_sent_what_it_trains_from_and_nothing_of_the_others(name):
    method, data = subject(name)
    inner = method.fine_tuning(1, None)
    sizes = [client.size for client in data.clients]
    server_state = method.admit(method.init(data.meta, Rng(0)), sizes)
    for client in data.clients:
        message = FineTuningPhase(inner).broadcast(server_state, client.id)
        assert_same(message, inner.broadcast(server_state, client.id))
        assert not {"optimizer", "clients", "clusters", "h"} & message.keys()
