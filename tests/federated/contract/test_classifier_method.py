"""Constants of classes of methods: what they refuse, and a personal head whose rows are points."""

from dataclasses import dataclass

import pytest

from fedbolic.federated import ClassifierMethod, LocalTraining
from fedbolic.manifolds import Poincare
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import federation, train

SHARING = {"head.*": "personal", "*": "shared"}


def declared(**constants):
    """A class of methods with these constants."""
    return dataclass(frozen=True)(type("Declared", (ClassifierMethod,), constants))


@pytest.mark.parametrize(
    ("constant", "found"),
    [
        ({"weights": "sizes"}, "weights must be one of size, uniform"),
        ({"models": "local"}, "models must be one of global, both, personal"),
        ({"sharing": {"head.*": "personel", "*": "shared"}}, "must be shared, personal or fixed"),
    ],
)
def test_a_constant_without_a_meaning_is_refused(constant, found):
    with pytest.raises(ValueError, match=found):
        declared(**constant)()


def test_a_text_is_no_tuple_of_names_that_are_not_sent():
    with pytest.raises(TypeError, match=r"must be a tuple: write \('optimizer',\)"):
        declared(unsent="optimizer")


def largest_rows(spaces):
    """Largest squared norm of a row of every client's head, after steps that are too long."""
    kind = declared(sharing=SHARING, spaces=spaces)
    method = kind(MLP((4,)), rounds=2, local=LocalTraining(1, 4), lr=5.0)
    (*_, state), _ = train(method, federation())
    assert not any(name.startswith("head.") for name in state.server_state["parameters"])
    kept = [own["parameters"]["head.weight"] for own in state.client_states.values()]
    assert len(kept) == 3
    return [weight.square().sum(dim=-1).max() for weight in kept]


def test_a_personal_head_may_have_rows_that_are_points():
    assert max(largest_rows({"head.weight": Poincare()})) < 1 < min(largest_rows({}))
