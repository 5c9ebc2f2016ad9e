"""APFL: adaptive mixtures of a global and a local model at every client."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.nn.network.model import Model

LOCAL, MIXING = "local.", "mixing"
"""Prefix of the local model, and name of the mixing weight, trained with the global model."""


@dataclass(frozen=True)
class Apfl(ClassifierMethod):
    r"""Federated averaging, and at every client a mixture of the global with a local model.

    .. math::
        w_k \leftarrow w_k - \eta \nabla f_k(w_k), \quad
        \bar v_k = \alpha_k v_k + (1 - \alpha_k) w_k, \quad
        v_k \leftarrow v_k - \eta \alpha_k \nabla f_k(\bar v_k), \quad
        \alpha_k \leftarrow \alpha_k - \eta \langle v_k - w_k, \nabla f_k(\bar v_k) \rangle

    The server averages :math:`w_k` with uniform weights; v and alpha stay at the client. All three
    steps of a batch use the values before the batch, and alpha is clamped to [0, 1]. In a client's
    first turn its local model is the global one.

    This follows the paper. The authors' code (FedTorch) mixes logits in place of parameters, steps
    alpha only on the first batch of a round, with the gradient of another point, and adds
    ``0.02 * alpha`` to it.

    Clients are scored with the mixture of their local model and the global model they received, the
    server's test set with the global model. The training loss is the sum over w and the mixture.

    Args:
        local: Local epochs and batch size, for both models.
        lr: Local step size eta, above 0; local steps are plain gradient descent.
        mixing: Initial weight alpha of the local model, in [0, 1].
        adaptive: Whether alpha is trained; otherwise it keeps its initial value.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Deng et al. (2020), Sec. 4 and Algorithm 1, arXiv:2003.13461.

    Example:
        >>> Apfl(mixing=0.25, adaptive=False).mixing
        0.25
    """

    mixing: float = 0.5
    adaptive: bool = True

    weights = "uniform"
    models = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rate(mixing=self.mixing)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        values = {}
        for kind in ("parameters", "buffers"):
            own = client_state.get(f"local_{kind}", message[kind])
            values[kind] = message[kind] | {LOCAL + name: value for name, value in own.items()}
        parameters = values["parameters"]
        if self.adaptive:
            parameters[MIXING] = client_state.get(MIXING, self._initial_mixing(parameters))
        context = shared_context(message["parameters"])
        return self.local_state(parameters, values["buffers"]), context

    def _initial_mixing(self, parameters: Params) -> Tensor:
        like = next(iter(parameters.values()))
        return like.new_full((1,), self.mixing)  # an axis of length 1, as for a bias

    def _mixed(self, parameters: Params) -> Params:
        """The mixture, whose gradient does not reach the global model."""
        alpha = parameters[MIXING].squeeze(0) if self.adaptive else self.mixing
        local = tree.part(parameters, LOCAL)
        return {n: alpha * v + (1 - alpha) * parameters[n].detach() for n, v in local.items()}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        own = tree.part(buffers, LOCAL)
        common = {n: parameters[n] for n in tree.part(parameters, LOCAL)}
        given = batch, context
        of_common, new = super().loss(model, common, {n: buffers[n] for n in own}, *given)
        of_mixture, new_own = super().loss(model, self._mixed(parameters), own, *given)
        return of_common + of_mixture, new | {LOCAL + n: value for n, value in new_own.items()}

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        local = super().step(local, gradients, context)
        if not self.adaptive:
            return local
        clamped = local["parameters"][MIXING].clamp(0, 1)
        return {**local, "parameters": {**local["parameters"], MIXING: clamped}}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        own = {kind: tree.part(local[kind], LOCAL) for kind in ("parameters", "buffers")}
        common = {n: local["buffers"][n] for n in own["buffers"]}
        payload, _ = super().outcome({**local, "buffers": common}, context)
        kept = {f"local_{kind}": values for kind, values in own.items()}
        return payload, kept | ({MIXING: local["parameters"][MIXING]} if self.adaptive else {})

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Logits of the mixture, which is the global model on the server's test set."""
        del context
        mixed = self._mixed(local["parameters"])
        return model(mixed, tree.part(local["buffers"], LOCAL), batch["x"])[0]
