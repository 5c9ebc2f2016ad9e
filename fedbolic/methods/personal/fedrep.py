"""FedRep: a common body and personal heads, trained one after the other."""

from dataclasses import dataclass
from typing import ClassVar

from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.methods.personal.stages import StagedSteps


@dataclass(frozen=True)
class FedRep(StagedSteps, ClassifierMethod):
    r"""Federated averaging of a body, which each client trains after its personal head.

    .. math::
        h_k \leftarrow h_k - \eta \nabla_h f_k(\phi, h_k) \text{ for the first steps}, \quad
        \phi_k \leftarrow \phi_k - \eta \nabla_\phi f_k(\phi_k, h_k) \text{ for the others}, \quad
        \phi \leftarrow \tfrac{1}{|C|} \textstyle\sum_{k \in C} \phi_k

    with the body phi and the heads :math:`h_k` of the clients of a cohort C. FedPer trains both at
    once. A client's head stays at the client, so there is no global model to score.

    Args:
        backbone: Network from inputs to features, the body; a linear head follows.
        local: Local epochs and batch size, of the head and the body together.
        lr: Local step size, above 0; local steps are plain gradient descent.
        head_share: Share of the local steps that train the head, in (0, 1). With 5 epochs, 0.8 are
            4 epochs of the head and 1 of the body.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Collins et al. (2021), Algorithm 1, arXiv:2102.07078.

    Example:
        >>> FedRep(head_share=0.5).local.epochs
        5
    """

    head_share: float = 0.8

    weights = "uniform"
    models = "personal"
    sharing: ClassVar[Sharing] = {"head.*": "personal", "*": "shared"}
