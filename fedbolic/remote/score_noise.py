"""Noisy scores of a node, for an operator who lets the server see them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, Examples, LabelledSplit
from fedbolic.federated.accounting.charges import charge_releases
from fedbolic.federated.accounting.costs import PureCost
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.contract.method import Method
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.scores.metrics import measuring

SMALLEST_EPSILON = 1e-6
"""Smallest epsilon of a scoring, whose noise fits 64 bits."""


@dataclass(frozen=True)
class ScoreNoise:
    r"""Numbers of right and wrong predictions of test examples, with discrete Laplace noise.

    .. math:: P(k) = \frac{1 - q}{1 + q} \, q^{|k|}, \qquad q = e^{-\varepsilon}

    on each of the two counts. A test example that is added or removed changes one of them by 1, and
    other examples of the node change none, so a scoring costs epsilon, with a delta of 0. This
    holds for any model because every example is predicted alone, without other data and without the
    client's state: neither a statistic of a batch nor the rounding of a product of several rows
    depends on another example. Losses, AUC and scores of a validation set have no such bound.

    Args:
        epsilon: Cost of one scoring to a test example, from 1e-6.
        rounds: Planned number of scorings, whose cost is reserved with the first one, at least 1.

    Raises:
        ValueError: If a value is out of range.

    References:
        Ghosh, Roughgarden and Sundararajan (2009), Sec. 2, arXiv:0811.2841, for the noise.

    Example:
        >>> ScoreNoise(epsilon=0.1, rounds=20).ledger.epsilon(20)
        2.0
    """

    epsilon: float
    rounds: int

    def __post_init__(self) -> None:
        if not SMALLEST_EPSILON <= self.epsilon < math.inf:
            raise ValueError(
                f"epsilon of a scoring must be finite and at least {SMALLEST_EPSILON}, got "
                f"{self.epsilon}"
            )
        check.at_least(1, rounds=self.rounds)

    @property
    def ledger(self) -> PrivacyLedger:
        """Cost of the planned scorings to one example."""
        cost = PureCost(self.epsilon)
        noise = 1 / self.epsilon
        return PrivacyLedger(
            "everyone", "add/remove", 1.0, noise, 0.0, self.rounds, "example", cost
        )

    def release(self, method: Method, message: Tree, client: Client, rng: Rng) -> dict[str, float]:
        """Scores by name, from noisy counts; empty if none is above 0. Every call is charged.

        Args:
            method: Method whose model predicts.
            message: Message of the server, which has the model.
            client: Client with the test examples.
            rng: Random stream of the evaluation, which the noise does not follow.

        Raises:
            ValueError: If the scoring would exceed the budget of the account, there is none, or the
                test data are no labelled examples.
        """
        charge_releases(self.ledger)
        exact = _counts(method, message, client, rng)
        noise = SecretStream.fresh().integers().laplace(1 / self.epsilon, 2).tolist()
        right, wrong = (max(count + z, 0) for count, z in zip(exact, noise, strict=True))
        if not right + wrong:
            return {}
        return {
            "test/accuracy": right / (right + wrong),
            "test/examples": float(right + wrong),
        }


def score_noise_of(node_config: Mapping[str, Any]) -> ScoreNoise | None:
    """Noise of the scores of a node, by its own configuration alone; ``None`` withholds them.

    Args:
        node_config: Configuration that the node was started with, of which ``score_epsilon``,
            ``score_rounds`` and ``accounts`` are read.

    Raises:
        ValueError: If there is ``score_epsilon`` without the others, or a value is out of range.
    """
    if "score_epsilon" not in node_config:
        return None
    if missing := {"accounts", "score_rounds"} - node_config.keys():
        raise ValueError(f"a node with score_epsilon needs {sorted(missing)} as well")
    return ScoreNoise(float(node_config["score_epsilon"]), int(node_config["score_rounds"]))


def _counts(method: Method, message: Tree, client: Client, rng: Rng) -> tuple[int, int]:
    """Numbers of right and wrong predictions, each of one example in a client without others."""
    if not isinstance(client.test, LabelledSplit):
        raise ValueError(f"noisy scores need labelled examples, got {type(client.test).__name__}")
    none = Examples(client.test.at(torch.arange(0)))
    right = 0
    with measuring(()):
        for k in range(len(client.test)):
            one = Examples(client.test.at(torch.tensor([k])))
            alone = Client(client.id, none, none, one, client.meta)
            right += method.evaluate(message, alone, {}, rng).get("test/accuracy") == 1
    return right, len(client.test) - right
