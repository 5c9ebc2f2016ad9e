"""Transport to nodes of this process, for tests and audits."""

from collections.abc import Mapping

from typing_extensions import override

from fedbolic.core.tree_bytes import decode_message, encode_message
from fedbolic.core.types import Tree
from fedbolic.remote.node import Node, handshake
from fedbolic.remote.nodes import Transport


class InProcess(Transport):
    """Transport to nodes of this process: messages are encoded and decoded, but not sent.

    Args:
        nodes: Nodes by number.
    """

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.updates: dict[int, tuple[Tree, Tree]] = {}  # latest request and reply of every node

    @override
    def online(self) -> set[int]:
        return set(self.nodes)

    @override
    def exchange(
        self, kind: str, requests: Mapping[int, Tree], *, group: str, timeout: float
    ) -> dict[int, Tree]:
        return {number: self.ask(number, request) for number, request in requests.items()}

    def ask(self, number: int, request: Tree) -> Tree:
        """Reply of a node, as the server decodes it.

        Args:
            number: Number of the node.
            request: The request.
        """
        received = decode_message(encode_message(request))
        reply = decode_message(encode_message(self.reply(number, received)))
        if received["task"] == "update":
            self.updates[number] = request, reply
        return reply

    def reply(self, number: int, request: Tree) -> Tree:
        """Reply of a node, before it is encoded.

        Args:
            number: Number of the node.
            request: The request, as the node decoded it.
        """
        node = self.nodes[number]
        return handshake(node.client) if request["task"] == "handshake" else node.reply(request)
