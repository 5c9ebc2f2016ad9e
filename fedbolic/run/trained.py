"""Trained models as PyTorch modules."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Source
from fedbolic.federated.scores.score import Predictor

OVERSHOOT = 0.1
"""Distance beyond [0, 1] that pixels may have, as after resampling with cubic splines."""

VALUES = ("parameters", "buffers")
"""Entries of ``local`` that hold the values of a network by name."""


class TrainedModel(nn.Module):
    """A trained classifier with the preprocessing of its run; gives one logit per class.

    It takes a batch of inputs as the data set holds them: images with channels first as bytes, or
    as floats in [0, 1]; rows of features as they are. It always predicts in evaluation mode, even
    after ``train()``. The names of its parameters are those of the network, after ``network.``;
    whatever else predictions depend on, such as prototypes, are buffers after ``fixed.``.

    Args:
        predictor: Method that predicts.
        local: Trained values of the method's model.
        context: Fixed values of the method's predictions.
        source: Source of the data, which preprocesses inputs.
        meta: Facts about the federation.
        card: Description of the model as plain values, for people and for other programs.
    """

    def __init__(
        self,
        predictor: Predictor,
        local: Tree,
        context: Tree,
        *,
        source: Source,
        meta: Meta,
        card: dict[str, Any],
    ) -> None:
        super().__init__()
        self.source, self.meta, self.card = source, meta, card
        self._predictor = predictor
        self.network, self.fixed = nn.Module(), nn.Module()
        whole = {"local": local, "context": context}
        for name, value in local["parameters"].items():
            _holder(self.network, name).register_parameter(name.rpartition(".")[2], _own(value))
        for name, value in local["buffers"].items():
            _holder(self.network, name).register_buffer(name.rpartition(".")[2], value.clone())
        rest = {"local": {n: v for n, v in local.items() if n not in VALUES}, "context": context}
        names = {id(value): f"network.{n}" for kind in VALUES for n, value in local[kind].items()}
        self._rest = self._fix(rest, (), self._tensors_read(whole), names)
        self.eval()

    @property
    def example(self) -> Tensor:
        """A batch of two inputs of zeros, in the form that the model takes."""
        shape = (2, *self.source.raw_shape(self.meta.input_shape))
        value = next(iter(self.parameters()), torch.zeros(()))
        return torch.zeros(shape, device=value.device)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of inputs.

        Raises:
            ValueError: If images are floats of another range than [0, 1]; not in a compiled model.
        """
        if not torch.compiler.is_compiling():  # also true during an export
            _refuse_other_range(x)
        filled = _fill(self._rest, {**dict(self.named_parameters()), **dict(self.named_buffers())})
        values = {
            "parameters": dict(self.network.named_parameters()),
            "buffers": dict(self.network.named_buffers()),
        }
        return self._predict({**filled, "local": {**filled["local"], **values}}, x)

    def _predict(self, whole: Tree, x: Tensor) -> Tensor:
        x = self.source.preprocess(x)
        parameter = next((p for p in whole["local"]["parameters"].values()), x)
        x = x.to(parameter.dtype) if x.is_floating_point() else x
        model = self._predictor.model(self.meta)
        return self._predictor.predict(model, whole["local"], {"x": x}, whole["context"])

    def _tensors_read(self, whole: Tree) -> set[int]:
        """Identities of the tensors that a prediction reads."""
        with _Reading() as reading, torch.no_grad():
            self._predict(whole, self.example)
        return reading.found

    def _fix(
        self, values: Tree, path: tuple[str, ...], read: set[int], names: dict[int, str]
    ) -> Tree:
        """Register the tensors of a tree that are read; the result has their names instead.

        Args:
            values: The tree.
            path: Keys that lead to it.
            read: Identities of the tensors that are read; all others are left out.
            names: Names of the tensors that are registered already, by identity.
        """
        named: Tree = {}
        for key, value in values.items():
            if isinstance(value, Mapping):
                named[key] = self._fix(dict(value), (*path, key), read, names)
            elif not isinstance(value, Tensor):
                named[key] = value
            elif id(value) in read:
                name = "/".join((*path, key)).replace(".", "/")
                if id(value) not in names:
                    # by rows, because torch.export warns of a transposed matrix
                    copied = value.detach().clone(memory_format=torch.contiguous_format)
                    self.fixed.register_buffer(name, copied)
                named[key] = _Name(names.setdefault(id(value), f"fixed.{name}"))
        return named


class _Name(str):
    """Name of a buffer that stands for a tensor of a tree."""

    __slots__ = ()


def _fill(named: Tree, values: Params) -> Tree:
    """The tree with the values instead of their names."""
    return {
        key: _fill(value, values)
        if isinstance(value, dict)
        else values[value]
        if isinstance(value, _Name)
        else value
        for key, value in named.items()
    }


class _Reading(TorchDispatchMode):
    """Context manager that records the tensors which operators receive."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found |= {id(leaf) for leaf in tree_leaves((args, kwargs or {}))}
        return func(*args, **(kwargs or {}))


def _own(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().clone(), requires_grad=value.is_floating_point())


def _holder(module: nn.Module, name: str) -> nn.Module:
    """The submodule that holds the tensor of a dotted name, created if it is missing."""
    for part in name.split(".")[:-1]:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    return module


def _refuse_other_range(x: Tensor) -> None:
    """Refuse images that were scaled otherwise, such as those of loaded data, in [-1, 1]."""
    if x.ndim > 2 and x.is_floating_point() and x.numel():
        low, high = (float(value) for value in x.detach().aminmax())
        if low < -OVERSHOOT or high > 1 + OVERSHOOT:
            raise ValueError(
                f"images must be bytes, or floats in [0, 1], got floats from {low:.4g} to "
                f"{high:.4g}: rescale them; those of loaded federated data are in [-1, 1], so take "
                "(x + 1) / 2"
            )


def values_of(model: TrainedModel) -> Params:
    """Tensors of a model by name; those of the network have the names that the run uses."""
    return {name.removeprefix("network."): value for name, value in model.state_dict().items()}
