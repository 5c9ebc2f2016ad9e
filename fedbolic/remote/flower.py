"""Transport to clients on other machines through Flower."""

# pyright: reportMissingImports=false
# (the extra flower may not be installed)

import json
import time
from collections.abc import Iterator, Mapping

from typing_extensions import override

from fedbolic.core.imports import extra
from fedbolic.core.tree_bytes import WireMessage, decode_message, encode_message
from fedbolic.core.types import Tree
from fedbolic.remote.nodes import POLL_SECONDS, Transport

with extra("flower", "fedbolic.remote"):
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid


def to_records(content: Tree) -> RecordDict:
    """Convert a tree to Flower's records: tensors to arrays, everything else to one text.

    Args:
        content: Tree of tensors, numbers and strings.
    """
    message = encode_message(content)
    forms = _forms(json.loads(message.text))
    arrays = {
        str(i): Array(dtype, tuple(shape), "fedbolic", buffer)
        for i, ((dtype, shape, *_), buffer) in enumerate(zip(forms, message.buffers, strict=True))
    }
    records = {"text": ConfigRecord({"text": message.text}), "tensors": ArrayRecord(arrays)}
    return RecordDict(records)


def from_records(records: RecordDict) -> Tree:
    """Convert the records of :func:`to_records` back to a tree.

    Args:
        records: Records as received, from any sender.

    Raises:
        ValueError: If the records do not encode a tree.
    """
    text, arrays = records.config_records.get("text"), records.array_records.get("tensors")
    if text is None or arrays is None or not isinstance(text.get("text"), str):
        raise ValueError("a message must have one text and its tensors as records")
    buffers = tuple(arrays[str(i)].data if str(i) in arrays else b"" for i in range(len(arrays)))
    return decode_message(WireMessage(str(text["text"]), buffers))


def _forms(value: object) -> Iterator[list]:
    """Dtypes and shapes of the tensors in the text of a message, in order."""
    if isinstance(value, dict):
        for branch in value.values():
            yield from _forms(branch)
    elif isinstance(value, list):
        yield value


class FlowerTransport(Transport):
    """Transport to the nodes of a Flower federation, through its SuperLink.

    Args:
        grid: Flower's connection of a server app to its nodes.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @override
    def online(self) -> set[int]:
        return set(self.grid.get_node_ids())

    @override
    def exchange(
        self, kind: str, requests: Mapping[int, Tree], *, group: str, timeout: float
    ) -> dict[int, Tree]:
        nodes = list(requests)
        ids = self.grid.push_messages(
            [
                Message(to_records(requests[node]), node, kind, ttl=timeout, group_id=group)
                for node in nodes
            ]
        )
        waiting = dict(zip(ids, nodes, strict=False))
        replies: dict[int, Tree] = {}
        end = time.monotonic() + timeout
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = _content(reply)
            online = self.online() if waiting else set()
            for message in [m for m, node in waiting.items() if node not in online]:
                replies[waiting.pop(message)] = {"error": "its node is gone"}
            if waiting:
                time.sleep(POLL_SECONDS)
        late = {"error": f"no reply within {timeout:g} seconds"}
        return {node: replies.get(node, late) for node in nodes}


def _content(reply: Message) -> Tree:
    """Content of a reply, or ``{"error": text}``."""
    if reply.has_error():
        return {"error": f"Flower's error {reply.error.code}: {reply.error.reason}"}
    try:
        return from_records(reply.content)
    except Exception as error:  # an invalid reply affects its node alone
        return {"error": str(error)}
