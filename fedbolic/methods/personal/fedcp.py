"""FedCP: a policy divides the features of every example between a common and a personal head."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.formulas.numerics import without_casts
from fedbolic.nn.functional.space import wide
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Optimizer

HEAD, PERSONAL, POLICY = "head.linear.", "personal_head.", "head.policy."
"""Prefixes of the common head, the personal head and the policy."""

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Squared bandwidths of the kernel of the discrepancy, as in the authors' code."""


class PolicyHead(nn.Module):
    """Linear head, and the policy that divides features in two.

    Args:
        num_features: Width of the features.
        num_classes: Number of classes.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        self.policy = nn.Sequential(
            nn.Linear(num_features, 2 * num_features), nn.LayerNorm(2 * num_features), nn.ReLU()
        )

    def forward(self, z: Tensor) -> Tensor:
        """Logits of the linear head."""
        return self.linear(z)


@dataclass(frozen=True)
class FedCP(ClassifierMethod):
    r"""Federated averaging with a conditional policy: each example's features go to two heads.

    .. math::
        \ell = \ell_{\mathrm{CE}}\bigl(h_k(r \odot z) + \bar h(s \odot z), y\bigr)
        + \lambda \operatorname{MMD}^2(z, \bar z), \qquad
        (r, s) = \operatorname{softmax} \, \pi \bigl(z \odot \tfrac{v_k}{\|v_k\|}\bigr), \quad
        v_k = \textstyle\sum_c w_{k,c}

    with features z of the trained body, :math:`\bar z` of the received one in evaluation mode, the
    received head :math:`\bar h`, the personal head :math:`h_k` and its rows :math:`w_{k,c}` at the
    start of the round. Shares r and s of a feature sum to 1. The maximum mean discrepancy is that
    of a batch, with a sum of Gaussian kernels. Body, personal head and policy are trained; the mean
    of both heads is sent in place of the personal one. A personal head starts as the common one.
    Clients are scored with both heads.

    The authors' code adds Gumbel noise before the softmax, also when it scores; here the policy is
    the paper's, without noise.

    Args:
        optimizer: Local optimiser, reset every round.
        discrepancy: Weight lambda of the discrepancy, at least 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Zhang et al. (2023), Sec. 3 and Algorithm 1, arXiv:2307.01217.

    Example:
        >>> FedCP(discrepancy=5.0).models
        'personal'
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    discrepancy: float = 1.0

    models = "personal"
    head_type = PolicyHead

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(discrepancy=self.discrepancy)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        received = message["parameters"]
        head = client_state.get("head", tree.part(received, HEAD))
        trained = {n: value for n, value in received.items() if not n.startswith(HEAD)}
        trained |= {PERSONAL + name: value for name, value in head.items()}
        context = shared_context(received)
        context["shared"]["buffers"] = tree.part(message["buffers"], "body.")
        way = normalize(head["weight"].sum(dim=0), dim=0)
        return self.local_state(trained, message["buffers"]), {**context, "own": {"way": way}}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        shared, body = context["shared"], model.part("body")
        kept = tree.part(buffers, "body.")
        z, updated = body(tree.part(parameters, "body."), kept, batch["x"], training=True)
        received = tree.part(shared["global_parameters"], "body.")
        before, _ = body(received, shared["buffers"], batch["x"])
        gap = self.discrepancy * _discrepancy(z, before, batch["mask"].to(z.dtype))
        losses = self.losses(_logits(model, parameters, z, context), batch["y"])
        return losses + gap, {f"body.{name}": value for name, value in updated.items()}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        received, trained = context["shared"]["global_parameters"], local["parameters"]
        head = tree.part(trained, PERSONAL)
        means = {HEAD + name: (value + received[HEAD + name]) / 2 for name, value in head.items()}
        payload, _ = super().outcome({**local, "parameters": {**trained, **means}}, context)
        return payload, {"head": head}

    @override
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Sum of both heads, each for its share of the features."""
        z = self.features(model, local, batch, context)
        return _logits(model, local["parameters"], z, context)


def _logits(model: Model, parameters: Params, z: Tensor, context: Tree) -> Tensor:
    """Logits of both heads, each for its share of the features."""
    policy = tree.part(parameters, POLICY)
    values = model.part("head.policy")(policy, {}, z * context["own"]["way"])[0]
    ours, theirs = values.unflatten(-1, (2, -1)).softmax(dim=-2).unbind(dim=-2)
    linear = model.part("head.linear")
    common = tree.part(context["shared"]["global_parameters"], HEAD)
    personal = linear(tree.part(parameters, PERSONAL), {}, ours * z)[0]
    return personal + linear(common, {}, theirs * z)[0]


def _discrepancy(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Squared maximum mean discrepancy between two samples, over the rows of the mask."""
    mask, both = wide(mask), wide(torch.cat([x, y]))
    weights = torch.cat([mask, -mask]) / mask.sum().clamp(min=1)
    both = both - both.mean(dim=0).detach()  # near the origin, products lose no digits
    squares = both.square().sum(dim=-1)
    with without_casts(x.device):
        gaps = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
        kernel = sum(torch.exp(-gaps / (2 * width)) for width in BANDWIDTHS)
        return weights @ kernel @ weights
