"""Data sets of Hugging Face ``datasets``, and partitions of ``flwr-datasets``, as arrays.

The functions use the public interface of objects that the caller made, so they need neither package
themselves (extra ``datasets``).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbolic.data.contract.labelled import codes_of
from fedbolic.data.tables.arrays import InMemory


def from_huggingface(
    dataset: Any, *, inputs: str | Sequence[str], target: str, client: str | None = None
) -> InMemory:
    """Convert one split of a Hugging Face data set to arrays.

    Args:
        dataset: A ``datasets.Dataset``, such as ``load_dataset("mnist")["train"]``.
        inputs: Column of images or of lists of numbers, or several columns of one number each.
        target: Column of labels: a ``ClassLabel``, integers, or strings.
        client: Column with the client of every example; ``None`` if there is none.

    Raises:
        ValueError: If a column is missing, or inputs differ in shape.

    Example:
        >>> columns = {"width": [1.0, 2.0], "height": [3.0, 4.0], "kind": ["a", "b"]}
        >>> from_huggingface(columns, inputs=("width", "height"), target="kind").class_names
        ('a', 'b')
    """
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    known = list(getattr(dataset, "column_names", dataset))
    asked = [*names, target, *([client] if client else [])]
    if missing := [name for name in asked if name not in known]:
        raise ValueError(f"there is no column {', '.join(missing)}: there are {', '.join(known)}")
    columns = [_column(dataset, name) for name in names]
    x = columns[0] if isinstance(inputs, str) else np.stack(columns, axis=1)
    y = np.asarray(list(dataset[target]))
    feature = getattr(dataset, "features", {}).get(target)
    classes = tuple(getattr(feature, "names", None) or ())
    if not classes and y.dtype.kind not in "iu":
        classes, codes = codes_of(y)
        y = codes.numpy()
    owners = np.asarray(list(dataset[client])) if client else None
    return InMemory(x, y, class_names=classes, client=owners)


def from_partitioner(
    partitioner: Any, *, inputs: str | Sequence[str], target: str
) -> tuple[InMemory, ...]:
    """Convert the partitions of a ``flwr_datasets`` partitioner, one data set per client.

    :func:`in_one` joins them for the partition ``ByColumn``.

    Args:
        partitioner: A partitioner whose ``dataset`` is set.
        inputs: As for :func:`from_huggingface`.
        target: As for :func:`from_huggingface`.
    """
    return tuple(
        from_huggingface(partitioner.load_partition(i), inputs=inputs, target=target)
        for i in range(partitioner.num_partitions)
    )


def in_one(parts: Sequence[InMemory]) -> InMemory:
    """Join the data of several clients to one data set that names the client of every example.

    Args:
        parts: Data of the clients, client 0 first, with the same classes.

    Raises:
        ValueError: If the class names differ.

    Example:
        >>> parts = [InMemory(np.ones((n, 2)), np.zeros(n, int)) for n in (2, 1)]
        >>> in_one(parts).client
        array([0, 0, 1])
    """
    names = {part.class_names for part in parts}
    if len(names) != 1:
        raise ValueError(
            f"the clients have different classes, {sorted(names)}: number the classes before the "
            "data are partitioned"
        )
    x, y = (np.concatenate([np.asarray(getattr(part, k)) for part in parts]) for k in "xy")
    owners = np.repeat(np.arange(len(parts)), [len(np.asarray(part.y)) for part in parts])
    return InMemory(x, y, class_names=names.pop(), client=owners)


def _column(dataset: Any, name: str) -> np.ndarray:
    rows = [np.asarray(value) for value in dataset[name]]
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise ValueError(
            f"the inputs of column {name!r} differ in shape, {shapes[:3]}: resize them first"
        )
    return np.stack(rows)
