import struct

import numpy as np
import pytest


def idx(array) -> bytes:
    """Bytes of a hand-written IDX file."""
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def write_idx(tmp_path):
    """Write four unpacked IDX files below a folder; return the images and labels in them."""

    def write(folder, *, num_train=12, num_test=6, num_classes=10, side=4, first=0):
        draw = np.random.default_rng(0)
        path = tmp_path / "root" / folder / "raw"
        path.mkdir(parents=True)
        made = {}
        for stem, n in (("train", num_train), ("t10k", num_test)):
            x = draw.integers(0, 256, (n, side, side))
            y = np.arange(n) % num_classes + first
            (path / f"{stem}-images-idx3-ubyte").write_bytes(idx(x))
            (path / f"{stem}-labels-idx1-ubyte").write_bytes(idx(y))
            made |= {f"x_{stem}": x, f"y_{stem}": y}
        return tmp_path / "root", path, made

    return write
