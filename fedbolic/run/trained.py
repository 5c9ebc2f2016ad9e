"""Trained models of finished runs, as PyTorch modules."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbolic.core import check, tree
from fedbolic.core.checksums import DamagedError, refuse_edited
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import HOLDOUT, Client, Examples, Source
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.server_states import check_server_state
from fedbolic.federated.scores.score import Predictor
from fedbolic.run.computing import DTYPES
from fedbolic.run.configuration import SetupError, build, setting_up
from fedbolic.run.experiment import load_data, run
from fedbolic.run.record import RunFolder

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
                    self.fixed.register_buffer(name, value.detach().clone())
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


def load(path: str | Path, *, client: int | None = None) -> TrainedModel:
    """Load the trained model of a run as a PyTorch module in evaluation mode.

    The configuration of a run is code, as for ``fedbolic resume``: load no folder that you would
    not run. The global model needs no data. A personal model is loaded with the client's data,
    which it may depend on.

    Args:
        path: Folder of the run, such as ``runs/fedavg/seed0``.
        client: Id of the client whose personal model is loaded; ``None`` for the global model.

    Raises:
        SetupError: If there is no run, its configuration was edited, the method has no such model,
            there is no such client, or the model takes anything but one tensor of inputs.

    Example:
        >>> import tempfile
        >>> from fedbolic.run import run
        >>> from fedbolic.methods import FedAvg
        >>> folder = run(FedAvg(rounds=1), runs=Path(tempfile.mkdtemp()))
        >>> model = load(folder)
        >>> model(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([3, 10])
    """
    with setting_up():
        folder = RunFolder.open(Path(path))
        made = folder.environment
        refuse_edited(folder.config, made.get("config"))
        settings = build(run, ["--config", str(folder.config)])
        checkpoint = folder.read_checkpoint()
        facts = made.get("data")
        dtype, method = DTYPES[settings["precision"]], settings["method"]
        party, names = _party(settings, facts, dtype, client)
        initial = tree.to(method.init(party.meta, Rng(settings["seed"])), "cpu", dtype)
        stored = checkpoint["server_state"]
        check_server_state(folder.checkpoint, method, stored, initial, party.id)
        if checkpoint["round"] < method.rounds:
            done = f"{checkpoint['round']} of {method.rounds} rounds"
            logger.warning("%s has completed %s: its model is that of then", folder.path, done)
        found = _predictor(method, checkpoint, party, folder.checkpoint)
        if found is None:
            raise SetupError(_no_model(type(method).__name__, client))
        card = _card(folder, settings, checkpoint, party.meta, names, client)
        try:
            return TrainedModel(*found, source=settings["data"], meta=party.meta, card=card)
        except (LookupError, RuntimeError) as error:
            raise SetupError(
                f"{type(method).__name__} predicts from more than one tensor of inputs, so its "
                f"model cannot stand alone: {error!r}"
            ) from error


def _predictor(
    method: Method, checkpoint: Mapping[str, Any], party: Client, file: Path
) -> tuple[Predictor, Tree, Tree] | None:
    """The predictor of a stored model; whatever the method raises, the file is damaged."""
    message = method.broadcast(checkpoint["server_state"], party.id)
    try:
        return method.predictor(message, party, checkpoint["client_states"].get(party.id, {}))
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        fault = f"holds no model of {type(method).__name__}: {error!r}"
        raise DamagedError(file, fault) from error


def _party(
    settings: dict[str, Any], facts: Any, dtype: torch.dtype, client: int | None
) -> tuple[Client, tuple[str, ...]]:
    """The client whose model is loaded, or the server's test set without examples."""
    if client is None and facts is not None:
        meta = _read_facts(facts)
        x = torch.zeros(0, *meta.input_shape, dtype=dtype)
        none = Examples({"x": x, "y": torch.zeros(0, dtype=torch.int64)})
        return Client(HOLDOUT, none, none, none, meta), tuple(facts["class_names"])
    data = load_data(settings).to("cpu", dtype)
    if client is None:
        none = data.clients[0].train.part(torch.arange(0))
        return Client(HOLDOUT, none, none, none, data.meta), data.class_names
    if not 0 <= client < len(data.clients):
        raise SetupError(f"there is no client {client}: the ids are 0 .. {len(data.clients) - 1}")
    return data.clients[client], data.class_names


def _read_facts(facts: Any) -> Meta:
    """Facts about the data as recorded, checked before a model of that size is made."""
    own = facts if isinstance(facts, dict) else {}
    num_classes, num_clients = own.get("num_classes"), own.get("num_clients")
    shape, names = own.get("input_shape"), own.get("class_names")
    if isinstance(shape, list) and isinstance(names, list):
        counts = [x for x in (num_classes, num_clients, *shape) if type(x) is int and x >= 0]
        possible = len(counts) == 2 + len(shape) and counts[0] <= check.MOST_CLASSES
        if possible and math.prod(counts[2:]) <= check.MOST_FEATURES:
            return Meta(counts[0], tuple(counts[2:]), counts[1])
    raise SetupError("environment.json is damaged: its facts about the data are impossible")


def _no_model(method: str, client: int | None) -> str:
    if client is None:
        return f"{method} has no global model: give client=0 for a personal one, if it has any"
    return f"{method} has no network of client {client} that gives logits"


def _card(
    folder: RunFolder,
    settings: dict[str, Any],
    checkpoint: dict[str, Any],
    meta: Meta,
    class_names: tuple[str, ...],
    client: int | None,
) -> dict[str, Any]:
    made, kind = folder.environment, type(settings["method"])
    return {
        "method": f"{kind.__module__}.{kind.__qualname__}",
        "client": client,
        "rounds": checkpoint["round"],
        "seed": settings["seed"],
        "num_classes": meta.num_classes,
        "class_names": list(class_names),
        "input_shape": list(settings["data"].raw_shape(meta.input_shape)),
        "packages": made.get("packages"),
        "commit": made.get("commit"),
    }


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
