"""Backbones that wrap networks of the user or of other packages."""

import functools
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core.imports import MissingExtraError, extra, load_class
from fedbolic.core.types import Meta
from fedbolic.nn.network.backbone import Backbone, image_shape


class MeasuredBackbone(Backbone):
    """Backbone whose width is that of the features in one forward pass of two examples of zeros.

    The pass takes place on PyTorch's meta device, which computes shapes and no numbers. A network
    that needs numbers, for instance to choose a branch, makes a second pass on the CPU.
    """

    @override
    def width_for(self, meta: Meta) -> int:
        return _measured_width(self, meta)


@functools.cache
def _measured_width(backbone: Backbone, meta: Meta) -> int:
    """Width of the features of a backbone.

    Raises:
        ValueError: If the network does not take the inputs, or does not give one row of features
            per example.
    """
    try:
        features = _features(backbone, meta, "meta")
    except MissingExtraError:
        raise
    except Exception:  # whatever the network raises without numbers
        try:
            features = _features(backbone, meta, "cpu")
        except Exception as error:
            raise ValueError(
                f"{backbone} does not take batches of inputs of shape {meta.input_shape}: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not (isinstance(features, Tensor) and features.ndim == 2 and len(features) == 2):
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"{backbone} must give one row of features per example, of shape (2, width) for two "
            f"examples, got {found}: end it with nn.Flatten() or a pooling layer"
        )
    return features.shape[1]


def _features(backbone: Backbone, meta: Meta, device: str) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device(device):
        return backbone.build(meta).eval()(torch.zeros(2, *meta.input_shape))


@dataclass(frozen=True)
class OwnNetwork(MeasuredBackbone):
    """Any ``nn.Module`` class as a backbone: its outputs are the features, and a head follows.

    Args:
        module: The class, or its import path such as ``my_package.my_module.MyNet``. A class of a
            notebook has no import path, so such a run cannot be resumed.
        arguments: Keyword arguments of the class: numbers, strings, and lists and dicts of these.

    Raises:
        ValueError: If there is no such class, it is no subclass of ``nn.Module``, or it does not
            take the arguments.

    Example:
        >>> network = OwnNetwork("torch.nn.LazyLinear", {"out_features": 7})
        >>> network.width_for(Meta(num_classes=3, input_shape=(5,), num_clients=1))
        7
    """

    module: str | type[nn.Module]
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        kind, name = self._kind(), self.module
        _refuse_objects(self.arguments)
        if isinstance(name, type) and _has_path(name):
            # one form of the same network, so that a configuration is read back equal
            object.__setattr__(self, "module", f"{name.__module__}.{name.__qualname__}")
        try:
            inspect.signature(kind).bind(**self.arguments)
        except TypeError as error:
            raise ValueError(f"{self.module} does not take {self.arguments}: {error}") from error

    @override
    def build(self, meta: Meta) -> nn.Module:
        return self._kind()(**self.arguments)

    def _kind(self) -> type[nn.Module]:
        if isinstance(self.module, type):
            if not issubclass(self.module, nn.Module):
                raise ValueError(f"{self.module.__name__} is not a subclass of torch.nn.Module")
            return self.module
        try:
            return load_class(self.module, nn.Module)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise ValueError(f"module {self.module!r} cannot be used: {error}") from error


def _has_path(kind: type) -> bool:
    """True if another process could import the class by its path."""
    module = sys.modules.get(kind.__module__)
    known = module is not None and getattr(module, kind.__qualname__, None) is kind
    return known and kind.__module__ != "__main__"


def _refuse_objects(value: Any) -> None:
    """Refuse arguments that a configuration cannot hold.

    Raises:
        ValueError: If a value is no number, string, list or dict.
    """
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            _refuse_objects(item)
    elif not (value is None or isinstance(value, str | int | float | bool)):
        raise ValueError(
            f"arguments must be numbers, strings, lists and dicts, got {value!r}: let the class "
            "build it"
        )


@dataclass(frozen=True)
class Timm(MeasuredBackbone):
    """A network of the package timm, without its head and with random initial values.

    Needs the extra ``timm``.

    Args:
        name: Name of the network, such as ``resnet18``; no address of a hub.
        arguments: Other keyword arguments of ``timm.create_model``, such as ``drop_rate``.

    Raises:
        ValueError: If the name is an address, or an argument is one of this class's; when built, if
            the inputs are no images, or there is no such network.
        MissingExtraError: When built, if timm is not installed.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _refuse_objects(self.arguments)
        if ":" in self.name or "/" in self.name:
            raise ValueError(f"name must be that of a network in timm, got {self.name!r}")
        if taken := {"pretrained", "checkpoint_path", "num_classes", "in_chans", "model_name"} & {
            *self.arguments
        }:
            raise ValueError(f"arguments must not contain {', '.join(sorted(taken))}")

    @override
    def build(self, meta: Meta) -> nn.Module:
        channels, _, _ = image_shape(meta, "Timm")
        with extra("timm", "Timm"):
            timm = importlib.import_module("timm")
        return timm.create_model(
            self.name, pretrained=False, num_classes=0, in_chans=channels, **self.arguments
        )
