"""Methods that train by gradient steps, in separate parts so that an engine can batch clients."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import HOLDOUT, Client, Split
from fedbolic.federated.aggregators.update import Update, host_or_scalar
from fedbolic.federated.contract.gradients import Leaves, differentiate
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.scores.score import score
from fedbolic.nn.functional.clamped import COUNTS
from fedbolic.nn.layers.dropout import SEED
from fedbolic.nn.network.model import Model


@dataclass(frozen=True)
class LocalTraining:
    """Number and size of the local steps of one round.

    Args:
        epochs: Passes over the training data, at least 1.
        batch_size: Examples per step, at least 1; ``None`` for all examples of the client.
        repeats: Consecutive steps on each batch, at least 1.
        clip_norm: Largest norm of a step's gradient over all parameters, above 0; longer gradients
            are scaled down to it. ``None`` for no bound.

    Raises:
        ValueError: If a count is below 1, or ``clip_norm`` is not positive.
    """

    epochs: int = 5
    batch_size: int | None = 128
    repeats: int = 1
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check.at_least(1, epochs=self.epochs, repeats=self.repeats)
        if self.batch_size is not None:
            check.at_least(1, batch_size=self.batch_size)
        if self.clip_norm is not None:
            check.positive(clip_norm=self.clip_norm)

    def order(
        self, size: int, rng: Rng
    ) -> tuple[Int[Tensor, "steps batch"], Int[Tensor, " steps"]]:
        """Positions of the examples of every batch of a round, and the length of every batch.

        Each epoch is a new permutation. The last batch of an epoch is short if the batch size does
        not divide ``size``; its row is padded with position 0.
        """
        generator = rng.at("order").generator()
        batch_size = max(1, min(self.batch_size or size, size))
        lengths = _lengths(size, batch_size, self.epochs, self.repeats)
        num_batches = -(-size // batch_size)
        epochs = [torch.randperm(size, generator=generator) for _ in range(self.epochs)]
        positions = torch.stack(epochs) if self.epochs > 1 else epochs[0].unsqueeze(0)
        if missing := num_batches * batch_size - size:
            positions = pad(positions, (0, missing))
        positions = positions.view(-1, batch_size)
        if self.repeats > 1:
            positions = positions.repeat_interleave(self.repeats, dim=0)
        return positions, lengths

    def clip(self, gradients: Params, *, num_axes: int = 0) -> Params:
        """Gradients whose norm is at most ``clip_norm``.

        Args:
            gradients: By parameter.
            num_axes: Leading axes of clients, each with a separate gradient and norm.
        """
        if self.clip_norm is None or not gradients:
            return gradients
        squares = [g.double().square().flatten(num_axes).sum(-1) for g in gradients.values()]
        factor = (self.clip_norm / torch.stack(squares).sum(0).sqrt()).clamp(max=1)

        def scaled(g: Tensor) -> Tensor:
            return g * factor.to(g.dtype).view(factor.shape + (1,) * (g.ndim - num_axes))

        return {name: scaled(g) for name, g in gradients.items()}


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Batches and random draws of one client's round, fixed before the first step.

    Args:
        positions: Positions of the examples of every step; position 0 pads short batches.
        lengths: Number of valid positions in each row of ``positions``.
        draws: Random numbers, with a leading axis of steps.
    """

    positions: Int[Tensor, "steps batch"]
    lengths: Int[Tensor, " steps"]
    draws: Params

    @property
    def num_visits(self) -> int:
        """Number of examples in all batches."""
        return sum(self.lengths.tolist())

    def cut(self, num_steps: int) -> "BatchPlan":
        """The first steps of the plan.

        Args:
            num_steps: Number of steps to keep, at least 0.
        """
        draws = {name: draw[:num_steps] for name, draw in self.draws.items()}
        return BatchPlan(self.positions[:num_steps], self.lengths[:num_steps], draws)


class GradientMethod(Method):
    """A method whose clients take gradient steps on batches of their examples.

    ``local_update`` defines the local work of one client. An engine may run the separate parts for
    many clients at once, and must reach the same result up to rounding. ``local`` holds everything
    that changes during local work: ``parameters``, ``buffers``, the optimiser's state, counters.
    ``context`` holds everything that stays constant: ``shared`` by all clients of a round, or a
    client's ``own``. Both are nested dicts of tensors, with the same keys and shapes for all
    clients of the same architecture.
    """

    local: LocalTraining

    traits = Traits(repeatable=True, common_features=True)

    @abstractmethod
    def model(self, meta: Meta) -> Model:
        """Architecture to train; the same object for the same ``meta``."""

    @abstractmethod
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        """``(local, context)`` before the first step.

        Both may share storage with the arguments, so the caller copies ``local`` before it takes
        steps.
        """

    def examples(self, client: Client) -> Split:
        """Examples for the local steps of a client; by default its whole training split."""
        return client.train

    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        """All randomness of one client's round, with a leading axis of steps; by default empty.

        Draws for single examples have a second axis of ``batch_size``; a short batch uses the
        leading entries. With jagged contexts there is no other second axis.
        """
        del num_steps, batch_size, generator
        return {}

    @abstractmethod
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        """Loss of every example of a batch, and the buffers after it.

        ``batch`` holds the examples, ``mask`` (the valid examples), ``visit`` (the repeat of the
        batch, from 0) and the draws of this step. The caller masks and averages the losses.
        """

    @abstractmethod
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        """``local`` after one step; the result may reuse the storage of ``local``."""

    @abstractmethod
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        """Update that the client sends and client state that it keeps, after the last step.

        Both may share storage with ``local``, as may the result of :meth:`step`.
        """

    @abstractmethod
    def predict(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Logits of every example, one per class; the largest is the prediction."""

    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree] | None:
        """``(local, context)`` to score; ``None`` if there is no model.

        By default those of :meth:`start`; without a global model, the server's test set has none. A
        method that overrides :meth:`evaluate` is scored client by client.
        """
        if client.id == HOLDOUT and not self.traits.global_model:
            return None
        return self.start(message, client, client_state)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        held = self.scored(message, client, client_state)
        return {} if held is None else score(self, *held, client)

    def features(self, model: Model, local: Tree, batch: Params, context: Tree) -> Tensor:
        """Features of every example, one row each; by default the output of the part ``body``."""
        del context
        body, buffers = (tree.part(local[kind], "body.") for kind in ("parameters", "buffers"))
        return model.part("body")(body, buffers, batch["x"])[0]

    def fine_tuning(self, epochs: int, lr: float | None) -> "GradientMethod | None":
        """The method that fine-tunes at the clients for a personalised score.

        By default ``None``: there is no such score.

        Args:
            epochs: Passes over the local training data.
            lr: Step size; ``None`` for the method's own.
        """
        del epochs, lr
        return None

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        model, local, context, plan = self.begin(message, client, client_state, rng)
        local = tree.clone(local)
        losses, counts, leaves = [], [], Leaves()
        for batch in batches(self, client, plan):
            inputs = leaves.of(local["parameters"]), local["buffers"], batch, context
            of_batch, gradients, buffers = differentiate(self.loss, model, *inputs)
            counts += [buffers.pop(COUNTS)] if COUNTS in buffers else []
            with torch.no_grad():
                gradients = self.local.clip(gradients)
                local = self.step({**local, "buffers": buffers}, gradients, context)
            losses.append(of_batch)
        local = tree.map_tensors(lambda x: x.detach() if x.requires_grad else x, local)
        together = losses if len(losses) < 2 else [torch.cat(losses)]
        loss = together[0].sum() if together else 0.0
        clamped = torch.stack(counts).sum(0).tolist() if counts else ()
        update, client_state = self.finish(without_seeds(local), client, context)
        counted = {"examples": client.size, "visits": plan.num_visits, "clamped": clamped}
        metrics = {**metrics_of_training(loss, **counted), **update.metrics}
        return Update(update.payload, update.weight, metrics, update.row), client_state

    def begin(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Model, Tree, Tree, BatchPlan]:
        """Model, ``local``, ``context`` and batch plan of one client's round.

        ``local`` and ``context`` are those of :meth:`start`, with dropout seeds of this round.
        """
        model = self.model(client.meta)
        local, context = self.start(message, client, client_state)
        buffers = _with_seeds(local["buffers"], lambda name: rng.at("dropout", name).number())
        return model, {**local, "buffers": buffers}, context, self.plan(model, client, rng)

    def plan(self, model: Model, client: Client, rng: Rng) -> BatchPlan:
        """Batches and random draws of one client's round.

        A model that mixes the examples of a batch, as batch norm does, skips batches of one
        example.
        """
        positions, lengths = self.local.order(client.size, rng)
        if model.mixes_examples:  # one example has no variance to divide by
            positions, lengths = positions[lengths > 1], lengths[lengths > 1]
        batch_size = self.local.batch_size or client.size
        draws: Params = {}
        if type(self).draw is not GradientMethod.draw:  # a generator costs as much as an order
            draws = self.draw(len(lengths), batch_size, rng.at("draw").generator())
        return BatchPlan(positions, lengths, draws)


def batches(method: GradientMethod, client: Client, plan: BatchPlan) -> Iterator[Params]:
    """Batches of one client's round, in order, with every entry that ``loss`` may read.

    Args:
        method: Method whose steps are taken.
        client: The client that takes them.
        plan: Batch plan of the round.
    """
    device = client.no_inputs.device
    positions = plan.positions.to(device).unbind()  # rows cost less together than one by one
    draws = {name: draw.to(device).unbind() for name, draw in plan.draws.items()}
    width = plan.positions.shape[1]
    present, visits = _present(width, device), _visits(method.local.repeats, device)
    examples = method.examples(client)
    for i, length in enumerate(plan.lengths.tolist()):
        index, mask = positions[i], present
        if length < width:
            index, mask = index[:length], mask[:length]
        yield {
            **examples.at(index),
            "mask": mask,
            "visit": visits[i % method.local.repeats],
            **{name: rows[i] for name, rows in draws.items()},
        }


def metrics_of_training(
    loss: Tensor | float, *, examples: int, visits: int, clamped: Sequence[int | float] = ()
) -> dict[str, float | Tensor]:
    """Metrics of a client's training, if there was a step.

    They are the mean training loss, the number of examples and, for a model with ball layers, the
    fraction of points that these layers clamped.

    Args:
        loss: Sum of all losses, each example counted once per visit.
        examples: Number of training examples.
        visits: Number of visits to them.
        clamped: Number of clamped points, and number of all points that ball layers received;
            empty if there is no such layer.
    """
    if not visits:
        return {}
    outside, points = clamped or (0, 0)
    return {
        "train/loss": host_or_scalar(loss) / visits,
        "train/examples": examples,
        **({"train/clamped_fraction": outside / points} if points else {}),
    }


def without_seeds(local: Tree) -> Tree:
    """``local`` of one client or of several, with dropout seeds of 0: they are never sent."""
    return {**local, "buffers": _with_seeds(local["buffers"], lambda name: 0)}


def _with_seeds(buffers: Params, seed: Callable[[str], int]) -> Params:
    """Buffers with new dropout seeds, chosen by buffer name."""
    names = _seeds(tuple(buffers))
    seeds = {name: torch.full_like(buffers[name], seed(name)) for name in names}
    return {**buffers, **seeds} if seeds else buffers


@functools.lru_cache(maxsize=64)
def _seeds(names: tuple[str, ...]) -> list[str]:
    """Names of dropout seeds among those of buffers."""
    return [name for name in names if name.rpartition(".")[2] == SEED]


@functools.lru_cache(maxsize=64)
def _present(width: int, device: torch.device) -> Tensor:
    return torch.ones(width, dtype=torch.bool, device=device)


@functools.lru_cache(maxsize=64)
def _visits(repeats: int, device: torch.device) -> tuple[Tensor, ...]:
    return torch.arange(repeats, device=device).unbind()


@functools.lru_cache(maxsize=1024)  # reused by clients of equal size, in every round
def _lengths(size: int, batch_size: int, epochs: int, repeats: int) -> Tensor:
    of_epoch = (size - torch.arange(0, size, batch_size)).clamp(max=batch_size)
    return of_epoch.repeat(epochs).repeat_interleave(repeats)
