"""The data of a run, what is recorded of them, and the methods that learn from such data."""

import dataclasses
import inspect
from typing import Any

import torch

from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData, Hierarchy, HierarchySplit, Split, TripleSplit
from fedbolic.federated.contract.engine import Remote
from fedbolic.run.configuration import import_class, one_line
from fedbolic.run.public_classes import METHODS, heirs


def load_data(settings: dict[str, Any], nodes: Remote | None = None) -> FederatedData:
    """Load the data given in settings of :func:`~fedbolic.run.experiment.run`.

    Args:
        settings: Settings with ``data`` and ``seed``.
        nodes: Remote clients, which hold their own data; only the server's test set is kept from
            the data loaded here. ``None`` for clients in this process.
    """
    rng = Rng(settings["seed"]).at("data")
    if nodes is None:
        return settings["data"].load(rng)
    try:
        data = settings["data"].load(rng)
    except FileNotFoundError as error:
        logger.warning("the server has no test set: %s", one_line(error))
        return nodes.federation(None)
    own = data.holdout and dataclasses.replace(data.holdout, class_names=data.class_names)
    return nodes.federation(own)


def facts_of(data: FederatedData) -> dict[str, Any]:
    """Facts about the data that a trained model needs outside the federation.

    Args:
        data: Federated data.
    """
    facts = {**dataclasses.asdict(data.meta), "class_names": list(data.class_names)}
    return facts | ({"numbering": numbering} if (numbering := numbering_of(data)) else {})


def numbering_of(data: FederatedData) -> str:
    """Digest of what numbers in the data stand for, such as nodes; empty if nothing does.

    Args:
        data: Federated data.
    """
    if data.holdout is not None:
        return data.holdout.test.numbering
    return data.clients[0].train.numbering if data.clients else ""


def is_private(settings: dict[str, Any]) -> bool:
    """True if noise protects the clients of a run, so that no result may show their data.

    Args:
        settings: Settings of :func:`~fedbolic.run.experiment.run`.
    """
    unit = settings["method"].traits.privacy_unit
    return settings["privacy"] is not None or unit is not None


def shown_data(data: FederatedData, settings: dict[str, Any]) -> FederatedData:
    """The data that results of a run may show, which of a private run are no client's.

    A private run shows the server's test set, but of hierarchies and triples the names alone: in
    one process, that test set consists of the clients' own pairs.

    Args:
        data: Federated data.
        settings: Settings of the run.
    """
    if not is_private(settings):
        return data
    server = data.holdout
    if server is not None:
        server = dataclasses.replace(server, test=_names_alone(server.test))
    return dataclasses.replace(data.without_clients(), holdout=server)


def _names_alone(split: Split) -> Split:
    if isinstance(split, HierarchySplit):
        none = Hierarchy(split.hierarchy.names, torch.empty(0, 2, dtype=torch.int64))
        return dataclasses.replace(split, hierarchy=none, held=None)
    if isinstance(split, TripleSplit):
        none = torch.empty(0, 3, dtype=torch.int64)
        return dataclasses.replace(split, triples=none, known=none)
    return split


def suited_methods(kind: type[Split]) -> list[str]:
    """Import paths of the methods that, as they are by default, learn from a kind of examples.

    Args:
        kind: Kind of examples.

    Example:
        >>> from fedbolic.data import HierarchySplit
        >>> "fedbolic.hierarchies.HierarchyEmbedding" in suited_methods(HierarchySplit)
        True
    """
    methods = {found.path: import_class(found.path) for found in heirs("Method", *METHODS).values()}
    return [
        path
        for path, method in methods.items()
        if all(p.default is not p.empty for p in inspect.signature(method).parameters.values())
        and issubclass(kind, method().traits.learns_from)
    ]
