"""Schedule of evaluations, and federation-wide means of client scores."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData
from fedbolic.federated.contract.engine import (
    Engine,
    Exchange,
    Failure,
    messages_to,
    torch_stream,
)
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.method import Method
from fedbolic.federated.rounds.fine_tuning import FineTuningPhase
from fedbolic.federated.rounds.ridge_head import BODY, HeadExchange, featured, layer_width
from fedbolic.federated.rounds.update_filter import UpdateFilter, find_update_fault
from fedbolic.federated.scores.metrics import (
    EXTRA_METRICS,
    Metric,
    check_metrics,
    is_sum,
    measuring,
    pooled_scores,
)

CLIENT_MEANS = frozenset(name for name in EXTRA_METRICS if not name.startswith("top_"))
"""Scores whose mean over clients is not that of the pooled examples, and is named as such."""

SCORE_NAMES = frozenset({"validation", "test", "holdout", "fine_tuned", "ridge_head"})
"""First parts of the names of scores, which no metric of training has."""


@dataclass(frozen=True)
class FineTune:
    """Fine-tuning of every client's copy of the model, which is then scored and discarded.

    Args:
        epochs: Passes over the local training data, at least 1.
        lr: Step size, above 0; ``None`` for the method's own step size.

    Raises:
        ValueError: If a value is out of range.
    """

    epochs: int = 5
    lr: float | None = None

    def __post_init__(self) -> None:
        check.at_least(1, epochs=self.epochs)
        if self.lr is not None:
            check.positive(lr=self.lr)


@dataclass(frozen=True)
class RidgeHead:
    r"""Closed-form head for a trained model's features, scored in addition to the model's own head.

    .. math::
        W = \Bigl(\sum_k Z_k^T Z_k + \varepsilon I\Bigr)^{-1} \sum_k Z_k^T Y_k, \qquad
        \text{logits } \hat z(x) W

    with the unit-length features Z_k and one-hot labels Y_k of client k's training examples. One
    additional exchange over all clients computes the exact sums, in float64. No channel acts on
    that exchange. The head is discarded after it is scored.

    Args:
        ridge: Epsilon divided by the mean diagonal entry of Z'Z, above 0.
        layer: Layer that gives the features: ``body`` for the method's own, or the name of a layer
            of the backbone. ``body.7`` of :class:`~fedbolic.nn.network.backbone.ConvNet` is the
            input of its last layer, which is much wider than its output.

    Raises:
        ValueError: If ``ridge`` is not above 0.

    References:
        Dong et al. (2022), Sec. 3, arXiv:2207.09413; Fani et al. (2024), Sec. 4, arXiv:2406.01116.

    Example:
        >>> Evaluation(ridge_head=RidgeHead(ridge=1e-3)).ridge_head
        RidgeHead(ridge=0.001, layer='body')
    """

    ridge: float = 1e-4
    layer: str = BODY

    def __post_init__(self) -> None:
        check.positive(ridge=self.ridge)


@dataclass(frozen=True, eq=False)
class _Ended:
    """A round that has ended, and the engine that scores it."""

    server_state: Tree
    client_states: Mapping[int, Tree]
    round: int
    engine: Engine
    rng: Rng

    def exchange(self, method: Method, clients: Sequence[Client]) -> Exchange:
        """Exchange in which clients receive what the method sends after the round."""
        messages = messages_to(method, self.server_state, clients)
        return Exchange(method, messages, clients, self.client_states, self.rng)


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of the server's model (G-FL) and of the clients' models (P-FL).

    Args:
        every: Rounds between two evaluations, at least 1; the last round is always evaluated.
        fine_tuning: Fine-tuning for additional personalised scores under ``fine_tuned/...``, after
            the last round only; ``None`` to score the clients only with what they receive.
        ridge_head: Closed-form head for the method's features, solved after the last round only and
            scored under ``ridge_head/...``; ``None`` for no such scores. A method without a global
            model or without gradient steps has no such scores either.
        clients: Number of clients to score, at least 1: a uniform sample, the same throughout a
            run; ``None`` for all clients.
        per_client: Record every client's scores in addition to those of the federation. The results
            table needs them for its mean and its worst client.
        metrics: Additional scores of every client's classifier by torchmetrics: ``macro_f1``,
            ``calibration_error`` (15 bins), ``top_2``, ``top_3`` and ``top_5``; ``auroc`` and
            ``average_precision`` of class 1 or, for more classes, the mean of one class versus the
            rest. The federation's ``macro_f1``, ``calibration_error`` and top-k accuracies are
            those of the pooled examples, from sums over clients, and so is its ``auroc``, from
            histograms of scores; ``auroc_bound`` bounds its error. The unweighted mean over clients
            is recorded under a name that ends in ``_client_mean``; ``average_precision`` has that
            mean alone. A client whose examples have one class has neither of these two.

    Raises:
        ValueError: If ``every`` or ``clients`` is below 1, or a metric is unknown.
    """

    every: int = 1
    fine_tuning: FineTune | None = None
    ridge_head: RidgeHead | None = None
    clients: int | None = None
    per_client: bool = True
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        check.at_least(1, every=self.every)
        check_metrics(self.metrics)
        if self.clients is not None:
            check.at_least(1, clients=self.clients)

    def check(self, method: Method, meta: Meta) -> None:
        """Refuse a ridge head on a layer that the model of the method does not have.

        Args:
            method: Method that will be evaluated.
            meta: Description of the data.

        Raises:
            ValueError: If there is no such layer.
        """
        inner = featured(method)
        if self.ridge_head and inner:
            layer_width(inner, self.ridge_head.layer, meta)

    def rows(
        self,
        method: Method,
        data: FederatedData,
        server_state: Tree,
        client_states: Mapping[int, Tree],
        *,
        round: int,
        engine: Engine,
        rng: Rng,
    ) -> list[Row]:
        """The scores after a round; empty if the round is not evaluated.

        Args:
            method: Method that is evaluated.
            data: Federation whose clients are scored, with the server's test set.
            server_state: Server state after the round.
            client_states: Client states, by id.
            round: Number of the round that has ended, from 1.
            engine: Engine that scores the clients.
            rng: Random stream of the run.
        """
        last = round == method.rounds
        if round % self.every and not last:
            return []
        ended = _Ended(
            server_state, client_states, round, engine, rng.at("round", round, "evaluation")
        )
        scored = self._sample(data, rng.at("evaluation"))
        with measuring(self.metrics):
            rows = self._aggregated(method, scored, data.holdout, ended)
            if last and self.fine_tuning:
                rows += self._fine_tuned(method, scored, self.fine_tuning, ended)
            if last and self.ridge_head:
                rows += self._ridge_scored(method, data, scored, self.ridge_head, ended)
        return rows

    def client_rows(
        self,
        round: int,
        scores: Mapping[int, Mapping[str, float]],
        *,
        reserved: Collection[str] = (),
    ) -> list[Row]:
        """Rows of the clients' scores if they are recorded, and of the scores of the federation.

        The latter are means weighted by number of examples, which equal the scores of the pooled
        examples for accuracy and loss; others follow from sums or are named as means over clients.

        Args:
            round: Number of the round that has ended, from 1.
            scores: Scores by client id and name.
            reserved: Names of the server's own measurements; no mean is recorded under such a name.
        """
        rows = [
            Row(round, client_id, name, value)
            for client_id, named in scores.items()
            for name, value in named.items()
            if not is_sum(name)
        ]
        pooled = pooled_scores(scores.values())
        names = sorted(({row.name for row in rows} | set(pooled)) - set(reserved))
        for name in names:
            split, _, metric = name.rpartition("/")
            present = [named for named in scores.values() if name in named]
            if metric in CLIENT_MEANS and present:
                mean = sum(named[name] for named in present) / len(present)
                rows.append(Row(round, None, f"{name}_client_mean", mean))
            if name in pooled:  # even if no client has the score, as where each has a single class
                rows.append(Row(round, None, name, pooled[name]))
            if name in pooled or metric in CLIENT_MEANS:
                continue
            weights = [named.get(f"{split}/examples", 1.0) for named in present]
            if sum(weights) and metric != "examples":
                mean = sum(w * named[name] for w, named in zip(weights, present, strict=True))
                rows.append(Row(round, None, name, mean / sum(weights)))
        return rows if self.per_client else [row for row in rows if row.client is None]

    def _sample(self, data: FederatedData, rng: Rng) -> Sequence[Client]:
        num_clients = len(data.clients)
        if self.clients is None or self.clients >= num_clients:
            return data.clients
        chosen = torch.randperm(num_clients, generator=rng.generator())[: self.clients]
        return [data.clients[i] for i in sorted(chosen.tolist())]

    def _aggregated(
        self, method: Method, clients: Sequence[Client], holdout: Client | None, ended: _Ended
    ) -> list[Row]:
        """Scores of the clients, and on the server's test set, with what each of them receives."""
        exchange = ended.exchange(method, clients)
        rows = self.client_rows(ended.round, ended.engine.scores(exchange) if clients else {})
        if holdout is not None:
            message = method.broadcast(ended.server_state, HOLDOUT)
            stream = ended.rng.at("holdout")
            with torch_stream(holdout, stream):
                found = method.evaluate(message, holdout, {}, stream)
            kept = {name: value for name, value in found.items() if not is_sum(name)}
            rows += [Row(ended.round, None, _rename(n, "holdout"), v) for n, v in kept.items()]
        return rows

    def _fine_tuned(
        self, method: Method, clients: Sequence[Client], settings: FineTune, ended: _Ended
    ) -> list[Row]:
        """Scores of the clients' fine-tuned models, under ``fine_tuned/...``."""
        if not isinstance(method, GradientMethod):
            return []
        inner = method.fine_tuning(settings.epochs, settings.lr)
        if inner is None:
            return []
        exchange = ended.exchange(method, clients)
        phase, stream, scores = FineTuningPhase(inner), ended.rng.at("tune"), {}
        exchange = dataclasses.replace(exchange, method=phase, rng=stream)
        for client, update, client_state in ended.engine.run(exchange):
            fault = find_update_fault(update, client_state, None)
            if fault is not None or isinstance(update, Failure):
                logger.warning("client %d could not be fine-tuned: %s", client.id, fault)
            else:
                named = update.metrics.items()
                scores[client.id] = {_rename(name, "fine_tuned"): float(v) for name, v in named}
        return self.client_rows(ended.round, scores)

    def _ridge_scored(
        self,
        method: Method,
        data: FederatedData,
        scored: Sequence[Client],
        settings: RidgeHead,
        ended: _Ended,
    ) -> list[Row]:
        """Scores with the ridge head, and the cost of its exchange, under ``ridge_head/...``."""
        inner = featured(method)
        if inner is None:
            logger.warning(
                "%s has no common features, so it gets no ridge head", type(method).__name__
            )
            return []
        shape = layer_width(inner, settings.layer, data.meta), data.meta.num_classes
        phase = HeadExchange(inner, settings.ridge, settings.layer, shape)
        exchange = ended.exchange(phase, data.clients)
        exchange = dataclasses.replace(exchange, rng=ended.rng.at("calibrate"))
        update_filter = UpdateFilter(phase, exchange.messages, (), exchange.rng)
        results = ended.engine.run(exchange)
        try:
            total = phase.aggregator.aggregate(update_filter.usable(results))
        except ValueError as error:
            logger.warning("%s gets no ridge head: %s", type(method).__name__, error)
            return []
        answered = set(total.clients)
        clients = [client for client in scored if client.id in answered]
        server_state = phase.server_update(ended.server_state, total)
        ended = dataclasses.replace(ended, server_state=server_state)
        rows = self._aggregated(phase, clients, data.holdout, ended)
        counts = update_filter.counts().items()
        rows += [Row(ended.round, None, name, count) for name, count in counts]
        return [row._replace(name=_rename(row.name, "ridge_head")) for row in rows]


def _rename(name: str, prefix: str) -> str:
    """Prefix a score's name; the prefix replaces ``test/``, as in ``fine_tuned/accuracy``."""
    return f"{prefix}/{name.removeprefix('test/')}"


def training_metrics(
    metrics: Mapping[int, Mapping[str, float]], taken: Collection[str]
) -> dict[int, dict[str, float]]:
    """Metrics of the clients' training, under ``train/...`` if a row of another kind has the name.

    Args:
        metrics: Metrics that the clients sent, by client id and name.
        taken: Names of the server's own counts; those of scores are known.

    Example:
        >>> training_metrics({0: {"holdout/accuracy": 1.0, "train/loss": 0.5}}, ())
        {0: {'train/holdout/accuracy': 1.0, 'train/loss': 0.5}}
    """

    def free(name: str) -> str:
        return f"train/{name}" if name in taken or name.partition("/")[0] in SCORE_NAMES else name

    return {i: {free(name): x for name, x in named.items()} for i, named in metrics.items()}
