"""Bases of methods around another method, which add an exchange, a mask or noise to it."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# a member of the inner method has its type, which the checker does not see behind a name

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from typing_extensions import override

from fedbolic.core.figure import Figure
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, FederatedData
from fedbolic.federated.contract.capabilities import NodePlaces, Reporting
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.scores.score import Predictor


def of_inner(name: str) -> Any:
    """Member of a wrapper that is the inner method's, be it a function or a property.

    A function is bound to the inner method, so whoever looks for its definition finds the one of
    the inner method's class.

    Args:
        name: Name of the member.
    """
    return property(attrgetter(f"method.{name}"))


@dataclass(frozen=True)
class WrappingMethod(Method, Reporting):
    """Base of methods around another one, whose rounds, aggregator and cohorts it has.

    Args:
        method: The inner method.
    """

    method: Method

    part: ClassVar[str] = ""
    """Entry of states that is the inner method's; empty if a whole state is."""

    sends_part: ClassVar[bool] = False
    """True if messages have that entry, too, instead of being the inner method's."""

    rounds = of_inner("rounds")
    aggregator = of_inner("aggregator")

    @property
    def traits(self) -> Traits:
        """Traits of the inner method; whether a second reply hides as much is not known."""
        return dataclasses.replace(self.method.traits, evaluates=True, repeatable=False)

    check_deployed = of_inner("check_deployed")
    init = of_inner("init")
    admit = of_inner("admit")

    def unwrapped(self, message: Tree, client_state: Tree) -> tuple[Tree, Tree]:
        """The inner method's message and client state."""
        inner = message[self.part] if self.sends_part else message
        return inner, client_state.get(self.part, {}) if self.part else client_state

    @override
    def costs(self, server_state: Tree) -> dict[str, float]:
        inner = server_state[self.part] if self.part else server_state
        return self.method.costs(inner) if isinstance(self.method, Reporting) else {}

    @override
    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        inner = server_state[self.part] if self.part else server_state
        return self.method.figures(inner, data) if isinstance(self.method, Reporting) else {}

    @override
    def node_places(self, message: Tree, client: Client, client_state: Tree) -> NodePlaces | None:
        if not isinstance(self.method, Reporting):
            return None
        message, client_state = self.unwrapped(message, client_state)
        return self.method.node_places(message, client, client_state)

    @override
    def triple_tables(self, message: Tree, client: Client, client_state: Tree) -> Tree | None:
        if not isinstance(self.method, Reporting):
            return None
        message, client_state = self.unwrapped(message, client_state)
        return self.method.triple_tables(message, client, client_state)


@dataclass(frozen=True)
class NestedMethod(WrappingMethod):
    """Base of methods whose states hold those of the inner method, by which clients are scored.

    Args:
        method: The inner method.
    """

    part = "inner"

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return {**server_state, self.part: self.method.admit(server_state[self.part], sizes)}

    @override
    def template(self, message: Tree) -> Tree | None:
        return self.method.template(self.unwrapped(message, {})[0])

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return self.method.find_fault(self.unwrapped(message, {})[0], payload, norm)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        message, client_state = self.unwrapped(message, client_state)
        return self.method.evaluate(message, client, client_state, rng)


def predictor_of(
    method: Method, message: Tree, client: Client, client_state: Tree
) -> tuple[Predictor, Tree, Tree] | None:
    """Method that predicts for a client, with ``local`` and ``context`` as its arguments.

    Args:
        method: Trained method.
        message: Result of its ``broadcast`` for this client.
        client: The client with its data, or the server's test set.
        client_state: State that the client kept; empty for the server's test set.

    Returns:
        ``None`` if no model gives logits, or there is none for the server's test set.
    """
    while isinstance(method, NestedMethod):
        message, client_state = method.unwrapped(message, client_state)
        method = method.method
    if not isinstance(method, GradientMethod):
        return None
    held = method.scored(message, client, client_state)
    return None if held is None else (method, *held)


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
    broadcast = of_inner("broadcast")
    template = of_inner("template")
    find_fault = of_inner("find_fault")
    predict = of_inner("predict")
    features = of_inner("features")
    fine_tuning = of_inner("fine_tuning")
