"""Bases of methods around another method, which add an exchange, a mask or noise to it."""

# pyright: reportIncompatibleMethodOverride=false
# a member of the inner method has its type, which the checker does not see behind a name

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits


def of_inner(name: str) -> Any:
    """Member of a wrapper that is the inner method's, be it a function or a property.

    A function is bound to the inner method, so whoever looks for its definition finds the one of
    the inner method's class.

    Args:
        name: Name of the member.
    """
    return property(attrgetter(f"method.{name}"))


@dataclass(frozen=True)
class WrappingMethod(Method):
    """Base of methods around another one, whose rounds, aggregator and cohorts it has.

    Args:
        method: The inner method.
    """

    method: Method

    rounds = of_inner("rounds")
    aggregator = of_inner("aggregator")

    @property
    def traits(self) -> Traits:
        """Traits of the inner method; whether a second reply hides as much is not known."""
        return dataclasses.replace(self.method.traits, evaluates=True, repeatable=False)

    check_deployed = of_inner("check_deployed")
    costs = of_inner("costs")
    init = of_inner("init")
    admit = of_inner("admit")


@dataclass(frozen=True)
class DelegatedSteps(WrappingMethod, GradientMethod):
    """Base of methods that take the local steps of another method and differ around them.

    Args:
        method: Method whose local steps are taken.
    """

    method: GradientMethod

    traits = of_inner("traits")
    local = of_inner("local")
    model = of_inner("model")
    start = of_inner("start")
    examples = of_inner("examples")
    draw = of_inner("draw")
    loss = of_inner("loss")
    step = of_inner("step")
    finish = of_inner("finish")
    predict = of_inner("predict")
    features = of_inner("features")
    fine_tuning = of_inner("fine_tuning")
    figures = of_inner("figures")
    node_places = of_inner("node_places")
