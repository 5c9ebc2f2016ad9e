"""The data of a run, what is recorded of them, and the methods that learn from such data."""

import dataclasses
import inspect
from typing import Any

from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData, Split
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
        holdout = settings["data"].load(rng).holdout
    except FileNotFoundError as error:
        logger.warning("the server has no test set: %s", one_line(error))
        holdout = None
    return nodes.federation(holdout)


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
