"""Small files made to cost much: each declares, repeats, nests or hides more than it holds."""

import gzip
import json
import os
import pickle
import struct
import zipfile
import zlib

import numpy as np
import torch

from fedbolic.core.client_states import RECORD_HEAD
from fedbolic.core.torch_files import save_sealed
from tests.readers import formats
from tests.readers.formats import FORMATS, N, arrays, graph, labelled, parts, placed

HUGE = 2**40


def npy(shape, dtype="<f4", content=b"", by_columns=False):
    """An .npy file whose header declares any shape."""
    head = str({"descr": dtype, "fortran_order": by_columns, "shape": shape}).encode()
    head = head.ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + content


def npz(folder, method=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(folder / "a.npz", "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return folder / "a.npz"


def declared_size(path, old, new):
    """A zip file whose directory declares another size of its members."""
    content = path.read_bytes()
    assert struct.pack("<I", old) in content
    path.write_bytes(content.replace(struct.pack("<I", old), struct.pack("<I", new)))
    return path


def lying_zip(folder):
    y = npy((N,), "<i8", np.arange(N).tobytes())
    path = npz(folder, x=npy((2**28, 4), "<f4", b"0" * 1000), y=y)
    return declared_size(path, len(npy((2**28, 4))) + 1000, 2**32 - 2)


def with_array(**changes):
    return lambda folder: arrays(folder, **labelled(**changes))


def with_graph(**changes):
    return lambda folder: arrays(folder, **{**graph(), **changes})


def sparse(shape, indptr=None):
    def write(folder):
        named = {k: v for k, v in graph().items() if k != "x"}
        rows = {**formats.csr("x", np.eye(N)), "x_shape": np.array(shape)}
        return arrays(folder, **named, **rows | ({} if indptr is None else {"x_indptr": indptr}))

    return write


def text(reader, name, content):
    """The usual files of a format, with the content of one of them replaced."""

    def write(folder):
        path = FORMATS[reader].write(folder)
        found = content() if callable(content) else content
        data = found.encode() if isinstance(found, str) else found
        packed = path.suffix == ".gz" and data[:2] != b"\x1f\x8b"
        path.write_bytes(gzip.compress(data) if packed else data)
        return path

    return (name, reader, write)


def put_far(folder):
    """A pickle that puts one value at the end of a memo of 32 GB."""
    return placed(folder, "p", b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".")


def long_string(folder):
    return placed(folder, "p", b"\x80\x04\x8d" + struct.pack("<Q", HUGE) + b"abc.")


def nested_lists(depth):
    """Lists of the same list: 10 ** depth numbers by a pickle of some hundred bytes."""
    value = [1] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


def empty_array(folder):
    """A batch whose array is made with a shape of a terabyte before it is filled."""
    path = FORMATS["cifar"].write(folder)
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x8a\x06"
    made += HUGE.to_bytes(6, "little") + b"\x85c_codecs\nencode\nX\x01\0\0\0bX\x06\0\0\0latin1\x86R"
    path.write_bytes(b"\x80\x02}X\x04\0\0\0data" + made + b"\x87Rs.")
    return path


def saved(value):
    return lambda folder: formats.saved(folder, value)


class Called:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def packed_checkpoint(folder):
    """A saved tensor that is compressed: of zeros, it could be of any size."""
    path = formats.saved(folder, {"x": torch.zeros(8)})
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            with file.open(name, "w", force_zip64=True) as member:
                member.write(content)
                for _ in range(16 if name.endswith("/data/0") else 0):
                    member.write(bytes(2**20))
    return path


def resealed(edit):
    """A checkpoint that was changed and sealed again."""

    def write(folder):
        path = formats.a_run(folder, "state.pt")
        state = torch.load(path, weights_only=True)
        edit(state)
        with path.open("wb+") as file:
            save_sealed(state, file)
        return path

    return write


def forged_client(folder):
    """A client's state under an id that asks for a table of terabytes, with right checksums."""
    path = formats.a_run(folder, "state.pt")
    body = b"\2\0\0\0{}"
    rest = RECORD_HEAD.pack(0, HUGE, len(body))[4:] + body
    record = struct.pack("<I", zlib.crc32(rest)) + rest
    (path.parent / "clients-0.log").write_bytes(record)
    commit = {"generation": 0, "size": len(record), "checksum": zlib.crc32(record)}
    state = torch.load(path, weights_only=True) | {"client_states": commit}
    with path.open("wb+") as file:
        save_sealed(state, file)
    return path


def shared(depth):
    value = {"x": 1}
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


def tree_of(form):
    body = json.dumps(form).encode()
    return struct.pack("<I", len(body)) + body + bytes(64)


def pipe(reader):
    """A pipe without a writer in place of the file: whoever opens it waits for ever."""

    def write(folder):
        path = FORMATS[reader].write(folder)
        path.unlink()
        os.mkfifo(path)
        return path

    return (f"a pipe for {reader}", reader, write)


def image_of(width, height):
    """A PNG of one colour that declares any size."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(min(3 * width + 1, 2**16) * min(height, 2**10)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def bomb(head=b"", size=2**29):
    """A gzip file of zeros after a head, in parts that are decompressed one after another."""
    return gzip.compress(head) + (size // 2**20) * gzip.compress(bytes(2**20))


def chain(n):
    return "".join(f"{i}\t{i + 1}\n" for i in range(n))


def laughs(depth):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 8)}]" for i in range(depth)]
    return "\n".join(lines)


def many(form, number):
    return "".join(form.format(i) for i in range(number))


LINE, LONG, WIDE = "\n", "x" * 100_000, "\U0001f600" * 9000
MANY, EMPTY = "a," * 4_000_000, '"{}":["float32",[0],[1]],'
NAMES = '"{}":{{}},'

TWO = f"a,kind,site\n1,a,s{LINE}1,a,s{LINE}"
"""Head of a table with another class, as data of one class are refused."""

CRAFTED = [
    text("table.csv", "a long text", f"a,kind,site\n1,{LONG},s\n" + "1,b,s\n" * 12_000),
    text("table.csv", "a long line", lambda: "a,kind,site\n" + "1," * 4_000_000),
    text("table.csv", "a long row", lambda: 'a,kind,site\n"' + ('"\n,"' * 2_000_000) + '"\n'),
    text("table.csv", "many columns", lambda: many("{},", 300_000) + "kind,site\n"),
    text("table.csv", "many classes", lambda: f"a,kind,site\n{many('1,{},s' + LINE, 70_000)}"),
    text("table.csv", "long numbers", lambda: TWO + f"{'0' * 99_000}1,b,s\n" * 100),
    text("table.csv", "wide characters", lambda: f"{TWO}{f'1,{WIDE},s{LINE}' * 300}"),
    text("published table.tsv.gz", "zeros", bomb),
    ("an array of terabytes", "arrays", lambda f: npz(f, x=npy((HUGE, 4)), y=npy((N,), "<i8"))),
    ("a negative axis", "arrays", lambda f: npz(f, x=npy((-1, -8)), y=npy((N,), "<i8"))),
    ("an axis beside a 0", "arrays", lambda f: npz(f, x=npy((0, HUGE)), y=npy((0,), "<i8"))),
    ("numbers without bytes", "arrays", lambda f: npz(f, x=npy((HUGE,), "|V0"), y=npy((2,)))),
    ("a lying directory", "packed arrays", lying_zip),
    ("a packed array by bz2", "packed arrays", lambda f: npz(
        f, zipfile.ZIP_BZIP2, x=npy((2**20,), "<f4", bytes(2**22)), y=npy((N,), "<i8"))),
    ("a long name of a client", "arrays with clients", with_array(
        who=np.array(["x" * 10, *["b"] * (N - 1)]))),
    ("a label of 2^40", "arrays", with_array(y=np.array([HUGE] + [0] * (N - 1)))),
    ("a label of 2^40 in points", "points", lambda f: arrays(
        f, **{**parts(0.5), "y_test": np.array([HUGE] * 8)})),
    ("a label of 2^40 in a graph", "graph", with_graph(y=np.array([HUGE] + [0] * (N - 1)))),
    ("a label of 2^40 of graphs", "graphs", with_graph(y=np.array([HUGE] + [0] * (N - 1)))),
    ("an edge to 2^62", "graph", with_graph(edges=np.array([[0, 2**62]]))),
    ("a wide sparse matrix", "sparse graph", sparse((N, HUGE))),
    ("a sparse matrix of 6 GB", "sparse graph", sparse((N, 2**26))),
    ("a sparse matrix of 100 MB", "sparse graph", sparse((N, 2**20))),
    ("a tall sparse matrix", "sparse graph", sparse((HUGE, N))),
    ("many starts of rows", "sparse graph", sparse((N, N), indptr=np.arange(N + 1) * HUGE)),
    text("tu node_labels", "a label of 2^40", "0\n" * (N - 1) + f"{HUGE}\n"),
    text("tu graph_indicator", "a graph of number 2^40", "1\n" * (N - 1) + f"{HUGE}\n"),
    text("tu A", "an edge to 2^40", f"1, {HUGE}\n"),
    text("arxiv node-label", "a label of 2^40", "0\n" * (N - 1) + f"{HUGE}\n"),
    text("arxiv edge", "zeros", bomb),
    text("mnist train-images-idx3-ubyte", "a huge shape",
         bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(64)),
    text("letters", "zeros", lambda: bomb(bytes([0, 0, 8, 3]) + struct.pack(">3I", 1, 28, 28))),
    ("a memo of 32 GB", "pickled graph", put_far),
    ("a string of a terabyte", "pickled graph", long_string),
    ("an array before it is filled", "cifar", empty_array),
    text("cifar", "lists of lists", pickle.dumps(
        {"data": np.zeros((4, 3072), np.uint8), "labels": nested_lists(8)}, protocol=2)),
    text("image.png", "2^31 pixels", image_of(2**16, 2**15)),
    text("image.png", "10^8 pixels", image_of(10_000, 10_000)),
    text("hierarchy.tsv", "a chain", chain(8_000)),
    text("hierarchy.tsv", "a cycle", chain(8_000) + "8000\t0\n"),
    text("hierarchy.csv", "a header", "child,parent\n" + many("{},x\n", 2000)),
    text("metrics", "a long name", f"round,client,name,value\n1,,{LONG}{LONG},1\n"),
    text("metrics", "a long number", "round,client,name,value\n" + "9" * 5000 + ",,a,1\n"),
    text("environment", "a long number", '{"rounds": ' + "9" * 5000 + "}"),
    text("environment", "deep", "[" * 200_000),
    text("settings", "laughs", laughs(12)),
    text("settings", "deep", "a: " + "[" * 100_000),
    text("settings", "long", "a: [" + "1, " * 200_000 + "1]"),
    text("configuration", "laughs", laughs(12)),
    text("published numbers", "a long line", lambda: "row,setting,column,value,source\n" + MANY),
    ("an expanded tensor", "saved tensors", saved({"x": torch.zeros(1).expand(HUGE)})),
    ("branches that are shared", "saved tensors", saved(shared(60))),
    ("a bytearray of 8 GB", "saved tensors", saved({"x": Called(bytearray, 2**33)})),
    ("a class of torch", "saved tensors", saved({"x": Called(torch.Tensor, 2**35)})),
    ("a packed tensor", "saved tensors", packed_checkpoint),
    ("an expanded tensor of a run", "checkpoint", resealed(
        lambda state: state.update(server_state={"w": torch.zeros(1).expand(HUGE)}))),
    ("no sizes", "checkpoint", resealed(lambda state: state.pop("sizes"))),
    ("sizes that are texts", "checkpoint", resealed(lambda state: state.update(sizes="x"))),
    ("a client of id 2^40", "checkpoint", forged_client),
    text("bytes of a tree", "a huge shape", tree_of({"x": ["float32", [HUGE], [1], "cpu"]})),
    text("bytes of a tree", "a repeated number", tree_of({"x": ["float32", [HUGE], [0], "cpu"]})),
    text("bytes of a tree", "no dtype", tree_of({"x": ["save", [1], [1], "cpu"]})),
    text("message", "a huge tensor", json.dumps({"x": ["float32", [HUGE], [1]]})),
    text("message", "many axes", json.dumps({"x": ["float32", [2] * 1000, [1] * 1000]})),
    text("message", "deep", '{"a":' * 100_000),
    text("message", "many names", lambda: f"{{{many(NAMES, 700_000)}".strip(",") + "}"),
    text("message", "many tensors", lambda: f"{{{many(EMPTY, 130_000)}".strip(",") + "}"),
    *(pipe(reader) for reader in (
        "table.csv", "arrays", "graphs", "image.png", "hierarchy.tsv", "metrics", "environment",
        "engine", "place", "checkpoint", "settings", "configuration", "published numbers",
        "saved tensors", "node's states", "figure", "identity",
    )),
]  # fmt: skip
"""Name, reader and writer of every file."""
