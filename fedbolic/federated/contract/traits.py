"""Traits of a method: what others must know of it before it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedbolic.data.contract.client import Split
from fedbolic.federated.accounting.ledger import Unit

CohortKind = Literal["sample", "same", "all"]


@dataclass(frozen=True)
class Traits:
    """Traits of a method, or of its phase, by which trainer, engines and nodes treat it.

    Args:
        learns_from: Kind of examples that the clients need.
        find_unfit: Function of a client's examples of this kind that says what they lack; ``None``
            if the method can learn from them.
        cohort: Clients of the exchange: a sample, those who answered the previous exchange, or all.
        evaluates: Whether the exchange ends a round, which is then counted, scored and recorded.
        repeatable: Whether the server may ask for one exchange twice, with other random streams. It
            does so if updates that it can examine one by one would make its state infinite. A
            second reply may cost privacy, or reveal what a sum of the first hides.
        global_model: Whether the server has a model that predicts, which its own test set scores.
        common_features: Whether the global model has features on which a ridge head can be solved.
        solves_head: Whether the method solves for a head in closed form, so that no other may.
        keeps_secrets: Whether client state holds keys, as ``key`` or below ``secure``. The files of
            such a run can be read by their owner alone, and the keys are deleted after the last
            round.
        privacy_unit: Unit of privacy that the clients' releases cost; ``None`` if they have no such
            cost. A node whose method has a unit needs an account for it.
        charged: Entries of the client state that are kept even if the client's update is never
            used. Under a secure sum, other entries are kept only after the sum has been unmasked.
            Counts and keys of private noise belong here, so that a sum which is not finished is
            paid for, too.

    Example:
        >>> Traits(cohort="all").evaluates
        True
    """

    learns_from: type[Split] = Split
    find_unfit: Callable[[Split], str | None] = lambda split: None
    cohort: CohortKind = "sample"
    evaluates: bool = True
    repeatable: bool = False
    global_model: bool = True
    common_features: bool = False
    solves_head: bool = False
    keeps_secrets: bool = False
    privacy_unit: Unit | None = None
    charged: tuple[str, ...] = ()
