"""The exchange of fine-tuning."""

from fedbolic.federated.rounds.fine_tuning import FineTuningPhase
from fedbolic.methods import FedNova


def test_an_update_without_a_part_is_no_fault_of_a_method_that_bounds_its_parts():
    assert FineTuningPhase(FedNova()).find_fault({}, {}, 0.0) is None
