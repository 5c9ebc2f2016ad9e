"""Base of methods around another method, which add an exchange, a mask or noise to it."""

from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Split
from fedbolic.federated.accounting.ledger import Unit
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.contract.method import CohortKind, Method


@dataclass(frozen=True)
class WrappingMethod(Method):
    """Base of methods around another one, whose rounds, aggregator and cohorts it has.

    Args:
        method: The inner method.
    """

    method: Method

    @property
    def rounds(self) -> int:  # type: ignore[override]  # a field of other methods
        """Number of rounds of the inner method."""
        return self.method.rounds

    @property
    @override
    def aggregator(self) -> Aggregator:
        return self.method.aggregator

    @property
    @override
    def learns_from(self) -> type[Split]:
        return self.method.learns_from

    @property
    @override
    def cohort(self) -> CohortKind:
        return self.method.cohort

    @property
    @override
    def keeps_secrets(self) -> bool:
        return self.method.keeps_secrets

    @property
    @override
    def privacy_unit(self) -> Unit | None:
        return self.method.privacy_unit

    @property
    @override
    def charged(self) -> tuple[str, ...]:
        return self.method.charged

    @override
    def check_deployed(self, *, summed: int = 1) -> None:
        self.method.check_deployed(summed=summed)

    @override
    def costs(self, server_state: Tree) -> dict[str, float]:
        return self.method.costs(server_state)
