"""Small whole files of published data sets, laid out as their authors publish them."""

import gzip
import pickle
import struct

import numpy as np
import scipy.sparse

from fedbolic.data.images.cifar import TEN_BATCHES
from fedbolic.data.images.idx import LETTERS_STEMS

N = 24


def random():
    return np.random.default_rng(0)


def placed(folder, below, content):
    path = folder / below
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def csr(name, matrix):
    matrix = scipy.sparse.csr_array(matrix)
    found = {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}
    return {f"{name}_{k}": v for k, v in found.items()} | {f"{name}_shape": np.array(matrix.shape)}


def amazon(folder):
    path = folder / "amazon" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, labels=np.arange(N) % 3, **csr("attr", np.eye(N)), **csr("adj", np.eye(N, k=1)))
    return path


def tu(folder, part):
    files = {
        "A": "".join(f"{i}, {i + 1}\n{i + 1}, {i}\n" for i in range(1, N, 2)),
        "graph_indicator": "".join(f"{1 + i // 6}\n" for i in range(N)),
        "graph_labels": "1\n-1\n1\n2\n",
        "node_labels": "".join(f"{i % 5}\n" for i in range(N)),
        "node_attributes": "".join(f"{i / 3:.3f}, {i}\n" for i in range(N)),
    }
    for name, text in files.items():
        placed(folder, f"TOY/TOY_{name}.txt", text)
    return folder / "TOY" / f"TOY_{part}.txt"


def arxiv(folder, part):
    files = {
        "edge": "".join(f"{i},{(i + 1) % N}\n" for i in range(N)),
        "node-feat": "".join(f"{i / 7:.4f},{-i}.5\n" for i in range(N)),
        "node-label": "".join(f"{i % 5}\n" for i in range(N)),
    }
    for name, text in files.items():
        placed(folder, f"ogbn_arxiv/raw/{name}.csv.gz", gzip.compress(text.encode()))
    return folder / "ogbn_arxiv" / "raw" / f"{part}.csv.gz"


def idx(values):
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + (values.astype(np.uint8).tobytes())
    )


def mnist(folder, part):
    images, labels = random().integers(0, 256, (N, 6, 5)), np.arange(N) % 10
    for name in ("train", "t10k"):
        placed(folder, f"MNIST/raw/{name}-images-idx3-ubyte", idx(images))
        placed(folder, f"MNIST/raw/{name}-labels-idx1-ubyte", idx(labels))
    return folder / "MNIST" / "raw" / part


def letters(folder):
    images, labels = random().integers(0, 256, (N, 6, 5)), 1 + np.arange(N) % 26
    for stem, values in zip(LETTERS_STEMS, (images, labels) * 2, strict=True):
        placed(folder, f"EMNIST/raw/{stem}.gz", gzip.compress(idx(values)))
    return folder / "EMNIST" / "raw" / f"{LETTERS_STEMS[0]}.gz"


def cifar(folder):
    rows = random().integers(0, 256, (4, 3072), dtype=np.uint8)
    for name in TEN_BATCHES:
        placed(folder, name, pickle.dumps({"data": rows, "labels": [1, 2, 3, 4]}, protocol=2))
    return folder / TEN_BATCHES[0]
