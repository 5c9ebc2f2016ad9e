"""Embedding that a node kept on its own disk, for a holder who answers queries by it."""

from pathlib import Path

from fedbolic.core.rng import Rng
from fedbolic.data import HierarchySplit, Source
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.method import Method
from fedbolic.hierarchies import Embedding
from fedbolic.remote.client_state_store import ClientStateStore


def kept_embedding(method: Method, source: Source, file: Path) -> Embedding:
    """The embedding in the client state of a node, with the names of the node's own data.

    A query of others is one place, such as ``places`` of their own embedding, and the holder
    decides which names of the answer to show.

    Args:
        method: Method of the run, such as ``SlotLayout()``.
        source: The node's own data, of one client.
        file: The node's file of client states, ``RUN.pt`` in its folder ``client_state``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the source has another number of clients than one or no hierarchies, or the
            node kept no embedding.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is no file: give the node's file of client states")
    clients = source.load(Rng(0)).clients
    if len(clients) != 1 or not isinstance(clients[0].train, HierarchySplit):
        raise ValueError(
            f"the source must be a hierarchy of one client, got {len(clients)} clients: give the "
            "node's own data"
        )
    kept, found = ClientStateStore(file).last(), None
    if isinstance(method, Reporting):
        found = method.node_places({}, clients[0], kept)
    if found is None:
        raise ValueError(f"{file} holds no embedding of {type(method).__name__}")
    nodes, places = found
    return Embedding.of(clients[0].train.hierarchy, places, nodes)
