"""Every format of a file that the project reads: a small whole file, and its reader."""

import gzip
import importlib
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from PIL import Image

from fedbolic.core import figure
from fedbolic.core.published import read_published
from fedbolic.core.reading import read_bytes
from fedbolic.core.rng import Rng
from fedbolic.core.torch_files import load_torch
from fedbolic.core.tree_bytes import (
    WireMessage,
    decode_message,
    encode_message,
    tree_from_bytes,
    tree_to_bytes,
)
from fedbolic.core.types import Meta
from fedbolic.core.yaml_text import read_settings
from fedbolic.data import (
    CIFAR10,
    MNIST,
    Amazon,
    Arrays,
    Arxiv,
    EMNISTLetters,
    GraphFile,
    GraphFiles,
    HierarchyFile,
    HolderFiles,
    ImageFolder,
    Points,
    Table,
    TableFile,
    TUFamily,
    agree_names,
)
from fedbolic.data.files.pickled import unpickle
from fedbolic.data.files.published_files import RemoteFile, members
from fedbolic.data.hierarchies.vocabulary import Vocabulary
from fedbolic.data.tables import table as tables
from fedbolic.federated.secure.keys import read_identity, write_identities
from fedbolic.hierarchies import Embedding
from fedbolic.manifolds import PolarPlaces
from fedbolic.nn.network.adapted import Adapted
from fedbolic.nn.network.backbone import MLP
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.run.configuration import read_words
from fedbolic.run.experiment import run
from fedbolic.run.record import RunFolder
from hyperfed import prototypes
from tests.readers.published_data import (
    N,
    amazon,
    arxiv,
    cifar,
    csr,
    letters,
    mnist,
    placed,
    random,
    tu,
)
from tests.readers.run_files import TREE, a_run, read_complete, read_rank, read_run, saved, stored


@dataclass(frozen=True)
class Format:
    """A whole file, written into an empty folder, and a reader of such a file."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    names_the_file: bool = True


def import_everything():
    """Import what readers import on their first use, so that it counts for none of them."""
    for name in ("sklearn.model_selection", "sklearn.datasets", "scipy.sparse.csgraph", "pooch"):
        importlib.import_module(name)
    Image.init()


def no_download(dataset, up):
    """Reader of a data set whose root is some folders above the file."""
    return lambda path: dataset.read(path.parents[up], download=False)


def graph_without(dataset, up):
    return lambda path: dataset.read(Rng(0), path.parents[up], download=False)


# tables ---------------------------------------------------------------------------------------


def table(folder, name, delimiter=","):
    rows = [["a", "b", "kind", "site"]]
    rows += [[f"{i / 7:.3f}", str(-i), ("cat", "dog")[i % 2], f"s{i % 3}"] for i in range(N)]
    return placed(folder, name, "".join(delimiter.join(row) + "\n" for row in rows))


def parquet_table(folder):
    parquet = importlib.import_module("pyarrow.parquet")
    columns = {"a": [i / 7 for i in range(N)], "b": [*range(N)], "kind": ["cat", "dog"] * (N // 2)}
    columns |= {"site": [f"s{i % 3}" for i in range(N)]}
    parquet.write_table(importlib.import_module("pyarrow").table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def read_table(path):
    return TableFile(path, target="kind", client="site").read(None, download=False)


def published_table(folder, name, head):
    text = head + "".join(f"{i}\t{i / 3:.4f}\t{i % 3}\n" for i in range(N))
    text = text.replace("\t", ",") if "arff" in name else text
    return placed(folder, name, gzip.compress(text.encode()))


def read_published_table(path):
    tables.TABLES[0] = tables.Origin(RemoteFile(path.name, None, ()))
    return Table(0).read(path.parent, download=False)


# arrays ---------------------------------------------------------------------------------------


def arrays(folder, compressed=False, **named):
    (np.savez_compressed if compressed else np.savez)(folder / "a.npz", **named)
    return folder / "a.npz"


def labelled(**more):
    return {"x": random().random((N, 4)).astype(np.float32), "y": np.arange(N) % 3, **more}


def parts(scale=1.0):
    x, y = scale * random().random((N, 2)), np.arange(N) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:8], "y_test": y[:8]}


def graph(**more):
    return labelled(edges=np.stack([np.arange(N), (np.arange(N) + 1) % N], axis=1), **more)


def sparse_graph(folder):
    named = graph()
    return arrays(folder, **{k: v for k, v in named.items() if k != "x"}, **csr("x", np.eye(N)))


# images ---------------------------------------------------------------------------------------


def image(folder, suffix):
    for i in range(4):
        pixels = random().integers(0, 256, (6 + i, 5, 3), dtype=np.uint8)
        path = folder / "images" / "ab"[i % 2] / f"{i}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return path


def read_images(path):
    return ImageFolder(path.parents[1], size=(4, 4)).read(None, download=False)


# results and messages -------------------------------------------------------------------------


def published(folder):
    text = "row,setting,column,value,source\n" + "FedAvg,a,accuracy,0.5,page 3\n" * 3
    return placed(folder, "published.csv", text)


def hierarchy(folder, name):
    text = "".join(f"n{i}\tn{i // 2}\n" for i in range(1, N))
    if ".json" in name:
        text = json.dumps({f"n{i}": [f"n{i // 2}"] for i in range(1, N)})
    text = text.replace("\t", "," if ".csv" in name else "\t")
    return placed(folder, name, gzip.compress(text.encode()) if name.endswith(".gz") else text)


def agreed_names(folder):
    agree_names([hierarchy(folder, "h.tsv")], folder / "h.names")
    return folder / "h.names"


def embedded(folder, name):
    pairs = torch.tensor([[i, i // 2] for i in range(1, N)])
    places = PolarPlaces(torch.arange(N) << 58, torch.arange(N).double())
    Embedding(tuple(f"n{i}" for i in range(N)), places, pairs).save(folder / name)
    return folder / name


def wire(folder):
    message = encode_message(TREE)
    return placed(folder, "message", b"\n".join([message.text.encode(), *message.buffers]))


def read_wire(path):
    text, *buffers = read_bytes(path).split(b"\n", 2)
    return decode_message(WireMessage(text.decode(errors="replace"), tuple(buffers)))


def drawn(folder):
    with (folder / "a.npz").open("wb") as file:
        labels = torch.arange(N) % 3
        figure.write_figure(figure.DiscFigure(torch.rand(N, 2) / 2, labels), file)
    return folder / "a.npz"


def packing(folder):
    prototypes._write(folder / "a.npz", torch.from_numpy(np.eye(3, 2)))
    return folder / "a.npz"


def identity(folder):
    write_identities(folder / "keys", 2)
    return folder / "keys" / "0.pub"


def archive(folder, name):
    import tarfile
    import zipfile

    placed(folder, "member", b"numbers" * 50)
    if name.endswith(".zip"):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as file:
            file.write(folder / "member", "member")
    else:
        with tarfile.open(folder / name, "w:gz") as file:
            file.add(folder / "member", "member")
    return folder / name


def of(dataset):
    return lambda path: dataset(path).read(None, download=False)


def of_graph(path):
    return GraphFile(path).read(Rng(0), None, download=False)


FORMATS = {
    **{f"table.{end}": Format(
        lambda folder, end=end: table(folder, f"t.{end}", "\t" if end == "tsv" else ","), read_table
    ) for end in ("csv", "tsv")},
    **({"table.parquet": Format(parquet_table, read_table)} if find_spec("pyarrow") else {}),
    "published table.tsv.gz": Format(
        lambda f: published_table(f, "t.tsv.gz", "a\tb\ttarget\n"), read_published_table
    ),
    "published table.arff.gz": Format(
        lambda f: published_table(f, "t.arff.gz", "% x\n@relation r\n@data\n"), read_published_table
    ),
    "arrays": Format(lambda f: arrays(f, **labelled()), of(Arrays)),
    "packed arrays": Format(lambda f: arrays(f, compressed=True, **labelled()), of(Arrays)),
    "arrays of images": Format(
        lambda f: arrays(f, **labelled(x=random().integers(0, 256, (N, 5, 5), dtype=np.uint8))),
        of(Arrays),
    ),
    "arrays with parts": Format(lambda f: arrays(f, **parts()), of(Arrays)),
    "arrays with clients": Format(
        lambda f: arrays(f, **labelled(who=np.array(["a", "bc"] * (N // 2)))),
        of(lambda path: Arrays(path, x="x", y="y", client="who")),
    ),
    "points": Format(lambda f: arrays(f, **parts(0.5)), lambda path: Points(path).load(Rng(0))),
    "graph": Format(lambda f: arrays(f, **graph()), of_graph),
    "sparse graph": Format(sparse_graph, of_graph),
    "graphs": Format(
        lambda f: arrays(f, **graph()), lambda path: GraphFiles([path.parent]).load(Rng(0))
    ),
    "amazon": Format(amazon, graph_without(Amazon("Photo"), 3)),
    **{f"tu {part}": Format(
        lambda folder, part=part: tu(folder, part),
        lambda path: TUFamily("TOY").read(Rng(0), path.parents[1]),
        names_the_file=False,
    ) for part in ("A", "graph_indicator", "graph_labels", "node_labels", "node_attributes")},
    **{f"arxiv {part}": Format(
        lambda folder, part=part: arxiv(folder, part),
        graph_without(Arxiv(), 2),
        names_the_file=False,
    ) for part in ("edge", "node-feat", "node-label")},
    **{f"mnist {part}": Format(
        lambda folder, part=part: mnist(folder, part),
        no_download(MNIST(), 2),
        names_the_file=False,
    ) for part in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")},
    "letters": Format(letters, no_download(EMNISTLetters(), 2), names_the_file=False),
    "cifar": Format(cifar, no_download(CIFAR10(), 1), names_the_file=False),
    "pickled array": Format(
        lambda f: placed(f, "p", pickle.dumps(scipy.sparse.csr_matrix(np.eye(N)), protocol=2)),
        lambda path: unpickle(read_bytes(path), str(path)),
    ),
    "pickled graph": Format(
        lambda f: placed(f, "p", pickle.dumps({i: [i + 1, i - 1] for i in range(N)}, protocol=2)),
        lambda path: unpickle(read_bytes(path), str(path)),
    ),
    **{f"image{end}": Format(lambda folder, end=end: image(folder, end), read_images)
       for end in (".png", ".jpg", ".bmp", ".webp")},
    **{f"hierarchy{end}": Format(
        lambda folder, end=end: hierarchy(folder, f"h{end}"), of(HierarchyFile)
    ) for end in (".tsv", ".csv", ".csv.gz", ".json", ".json.gz")},
    "holders": Format(
        lambda folder: hierarchy(folder, "h.tsv"),
        lambda path: HolderFiles(path.parent).load(Rng(0)),
    ),
    "names": Format(agreed_names, Vocabulary.read),
    **{f"embedding{end}": Format(
        lambda folder, end=end: embedded(folder, f"e{end}"), Embedding.load
    ) for end in (".npz", *([".safetensors"] if find_spec("safetensors") else []))},
    "figure": Format(drawn, figure.read_figure),
    "metrics": Format(lambda f: a_run(f, "metrics.csv"), lambda p: RunFolder(p.parent).rows()),
    "times": Format(lambda f: a_run(f, "times.csv"), lambda p: RunFolder(p.parent).times()),
    "environment": Format(
        lambda f: a_run(f, "environment.json"), lambda p: RunFolder(p.parent).environment
    ),
    "engine": Format(lambda f: a_run(f, "engine.json"), lambda p: RunFolder(p.parent).engine),
    "checkpoint": Format(lambda f: a_run(f, "state.pt"), read_run),
    "complete": Format(lambda f: a_run(f, "complete.json"), read_complete),
    "client states": Format(lambda f: a_run(f, "clients-0.log"), read_run),
    "place": Format(lambda f: a_run(f, "../place"), lambda p: read_rank(p.parent / "seed3/x")),
    "settings": Format(lambda f: a_run(f, "config.yaml"), read_settings),
    "configuration": Format(
        lambda f: a_run(f, "config.yaml"),
        lambda path: read_words(run, ["--config", str(path)]),
        names_the_file=False,
    ),
    "published numbers": Format(published, read_published),
    "saved tensors": Format(lambda f: saved(f, TREE), load_torch, names_the_file=False),
    "node's states": Format(stored, lambda path: ClientStateStore(path).last()),
    "weights": Format(
        lambda f: saved(f, MLP((4,)).build(Meta(2, (3,), 1)).state_dict()),
        lambda path: Adapted(MLP((4,)), path).build(Meta(2, (3,), 1)),
    ),
    "prototypes": Format(packing, lambda path: prototypes._read(path, (3, 2)), False),
    "bytes of a tree": Format(
        lambda f: placed(f, "tree", tree_to_bytes(TREE)),
        lambda path: tree_from_bytes(read_bytes(path)),
        names_the_file=False,
    ),
    "message": Format(wire, read_wire, names_the_file=False),
    "identity": Format(identity, lambda path: read_identity(path.parent, 0)),
    **{f"archive{end}": Format(
        lambda folder, end=end: archive(folder, f"a{end}"),
        lambda path: members(path, ["member"]),
        names_the_file=False,
    ) for end in (".zip", ".tar.gz")},
}  # fmt: skip
