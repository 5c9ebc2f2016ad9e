"""Data sets given as arrays, in one ``.npz`` file or in memory."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import override

from fedbolic.core.reading import read_arrays
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.contract.labelled import (
    check_gaps,
    codes_of,
    inputs_from_array,
    labels_from_array,
    parts_from_whole,
)
from fedbolic.data.files.published_files import find_given

NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Arrays(Dataset):
    """A .npz file with two arrays, inputs and labels, or with training and test parts of them.

    Images have shape (N, H, W), (N, C, H, W) or (N, H, W, C) with C equal to 1 or 3, and are bytes
    or floats in [0, 1]. An array of shape (N, D) holds rows of features and is read as float32.
    Labels are integers from 0 without gaps. The length of an optional array ``class_names`` gives
    the number of classes; without it, the largest label does.

    A file with ``x_train``, ``y_train``, ``x_test`` and ``y_test`` has an official test part. Of
    two other arrays, every fourth example of each class is used for testing.

    Args:
        path: The file. A relative path is looked up in ``root`` if that is given, otherwise in the
            folders of ``FEDBOLIC_DATA`` and then in the working directory.
        x: Name of the array of inputs; by default the array that is not that of labels.
        y: Name of the array of labels; by default the only array with one axis.
        client: Name of an array with the client of every example (numbers or strings), for the
            partition ``ByColumn``; ``None`` if there is none. For files of two arrays.
    """

    path: Path
    x: str | None = None
    y: str | None = None
    client: str | None = None

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        path = find_given(self.path, root, kind=".npz file")
        arrays = read_arrays(path)
        names = tuple(map(str, arrays.pop("class_names", ())))
        if self.x is None and self.y is None and set(NAMES) & set(arrays):
            return _official(path, arrays, names)
        x, y = self._pair(path, arrays)
        owners = None if self.client is None else codes_of(arrays[self.client])[1]
        return parts_from_whole(
            str(path),
            inputs_from_array(arrays[x], f"{x} of {path}"),
            labels_from_array(arrays[y], f"{y} of {path}"),
            class_names=names,
            owners=owners,
        )

    def _pair(self, path: Path, arrays: dict[str, np.ndarray]) -> tuple[str, str]:
        """Names of the arrays of inputs and labels."""
        if missing := [n for n in (self.x, self.y, self.client) if n and n not in arrays]:
            found = ", ".join(sorted(arrays))
            raise ValueError(f"{path} lacks {', '.join(missing)}: it has {found}")
        if self.x and self.y:
            return self.x, self.y
        left = [n for n in arrays if n not in (self.x, self.y, self.client)]
        y = self.y or next((n for n in left if arrays[n].ndim == 1), None)
        x = self.x or next((n for n in left if n != y), None)
        if x is None or y is None or len({*left, x, y}) > 2:
            raise ValueError(
                f"{path} holds {', '.join(sorted(arrays)) or 'no array'}: it needs "
                f"{', '.join(NAMES)}, or two arrays, inputs and labels with one axis; name "
                "them by x and y if there are more"
            )
        return x, y


@dataclass(frozen=True, eq=False)
class InMemory(Dataset):
    """Arrays or tensors in memory, in the formats of :class:`Arrays`.

    Every fourth example of each class is used for testing, unless ``test`` is given. A run of
    ``fedbolic run`` needs a file instead, since its configuration holds no arrays.

    Args:
        x: Inputs.
        y: Labels, integers from 0 without gaps.
        test: Inputs and labels of the server's test set; ``None`` to split them off.
        class_names: Name of every class, by label; empty if the classes have no names.
        client: Client of every example (numbers or strings), for the partition ``ByColumn``;
            ``None`` if there is none.

    Example:
        >>> from fedbolic.data import IID, Partitioned
        >>> from fedbolic.core.rng import Rng
        >>> data = Partitioned(InMemory(torch.rand(80, 5), torch.arange(80) % 2), IID(3))
        >>> len(data.load(Rng(0)).clients)
        3
    """

    x: ArrayLike | Tensor
    y: ArrayLike | Tensor
    test: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None
    class_names: tuple[str, ...] = ()
    client: ArrayLike | Tensor | None = None

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        x = inputs_from_array(_array(self.x), "x")
        y = labels_from_array(_array(self.y), "y")
        owners = None if self.client is None else codes_of(_array(self.client))[1]
        if self.test is None:
            return parts_from_whole("data", x, y, class_names=self.class_names, owners=owners)
        x_test = inputs_from_array(_array(self.test[0]), "test x")
        y_test = labels_from_array(_array(self.test[1]), "test y")
        num = len(self.class_names) or check_gaps("y", torch.cat([y, y_test]))
        return OfficialParts("data", x, y, x_test, y_test, num, self.class_names, owners)


def _array(values: ArrayLike | Tensor) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _official(path: Path, arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> OfficialParts:
    """Parts of a file that has training and test parts."""
    if missing := [name for name in NAMES if name not in arrays]:
        raise ValueError(f"{path} lacks {', '.join(missing)}: it needs {', '.join(NAMES)}")
    y_train, y_test = (labels_from_array(arrays[n], f"{n} of {path}") for n in NAMES[1::2])
    x_train, x_test = (inputs_from_array(arrays[n], f"{n} of {path}") for n in NAMES[::2])
    num = len(names) or check_gaps(str(path), torch.cat([y_train, y_test]))
    return OfficialParts(str(path), x_train, y_train, x_test, y_test, num, names)
