"""Check that a server state read from a file is one that its method can have reached."""

from pathlib import Path

from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.checksums import DamagedError
from fedbolic.core.types import Tree
from fedbolic.federated.contract.method import Method


def check_server_state(
    file: Path, method: Method, stored: object, initial: Tree, client_id: int
) -> None:
    """Refuse a server state of another form than the initial one, or that cannot be sent.

    A method keeps the entries of its initial state with their types, and the shapes of all but
    integers, such as the members of a cluster. What it adds later is checked by sending the state.

    Args:
        file: File that the state was read from.
        method: Method of the run.
        stored: State that was read; somebody may have forged it.
        initial: State before the first round, in the dtype of the run.
        client_id: Client to which the state is sent.

    Raises:
        DamagedError: If the stored state does not fit.
    """
    fault = tree.find_tree_fault(stored) or find_other_form(stored, initial)
    if fault is None and not tree.is_finite(stored):  # type: ignore[arg-type]  # a tree by now
        fault = "not all numbers are finite"
    if fault is None:
        try:
            method.broadcast(stored, client_id)  # type: ignore[arg-type]
        except Exception as error:  # whatever a forged state leads to
            fault = f"{type(error).__name__}: {error}"
    if fault is not None:
        raise DamagedError(file, f"holds no server state of {type(method).__name__}: {fault}")


def find_other_form(stored: object, initial: object, path: str = "") -> str | None:
    """The first place where a tree lacks an entry of another one or holds another type or shape.

    Example:
        >>> import torch
        >>> find_other_form({"x": {"w": torch.zeros(3)}}, {"x": {"w": torch.zeros(2)}})
        'x/w is float32[3] instead of float32[2]'
    """
    if not isinstance(initial, dict):
        found, expected = _form(stored), _form(initial)
        became_a_tensor = expected == "float" and found in {"float32[]", "float64[]"}
        fits = found == expected or became_a_tensor
        return None if fits else f"{path} is {found} instead of {expected}"
    if not isinstance(stored, dict):
        return f"{path} is {_form(stored)} instead of a dict"
    for name, part in initial.items():
        here = f"{path}/{name}" if path else name
        if name not in stored:
            return f"{here} is missing"
        if (fault := find_other_form(stored[name], part, here)) is not None:
            return fault
    return None


def _form(leaf: object) -> str:
    if isinstance(leaf, dict):
        return "a dict"
    if isinstance(leaf, Tensor) and not leaf.is_floating_point():
        return f"{str(leaf.dtype).removeprefix('torch.')} with {leaf.dim()} axes"
    return tree.signature({"": leaf})[""]
