"""Joint forms: what a function of a method computes for one client, for many clients at once."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import StackedUpdates, split_columns
from fedbolic.federated.contract.classifier_method import ClassifierMethod, visits_of
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.gradients import counted_loss
from fedbolic.federated.contract.table_method import TableMethod
from fedbolic.nn.network.model import Model
from fedbolic.optim import SGD, Adam

Form = Callable[..., Any]

_FORMS: dict[Callable[..., Any], tuple[Form, tuple[Callable[..., Any], ...]]] = {}


def joint(
    *functions: Callable[..., Any], relies_on: Sequence[Callable[..., Any]] = ()
) -> Callable[[Form], Form]:
    """Decorator that makes a function the joint form of functions of methods.

    A form is found by the function that it replaces. So a method that inherits ``step`` has the
    form of its base, and a method that overrides it has none, until it registers one.

    A joint form takes the method, then the arguments of the function it replaces: tensors have a
    leading axis of clients, ``client`` is a sequence of clients, and a value of a context that
    cannot be stacked, such as a graph, is a :class:`~fedbolic.federated.contract.jagged.Jagged` of
    all. ``axes`` names the client axis of a context, leaf by leaf: 0, or ``None`` for a value that
    all clients share; of ``loss``, of the batch and of the context. The result of a client must
    depend on that client alone.

    Four functions may have a form: ``loss`` and ``step``, which otherwise run under ``vmap``;
    ``finish``, which gives :class:`~fedbolic.federated.aggregators.update.StackedUpdates` or, to
    finish clients one by one, ``None``; and ``evaluate``, which takes ``local`` and ``context`` of
    :meth:`~fedbolic.federated.contract.gradient_method.GradientMethod.scored`, as ``finish`` does,
    and gives the scores of each client by name, on an accelerator as tensors.

    Args:
        functions: Functions of method classes, such as ``FedAvg.step``.
        relies_on: Other functions of these classes that the form does not call, or of which it
            assumes more than their docstrings say. A method has the form only if each of its
            functions of these names is one of them.
    """

    def registered(form: Form) -> Form:
        _FORMS.update(dict.fromkeys(functions, (form, tuple(relies_on))))
        return form

    return registered


def joint_form(method: GradientMethod, name: str) -> Form | None:
    """The joint form of a method's function of this name, without its first argument.

    ``None`` if it has none. A wrapper whose function is that of its inner method has its form, too.
    """
    function = getattr(method, name)
    if not inspect.ismethod(function):  # such as a partial function, which has no definition
        return None
    form, relies_on = _FORMS.get(function.__func__, (None, ()))
    owner = function.__self__  # of a wrapper, the inner method
    known = {getattr(type(owner), of.__name__) for of in relies_on} <= set(relies_on)
    return partial(form, owner) if form and known else None


def overrides(method: GradientMethod, name: str) -> bool:
    """True if a method has its own version of this function of ``GradientMethod``."""
    return getattr(type(method), name) is not getattr(GradientMethod, name)


def joint_losses(
    method: GradientMethod,
    model: Model,
    parameters: Params,
    buffers: Params,
    batch: Params,
    context: Tree,
    *,
    axes: tuple[Tree, Tree],
) -> tuple[Tensor, Params]:
    """Losses and buffers of all clients, the latter with counts of clamped points if there are any.

    Args:
        method: Method whose ``loss`` is computed.
        model: Common architecture of the clients.
        parameters: Stacked parameters.
        buffers: Stacked buffers.
        batch: Stacked batch; ``mask`` excludes the padding of smaller clients.
        context: Joint context.
        axes: Client axes of the batch and of the context.
    """
    if form := joint_form(method, "loss"):
        return form(model, parameters, buffers, batch, context, axes=axes)

    def forward(
        parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        return counted_loss(method.loss, model, parameters, buffers, batch, context)

    return vmap(forward, in_dims=(0, 0, *axes))(parameters, buffers, batch, context)


def joint_steps(
    method: GradientMethod, local: Tree, gradients: Params, context: Tree, *, axes: Tree
) -> Tree:
    """``local`` of all clients after one step.

    Args:
        method: Method whose ``step`` is taken.
        local: Stacked ``local``.
        gradients: Stacked gradients.
        context: Joint context.
        axes: Client axes of the context.
    """
    form = joint_form(method, "step") or partial(mapped_step, method)
    return form(local, gradients, context, axes=axes)


def mapped_step(
    method: GradientMethod, local: Tree, gradients: Params, context: Tree, *, axes: Tree
) -> Tree:
    """Default form of ``step``: the function itself, mapped over clients."""
    return vmap(method.step, in_dims=(0, 0, axes))(local, gradients, context)


def works_by_numbers(optimizer: object) -> bool:
    """True if each number of a step of this optimiser depends on no other number."""
    return type(optimizer) in (SGD, Adam)


def step_by_numbers(
    method: GradientMethod, local: Tree, gradients: Params, context: Tree, *, axes: Tree
) -> Tree:
    """The form of a ``step`` that works number by number if the method's ``optimizer`` does."""
    known = works_by_numbers(method.optimizer)  # type: ignore[attr-defined]
    form = broadcast_step if known else mapped_step
    return form(method, local, gradients, context, axes=axes)


def broadcast_step(
    method: GradientMethod, local: Tree, gradients: Params, context: Tree, *, axes: Tree
) -> Tree:
    """The form of a ``step`` whose operations work number by number, so they need no ``vmap``."""
    del axes
    return method.step(local, gradients, context)


def joint_results(
    method: GradientMethod, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> StackedUpdates | None:
    """Updates and client states of all clients; ``None`` if they are finished one by one.

    Args:
        method: Method whose ``finish`` is computed.
        local: Stacked ``local`` after the last step, with which results may share storage.
        clients: The clients, in the order of the stacked values.
        context: Joint context.
        axes: Client axes of the context.
    """
    form = joint_form(method, "finish")
    return form(local, clients, context, axes=axes) if form else None


joint(TableMethod.step)(broadcast_step)


@joint(ClassifierMethod.finish)
def _classifier_results(
    method: ClassifierMethod, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> StackedUpdates:
    counts = method.counts(local)
    if counts:
        visits = [visits_of(method, client) for client in clients]
        of_all = torch.tensor(visits, device=clients[0].no_inputs.device)
        counts = {name: x.double() / of_all for name, x in counts.items()}
    metrics = split_columns(counts, len(clients))
    payload, client_states = vmap(method.outcome, in_dims=(0, axes))(local, context)
    weights = [method.weight(client) for client in clients]
    return StackedUpdates(payload, client_states, weights, metrics)
