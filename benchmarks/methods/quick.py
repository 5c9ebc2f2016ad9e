"""Quick configurations of every method, ``configs/**/quick.yaml``, and shorter runs of them."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedbolic.data import Client, FederatedData, Split
from fedbolic.data.contract.source import Source
from fedbolic.federated import Method
from fedbolic.federated.contract.wrapping_method import DelegatedSteps

FOLDER = Path(__file__).parents[2] / "configs"
NAMES = tuple(str(file.parent.relative_to(FOLDER)) for file in sorted(FOLDER.rglob("quick.yaml")))


def settings(name: str) -> tuple[Method, Source]:
    """Method and data of a configuration, read with PyYAML alone: a borrowed GPU has no more."""
    import yaml

    given = yaml.safe_load((FOLDER / name / "quick.yaml").read_text())
    return _built(given["method"], Method), _built(given["data"], Source)


def _built(value: Any, kind: Any) -> Any:
    """The value of a field of this type."""
    kinds = typing.get_args(kind) or (kind,)
    if isinstance(value, dict) and "class_path" in value:
        return _made(_imported(value["class_path"]), value.get("init_args", {}))
    if isinstance(value, dict):
        made = [each for each in kinds if dataclasses.is_dataclass(each)]
        return _made(made[0], value) if made else value
    if isinstance(value, str) and str not in kinds and "." in value and not value[0].isdigit():
        return _imported(value)()
    if isinstance(value, list):
        return tuple(_built(each, kinds[0]) for each in value)
    if float in kinds and isinstance(value, int | str) and not isinstance(value, bool):
        return float(value)  # PyYAML reads 1e-3 as text
    return value


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    types = typing.get_type_hints(kind)
    return kind(**{name: _built(value, types.get(name)) for name, value in given.items()})


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def shortened(method: Method, batch_size: int | None = None) -> Method:
    """The method with at most two rounds of one epoch, as far as it has these settings.

    Args:
        method: The method, which may wrap another one.
        batch_size: Size of its batches instead of its own, unless an epoch is one step.

    Example:
        >>> from fedbolic.methods import FedAvg
        >>> shortened(FedAvg(rounds=20)).rounds
        2
    """
    fields = {field.name for field in dataclasses.fields(method) if field.init}  # type: ignore[arg-type]
    new: dict[str, object] = {"rounds": min(method.rounds, 2)} if "rounds" in fields else {}
    for name in {"local", "method"} & fields:
        value = getattr(method, name)
        if name == "method":
            new[name] = shortened(value, batch_size)
        else:
            size = batch_size if batch_size and value.batch_size else value.batch_size
            new[name] = dataclasses.replace(value, epochs=1, batch_size=size)
    return dataclasses.replace(method, **new)  # type: ignore[type-var]


def visiting(method: Method, visits: int) -> Method:
    """The method, or the one that it wraps, with some number of steps on each batch."""
    if isinstance(method, DelegatedSteps):
        return dataclasses.replace(method, method=visiting(method.method, visits))
    local = dataclasses.replace(method.local, repeats=visits)  # type: ignore[attr-defined]
    return dataclasses.replace(method, local=local)  # type: ignore[type-var]


def first_clients(
    data: FederatedData,
    num_clients: int,
    cut: Callable[[Split, int], Split] = lambda split, _: split,
) -> FederatedData:
    """The federation of the first clients alone, each split cut by a function of it and the id."""
    clients = data.clients[:num_clients]
    meta = dataclasses.replace(data.meta, num_clients=len(clients))

    def of(client: Client) -> Client:
        parts = {name: cut(getattr(client, name), client.id) for name in ("train", "test")}
        return dataclasses.replace(client, meta=meta, **parts)

    return FederatedData(tuple(of(client) for client in clients), meta, data.holdout)
