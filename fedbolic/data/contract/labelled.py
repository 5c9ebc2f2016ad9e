"""Conversion of arrays given by users to labelled examples, with errors that name a remedy."""

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from fedbolic.core.check import MOST_CLASSES
from fedbolic.data.contract.dataset import OfficialParts


def every_fourth(y: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Mask of every fourth example of each class.

    Example:
        >>> every_fourth(torch.tensor([0, 0, 1, 0, 0])).tolist()
        [False, False, False, False, True]
    """
    order = y.argsort(stable=True)
    sizes = y.unique(return_counts=True)[1]
    place = torch.arange(len(y)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    found = torch.zeros(len(y), dtype=torch.bool)
    found[order[place % 4 == 3]] = True
    return found


def codes_of(values: np.ndarray) -> tuple[tuple[str, ...], Int64[Tensor, " n"]]:
    """Names in ascending order, and the position of every value among them.

    Args:
        values: Numbers or strings; strings that are all numbers are ordered as numbers.

    Example:
        >>> codes_of(np.array(["10", "9", "10"]))
        (('9', '10'), tensor([1, 0, 1]))
    """
    try:
        found, first, codes = np.unique(
            values.astype(np.float64), return_index=True, return_inverse=True
        )
        names = tuple(str(values[i]) for i in first)
    except ValueError:
        # an array of strings would take the length of the longest for each
        found = values.reshape(-1).tolist()
        texts = [v.decode() if isinstance(v, bytes) else str(v) for v in found]
        names = tuple(sorted(set(texts)))
        place = {name: code for code, name in enumerate(names)}
        codes = np.array([place[text] for text in texts])
    return names, torch.from_numpy(codes.reshape(-1).astype(np.int64))


def labels_from_array(labels: np.ndarray, name: str) -> Int64[Tensor, " n"]:
    """Labels as a tensor.

    Args:
        labels: The array.
        name: Name of the array in error messages.

    Raises:
        ValueError: If it is not one axis of integers; the message names the remedy.
    """
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return torch.from_numpy(labels.astype(np.int64))
    text = f"{name} must be one axis of integers, got {labels.dtype} of shape {labels.shape}"
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise ValueError(f"{text}: use y[:, 0]")
    if labels.ndim == 2:
        raise ValueError(f"{text}: if it is one-hot, use y.argmax(1)")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"{text} with NaN or infinite values: leave these examples out")
    if labels.dtype.kind in "fb":
        raise ValueError(f"{text}: use y.astype(int) if the values are whole numbers")
    raise ValueError(f"{text}: use names, y = np.unique(y, return_inverse=True)")


def check_classes(name: str, y: Int64[Tensor, " n"]) -> None:
    """Refuse labels that ask for more classes than ``MOST_CLASSES``.

    Args:
        name: Name of the labels in error messages.
        y: Labels.

    Raises:
        ValueError: If a label is too large.
    """
    if len(y) and (most := int(y.max())) >= MOST_CLASSES:
        raise ValueError(
            f"{name}: label {most} is above {MOST_CLASSES - 1}, the largest that is allowed: "
            "renumber the labels by y = np.unique(y, return_inverse=True)[1]"
        )


def check_gaps(name: str, y: Int64[Tensor, " n"]) -> int:
    """Refuse labels that leave numbers out; return the number of classes.

    Args:
        name: Name of the labels in error messages.
        y: All labels of a data set.

    Raises:
        ValueError: If a number below the largest label is not a label.
    """
    check_classes(name, y)
    present = y[y >= 0].bincount() > 0  # negative labels are refused with their position later
    if gaps := (~present).nonzero().flatten().tolist():
        raise ValueError(
            f"{name}: labels reach {len(present) - 1}, but no example has label "
            f"{', '.join(map(str, gaps[:10]))}: renumber them by y = np.unique(y, "
            "return_inverse=True)[1], or give class_names to keep classes without examples"
        )
    return len(present)


def inputs_from_array(x: np.ndarray, name: str) -> Tensor:
    """Rows of features as float32, or images with channels first as uint8 or float32.

    Args:
        x: The array.
        name: Name of the array in error messages.

    Raises:
        ValueError: If it holds neither; the message names the remedy.
    """
    said = f"{name} is {x.dtype} of shape {x.shape}"
    if x.dtype.kind not in "iuf" or (x.ndim != 2 and x.dtype.kind != "f" and x.dtype != np.uint8):
        raise ValueError(f"{said}: images must be uint8 or floats in [0, 1], features numbers")
    if x.ndim == 2:
        _check_finite(x, name)
        return torch.from_numpy(x.astype(np.float32))
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim != 4 or (x.shape[1] in (1, 3)) == (x.shape[-1] in (1, 3)):
        raise ValueError(
            f"{said}: save (N, H, W), (N, C, H, W) or (N, H, W, C), where either axis 1 or the "
            "last is 1 or 3 channels"
        )
    elif x.shape[-1] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype.kind == "f":
        # negated so that NaN is refused too
        if x.size and not (x.min() >= 0 and x.max() <= 1):
            raise ValueError(f"{said} and spans {x.min()} .. {x.max()}: scale it to [0, 1]")
        x = x.astype(np.float32)
    return torch.from_numpy(x.copy(order="C"))


def _check_finite(x: np.ndarray, name: str) -> None:
    wrong = np.argwhere(~np.isfinite(x.astype(np.float32)))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"{name} holds {x[row, column]} in row {row}, column {column}, and {len(wrong) - 1} "
            "more such values: fill them in, for instance with the column's mean, or leave out the "
            "rows or columns"
        )


def parts_from_whole(
    name: str,
    x: Tensor,
    y: Int64[Tensor, " _"],
    *,
    class_names: tuple[str, ...] = (),
    owners: Int64[Tensor, " _"] | None = None,
) -> OfficialParts:
    """Training and test parts of a data set without official parts: every fourth of each class.

    Args:
        name: Name of the data set in error messages.
        x: Inputs.
        y: Labels.
        class_names: Name of every class, by label; empty if the classes have no names.
        owners: Number of the client that owns each example; ``None`` if there are no clients.

    Raises:
        ValueError: If there are no examples, or of one class alone, the lengths differ, or the
            labels have gaps although classes have no names.
    """
    for what, values in (("labels", y), ("clients", owners)):
        if values is not None and len(values) != len(x):
            raise ValueError(f"{name} has {len(x)} examples but {len(values)} {what}")
    if not len(x):
        raise ValueError(f"{name} has no examples")
    num_classes = len(class_names) or check_gaps(name, y)
    if num_classes == 1:
        raise ValueError(f"{name} has examples of a single class: two are needed to tell apart")
    test = every_fourth(y)
    mine = None if owners is None else owners[~test].unique(return_inverse=True)[1]
    parts = x[~test], y[~test], x[test], y[test]
    return OfficialParts(name, *parts, num_classes, class_names, mine)
