"""Data sets stored as named arrays in one ``.npz`` file."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.data.dataset import Dataset, OfficialParts
from fedbolic.data.files import find_given

NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Arrays(Dataset):
    """A .npz file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    Images have shape (N, H, W), (N, C, H, W) or (N, H, W, C) with C equal to 1 or 3, and are bytes
    or floats in [0, 1]. An array of shape (N, D) holds rows of features and is read as float32.
    Labels are integers from 0. The length of an optional array ``class_names`` gives the number of
    classes; without it, the largest label does.

    Args:
        path: The file. A relative path is looked up in ``root`` if that is given, otherwise in the
            folders of ``FEDBOLIC_DATA`` and then in the working directory.
    """

    path: Path

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        path = find_given(self.path, root, kind=".npz file")
        try:
            # opened here because np.load does not close a damaged file
            with path.open("rb") as raw, np.load(raw) as file:
                arrays = {name: file[name] for name in (*NAMES, "class_names") if name in file}
        except (zipfile.BadZipFile, EOFError, ValueError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged or not an .npz of plain arrays: {error}"
            ) from error
        missing = [name for name in NAMES if name not in arrays]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}: it needs {', '.join(NAMES)}")
        y_train, y_test = (_labels(arrays, name, path=path) for name in ("y_train", "y_test"))
        num_classes = (
            len(arrays["class_names"])
            if "class_names" in arrays
            else max((int(y.max()) for y in (y_train, y_test) if len(y)), default=0) + 1
        )
        x_train, x_test = (_inputs(arrays, name, path=path) for name in ("x_train", "x_test"))
        return OfficialParts(str(path), x_train, y_train, x_test, y_test, num_classes)


def _labels(arrays: Mapping[str, np.ndarray], name: str, *, path: Path) -> Tensor:
    labels = arrays[name]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name} of {path} must be one axis of integers, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _inputs(arrays: Mapping[str, np.ndarray], name: str, *, path: Path) -> Tensor:
    """Rows of features as float32, or images with channels first as uint8 or float32."""
    x = arrays[name]
    said = f"{name} of {path} is {x.dtype} of shape {x.shape}"
    if x.dtype.kind not in "iuf" or (x.ndim != 2 and x.dtype.kind != "f" and x.dtype != np.uint8):
        raise ValueError(f"{said}: images must be uint8 or floats in [0, 1], features numbers")
    if x.ndim == 2:
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
