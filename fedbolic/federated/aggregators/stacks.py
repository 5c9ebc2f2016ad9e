"""Updates whose payloads are rows of stacked tensors."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Tree
from fedbolic.federated.updates.update import Update


def by_stack(updates: Iterable[tuple[int, Update]]) -> Iterator[list[tuple[int, Update]]]:
    """Lists of updates whose payloads are rows of the same stack; other updates stand alone.

    A list ends when a client with a larger id than those of its stack has followed, so that at most
    the stacks of neighbouring clients are kept in memory.

    Args:
        updates: Updates in ascending order of id, iterated once.
    """
    waiting: dict[int, list[tuple[int, Update]]] = {}
    last: dict[int, int] = {}
    for client_id, update in updates:
        for key in [key for key in waiting if last[key] < client_id]:
            yield waiting.pop(key)
        stack = update.stack
        if stack is None:
            yield [(client_id, update)]
            continue
        last[id(stack)] = stack.clients[-1]
        waiting.setdefault(id(stack), []).append((client_id, update))
    yield from waiting.values()


def stacked_payload(updates: Sequence[Update]) -> Tree | None:
    """The payloads with a leading axis of clients; ``None`` if they are not rows of one stack.

    Args:
        updates: Updates of a list of :func:`by_stack`.
    """
    stack, rows = updates[0].stack, [update.row.index for update in updates if update.row]
    if stack is None:
        return None
    if len(rows) == len(stack.clients):
        return stack.payload

    def chosen(x: Tensor) -> Tensor:
        return x.index_select(0, torch.tensor(rows, device=x.device))

    return tree.map(chosen, stack.payload)
