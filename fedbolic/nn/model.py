"""An architecture as a pure function of its parameters and buffers."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedbolic.log import logger
from fedbolic.nn.repeatable import with_own_dropout
from fedbolic.types import Params


class Model:
    """A network without values of its own: these go in with the inputs, and come out.

    Any ``nn.Module`` becomes one; clients then share the architecture and nothing else. Torch's
    dropouts are replaced by those of :mod:`fedbolic.nn.dropout`, and the log says so: their coins
    would come from torch's global random stream, and no run could be repeated.

    Args:
        build: Makes the module; called once for the architecture and once per :meth:`init`.

    Example:
        >>> model = Model(lambda: nn.Linear(3, 2))
        >>> parameters, buffers = model.init(seed=0)
        >>> outputs, _ = model(parameters, buffers, torch.ones(5, 3))
        >>> outputs.shape
        torch.Size([5, 2])
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._module, replaced = self._repeatable(seed=0)
        self._places = _places(self._module)
        self._parts: dict[str, Model] = {}
        if replaced:
            logger.info(
                "dropouts of torch are replaced by fedbolic's, whose coins can be repeated: %s",
                ", ".join(name or type(self._module).__name__ for name in replaced),
            )

    def _repeatable(self, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random stream where it was
            torch.default_generator.manual_seed(seed)
            return with_own_dropout(self._build())

    def _make(self, seed: int) -> nn.Module:
        return self._repeatable(seed)[0]

    @functools.cached_property
    def mixes_examples(self) -> bool:
        """True if a training output depends on the other examples of its batch, as with batch norm.

        Torch's kinds are known; another module says so by an attribute ``mixes_examples``. Without
        running statistics, an output of evaluation does so too.
        """
        return any(
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            or getattr(module, "mixes_examples", False)
            for module in self._module.modules()
        )

    def init(self, seed: int) -> tuple[Params, Params]:
        """Parameters and buffers by the module's own initialisation, the same for one seed."""
        module = self._make(seed)
        parameters = {name: value.detach() for name, value in module.named_parameters()}
        return parameters, dict(module.named_buffers())

    def part(self, name: str) -> "Model":
        """The submodule ``name`` as a model of its own; it ignores the values of other parts."""
        if name not in self._parts:
            self._parts[name] = Model(
                lambda: with_own_dropout(self._build())[0].get_submodule(name)
            )
        return self._parts[name]

    def __call__(
        self, parameters: Params, buffers: Params, *inputs: Any, training: bool = False
    ) -> tuple[Tensor, Params]:
        """The outputs for ``inputs``, and the buffers after them.

        Args:
            parameters: Every parameter by name.
            buffers: Every buffer by name; left untouched.
            *inputs: What the module's ``forward`` takes.
            training: Whether batch norm and dropout act as in training.

        Raises:
            ValueError: If the names are not those of the module.
        """
        if self._module.training != training:
            self._module.train(training)
        if training and buffers:  # batch norm writes into the buffers it is given
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        values = parameters | buffers
        if values.keys() != self._places.keys():
            raise ValueError(
                f"the module has {sorted(self._places)}, and the values given differ in "
                f"{sorted(values.keys() ^ self._places.keys())}"
            )
        held = {name: self._places[name][0].value for name in values}
        try:
            self._hold(values)
            outputs = self._module(*inputs)
            # a module may replace a buffer
            return outputs, {name: self._places[name][0].value for name in buffers}
        finally:
            self._hold(held)

    def _hold(self, values: Params) -> None:
        for name, value in values.items():
            for place in self._places[name]:
                place.values[place.key] = value


class _Place(NamedTuple):
    """Place of a tensor within a module."""

    values: dict[str, Any]
    key: str

    @property
    def value(self) -> Tensor:
        return self.values[self.key]


def _places(module: nn.Module) -> dict[str, list[_Place]]:
    """The places of every parameter and buffer, by the name torch gives it: tied ones have many."""
    names = {id(t): n for n, t in [*module.named_parameters(), *module.named_buffers()]}
    places: dict[str, list[_Place]] = {name: [] for name in names.values()}
    for part in module.modules():
        for values in (part._parameters, part._buffers):
            for key, value in values.items():
                if value is not None:
                    places[names[id(value)]].append(_Place(values, key))
    return places
