"""An architecture as a pure function of its parameters and buffers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbolic.types import Params


class Model:
    """A network without values of its own: these go in with the inputs, and come out.

    Any ``nn.Module`` becomes one; clients then share the architecture and nothing else.

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
        self._module = self._make(seed=0)
        self._parts: dict[str, Model] = {}

    def _make(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random stream where it was
            torch.default_generator.manual_seed(seed)
            return self._build()

    @property
    def mixes_examples(self) -> bool:
        """Whether an output of training depends on the other examples of its batch: batch norm.

        Without running statistics, an output of evaluation does so too.
        """
        return any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self._module.modules()
        )

    def init(self, seed: int) -> tuple[Params, Params]:
        """Parameters and buffers by the module's own initialisation, the same for one seed."""
        module = self._make(seed)
        parameters = {name: value.detach() for name, value in module.named_parameters()}
        return parameters, dict(module.named_buffers())

    def part(self, name: str) -> "Model":
        """The submodule ``name`` as a model of its own; it ignores the values of other parts."""
        if name not in self._parts:
            self._parts[name] = Model(lambda: self._build().get_submodule(name))
        return self._parts[name]

    def __call__(
        self, parameters: Params, buffers: Params, *inputs: Tensor, training: bool = False
    ) -> tuple[Tensor, Params]:
        """The outputs for ``inputs``, and the buffers after them.

        Args:
            parameters: Every parameter by name.
            buffers: Every buffer by name; left untouched.
            *inputs: What the module's ``forward`` takes.
            training: Whether batch norm and dropout act as in training.
        """
        if self._module.training != training:
            self._module.train(training)
        if training and buffers:  # batch norm writes into the buffers it is given
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        values = {**parameters, **buffers}
        outputs = functional_call(self._module, values, inputs, strict=True)
        return outputs, {name: values[name] for name in buffers}  # a module may replace a buffer
