"""The embedding that a run of a hierarchy keeps next to its metrics, with names of nodes."""

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.data import FederatedData, HierarchySplit
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.method import Method
from fedbolic.hierarchies import Embedding
from fedbolic.run.run_files import RunFiles


def save_common_embedding(
    folder: RunFiles, method: Method, server_state: Tree, data: FederatedData
) -> None:
    """Save the embedding that all clients share, by the names in the server's test set.

    Nothing is saved if there is none, as where clients keep their places at home. The file is read
    without the run's configuration, which is code.

    Args:
        folder: Folder of the run.
        method: Its method.
        server_state: Server state after the last round.
        data: Its data.

    Raises:
        OSError: If the file cannot be written.
    """
    server = data.without_clients().to("cpu").holdout
    if server is None or not isinstance(server.test, HierarchySplit):
        return
    if not isinstance(method, Reporting):
        return
    message = tree.to(method.broadcast(server_state, server.id), "cpu")
    if found := method.node_places(message, server, {}):
        nodes, places = found
        draft = folder.embedding.with_suffix(".draft.npz")
        try:
            Embedding.of(server.test.hierarchy, places, nodes).save(draft)
            draft.replace(folder.embedding)  # atomic, so that a reader never sees half a file
        finally:
            draft.unlink(missing_ok=True)
