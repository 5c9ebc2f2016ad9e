"""Stateless networks: pure functions of parameters, buffers and inputs."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedbolic.core.log import logger
from fedbolic.core.types import Params
from fedbolic.nn.functional.recomputed import keep_activations
from fedbolic.nn.network.repeatable import with_own_dropout


class Model:
    """Stateless network: parameters and buffers are arguments, updated buffers are returned.

    Any ``nn.Module`` can be wrapped; clients then share the architecture and nothing else. Dropout
    layers of torch are replaced by those of :mod:`fedbolic.nn.layers.dropout`, with a log message:
    torch's
    would use the global random stream, and runs would not be reproducible. Segments of the module
    in ``torch.utils.checkpoint`` with ``use_reentrant=False`` keep their activations, because a
    backward pass takes place after the values of a call have left the module.

    Args:
        build: Builds the module; called for the architecture and for each :meth:`init` and
            :meth:`part`.

    Example:
        >>> model = Model(lambda: nn.Linear(3, 2))
        >>> parameters, buffers = model.init(seed=0)
        >>> outputs, _ = model(parameters, buffers, torch.ones(5, 3))
        >>> outputs.shape
        torch.Size([5, 2])
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._held = _Held(lambda: self._repeatable(seed=0))
        replaced = self._held.replaced
        self._parts: dict[str, Model] = {}
        if replaced:
            logger.info(
                "dropouts of torch are replaced by reproducible ones of "
                "fedbolic.nn.layers.dropout: %s",
                ", ".join(name or type(self._module).__name__ for name in replaced),
            )

    @property
    def _module(self) -> nn.Module:
        return self._held.module

    def _repeatable(self, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
        with _BUILDING, torch.random.fork_rng(devices=[]):  # restores the caller's random stream
            torch.default_generator.manual_seed(seed)
            return with_own_dropout(self._build())

    def _make(self, seed: int) -> nn.Module:
        return self._repeatable(seed)[0]

    @functools.cached_property
    def mixes_examples(self) -> bool:
        """True if a training output depends on the other examples of its batch, as with batch norm.

        Torch's batch norms are recognised; other modules declare an attribute ``mixes_examples``.
        Batch norm without running statistics mixes examples in evaluation, too.
        """
        return any(
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            or getattr(module, "mixes_examples", False)
            for module in self._module.modules()
        )

    def init(self, seed: int) -> tuple[Params, Params]:
        """Initial parameters and buffers of the module; equal seeds give equal values."""
        module = self._make(seed)
        parameters = {name: value.detach() for name, value in module.named_parameters()}
        return parameters, dict(module.named_buffers())

    def part(self, name: str) -> "Model":
        """The submodule ``name`` as a separate model, which takes the values of that part alone."""
        if name not in self._parts:
            self._parts[name] = Model(
                lambda: with_own_dropout(self._build())[0].get_submodule(name)
            )
        return self._parts[name]

    def layers(self) -> dict[str, nn.Module]:
        """All modules of the network by path; the network itself has the empty path."""
        return dict(self._module.named_modules())

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[list[Tensor]]:
        """Collect the outputs of the submodule ``name`` in a list while the model is called.

        Raises:
            ValueError: If the module has no such submodule.

        Example:
            >>> model = Model(lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
            >>> with model.recording("0") as outputs:
            ...     activations, _ = model(*model.init(seed=0), torch.ones(5, 3))
            >>> torch.equal(outputs[0].relu(), activations)
            True
        """
        known = {path: module for path, module in self._module.named_modules() if path}
        if name not in known:
            raise ValueError(f"the model has no layer {name!r}, only {', '.join(known)}")
        outputs: list[Tensor] = []
        handle = known[name].register_forward_hook(lambda *given: outputs.append(given[-1]))
        try:
            yield outputs
        finally:
            handle.remove()

    def __call__(
        self, parameters: Params, buffers: Params, *inputs: Any, training: bool = False
    ) -> tuple[Tensor, Params]:
        """The outputs for ``inputs``, and the updated buffers.

        Args:
            parameters: Every parameter by name.
            buffers: Every buffer by name; not modified.
            *inputs: Arguments of the module's ``forward``.
            training: Whether to run in training mode, which affects batch norm and dropout.

        Raises:
            ValueError: If the names of the values are not those of the module.
        """
        held = self._held  # looked up once: it is local to the thread
        module, slots, places = held.module, held.slots, held.places
        if module.training != training:
            module.train(training)
        if training and buffers:  # batch norm updates its buffers in place
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        values = {**parameters, **buffers}
        if values.keys() != places.keys():
            raise ValueError(
                f"parameters and buffers must be those of the module, {sorted(places)}: "
                f"missing or unknown are {sorted(values.keys() ^ places.keys())}"
            )
        before = [tensors[key] for _, tensors, key in slots]
        keeping = keep_activations(True)
        try:
            for name, tensors, key in slots:
                tensors[key] = values[name]
            outputs = module(*inputs)
            # read back from the module, which may have replaced a buffer
            return outputs, {name: places[name].value for name in buffers}
        finally:
            keep_activations(keeping)
            for (_, tensors, key), value in zip(slots, before, strict=True):
                tensors[key] = value


_BUILDING = threading.RLock()
"""Held while a module is built from torch's global random stream, which threads share."""


class _Held(threading.local):
    """The module of a thread: a call puts values into it, so threads cannot share one.

    Args:
        build: Builds the module, once in every thread that uses it.
    """

    def __init__(self, build: Callable[[], tuple[nn.Module, tuple[str, ...]]]) -> None:
        self.module, self.replaced = build()
        self.slots = _slots(self.module)
        self.places = {slot.name: slot for slot in reversed(self.slots)}


class _Slot(NamedTuple):
    """Place of a tensor in a module.

    Args:
        name: Name of the parameter or buffer.
        tensors: Dictionary of the submodule that holds it.
        key: Its key there.
    """

    name: str
    tensors: dict[str, Any]
    key: str

    @property
    def value(self) -> Tensor:
        return self.tensors[self.key]


def _slots(module: nn.Module) -> list[_Slot]:
    """Slots of all parameters and buffers; tied tensors have several."""
    names = {id(t): n for n, t in [*module.named_parameters(), *module.named_buffers()]}
    return [
        _Slot(names[id(value)], tensors, key)
        for part in module.modules()
        for tensors in (part._parameters, part._buffers)
        for key, value in tensors.items()
        if value is not None
    ]
