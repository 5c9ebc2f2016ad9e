"""Data of users: arrays, tables, and data sets of other packages."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    Arrays,
    ByColumn,
    InMemory,
    Partitioned,
    TableFile,
    from_huggingface,
    from_partitioner,
    in_one,
)
from fedbolic.run import experiment
from fedbolic.run.configuration import build, describe

X, Y = np.linspace(-1, 1, 60).reshape(20, 3), np.arange(20) % 2
OWNERS = np.array(["north", "south", "north", "west"] * 5)


def read(dataset, root=None):
    return dataset.read(root, download=False)


def assert_split(parts, x=X, y=Y):
    """Every fourth example of each class tests, counted by hand."""
    seen, test = {}, []
    for label in y:
        seen[label] = seen.get(label, 0) + 1
        test.append(seen[label] % 4 == 0)
    test = np.array(test)
    for found, expected in (
        (parts.x_train, x[~test]),
        (parts.x_test, x[test]),
        (parts.y_train, y[~test]),
        (parts.y_test, y[test]),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def write_csv(path, rows, head=("a", "b", "c", "kind", "site")):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([head, *rows])
    return path


def table_rows():
    return [
        [*x, ("cat", "dog")[y], owner] for x, y, owner in zip(X.tolist(), Y, OWNERS, strict=True)
    ]


# --- arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, lambda values: values.tolist()])
def test_arrays_tensors_and_lists_are_split(convert):
    assert_split(read(InMemory(convert(X), convert(Y))))


def test_a_test_set_that_is_given_is_kept():
    parts = read(InMemory(X, Y, test=(X[:3], Y[:3]), class_names=("no", "yes", "unseen")))
    assert (len(parts.x_train), len(parts.x_test), parts.num_classes) == (20, 3, 3)
    assert parts.class_names == ("no", "yes", "unseen")


@pytest.mark.parametrize(
    "names",
    [{"x": X, "y": Y}, {"label": Y, "data": X}, {"a": X, "b": Y, "class_names": ["n", "p"]}],
)
def test_two_arrays_of_any_name_are_read_from_a_file(names, tmp_path):
    np.savez(tmp_path / "f.npz", **names)
    assert_split(read(Arrays(tmp_path / "f.npz")))


def test_arrays_may_be_named_if_there_are_more(tmp_path):
    np.savez(tmp_path / "f.npz", x=X, y=Y, z=Y[::-1], w=X)
    assert_split(read(Arrays(tmp_path / "f.npz", x="w", y="y")))
    with pytest.raises(ValueError, match="name them by x and y"):
        read(Arrays(tmp_path / "f.npz"))
    with pytest.raises(ValueError, match=r"lacks v: it has w, x, y, z"):
        read(Arrays(tmp_path / "f.npz", x="v", y="y"))


def test_no_pickle_of_a_user_is_opened(tmp_path):
    np.savez(tmp_path / "f.npz", x=X, y=np.array([{}] * 20, dtype=object))
    with pytest.raises(ValueError, match=r"not an \.npz of plain arrays"):
        read(Arrays(tmp_path / "f.npz"))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.where(X > 0.9, np.nan, X), Y, r"NaN|nan in row .*column's mean.*leave out"),
        (X, Y * 3, r"no example has label 1, 2: renumber them by y = np.unique"),
        (X, np.array(["a", "b"] * 10), r"names, y = np.unique\(y, return_inverse=True\)"),
        (X, Y.astype(float), r"y\.astype\(int\)"),
        (X, np.eye(2)[Y], r"one-hot, use y.argmax\(1\)"),
        (X, Y[:, None], r"use y\[:, 0\]"),
        (X, np.full(20, np.nan), "leave these examples out"),
        (X, Y[:7], "20 examples but 7 labels"),
        (X.reshape(20, 3, 1).astype(int), Y, r"uint8 or floats in \[0, 1\]"),
    ],
)
def test_bad_data_are_refused_with_a_remedy(x, y, message):
    with pytest.raises(ValueError, match=message):
        read(InMemory(x, y))


# --- clients that the data name ----------------------------------------------------------------


def test_clients_are_those_of_the_array():
    data = Partitioned(InMemory(X, Y, client=OWNERS), ByColumn(), test_rate=0.0).load(Rng(0))
    parts, kept = read(InMemory(X, Y)), []
    for name in sorted(set(OWNERS)):
        rows = {tuple(row) for row in X[name == OWNERS].astype(np.float32).tolist()}
        kept.append(sum(tuple(row) in rows for row in parts.x_train.tolist()))
    assert [client.size for client in data.clients] == kept
    for client, name in zip(data.clients, sorted(set(OWNERS)), strict=True):
        rows = X[name == OWNERS].astype(np.float32).tolist()
        assert all(row in rows for row in client.train.all()["x"].tolist())


def test_numbered_clients_are_in_the_order_of_numbers():
    owners = np.array([10, 9] * 10)
    (first, _) = Partitioned(InMemory(X, Y, client=owners), ByColumn()).load(Rng(0)).clients
    assert set(first.train.all()["y"].tolist()) == {1}  # label 1 is owned by client 9


def test_a_partition_by_column_needs_clients_of_the_least_size():
    with pytest.raises(ValueError, match="set client to the name of the column"):
        Partitioned(InMemory(X, Y), ByColumn()).load(Rng(0))
    with pytest.raises(ValueError, match=r"clients \[2\] have \[3\] .* least"):
        Partitioned(InMemory(X, Y, client=OWNERS), ByColumn(least=5)).load(Rng(0))


def test_other_partitions_ignore_the_clients():
    named = Partitioned(InMemory(X, Y, client=OWNERS), IID(3)).load(Rng(0))
    plain = Partitioned(InMemory(X, Y), IID(3)).load(Rng(0))
    assert named.sizes == plain.sizes


# --- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_a_table_is_read_with_its_target_and_clients(name, tmp_path):
    path = write_csv(tmp_path / name, table_rows())
    dataset = TableFile(path, target="kind", client="site")
    parts = read(dataset)
    assert_split(parts)
    assert parts.class_names == ("cat", "dog")
    data = Partitioned(dataset, ByColumn()).load(Rng(0))
    assert len(data.clients) == 3
    assert data.class_names == ("cat", "dog")


def test_columns_may_be_left_out(tmp_path):
    path = write_csv(tmp_path / "t.csv", table_rows())
    assert_split(read(TableFile(path, target="kind", drop=("site", "b"))), x=X[:, [0, 2]])


def test_numbered_targets_with_gaps_are_classes_in_order(tmp_path):
    rows = [[i, (10, 9)[i % 2]] for i in range(8)]
    parts = read(TableFile(write_csv(tmp_path / "t.csv", rows, ("a", "k")), target="k"))
    assert parts.class_names == ("9", "10")
    assert parts.y_train.tolist() == [1, 0] * 3


def test_classes_that_a_file_lacks_keep_their_labels(tmp_path):
    path = write_csv(tmp_path / "t.csv", table_rows())
    parts = read(TableFile(path, target="kind", drop=("site",), classes=("ant", "dog", "cat")))
    assert (parts.class_names, parts.num_classes) == (("ant", "dog", "cat"), 3)
    assert_split(parts, y=2 - Y)
    with pytest.raises(ValueError, match="has classes that `classes` lacks: cat"):
        read(TableFile(path, target="kind", drop=("site",), classes=("ant", "dog")))
    with pytest.raises(ValueError, match="classes must differ, got ant, cat, dog, cat"):
        TableFile(path, target="kind", classes=("ant", "cat", "dog", "cat"))


@pytest.mark.parametrize(
    ("replaced", "settings", "message"),
    [
        ((3, 0, "red"), {}, r"'a' .* holds 'red' in row 4.*one column of 0 and 1.*drop=\[a\]"),
        ((3, 0, ""), {}, "'a' .* is empty in row 4"),
        ((3, 0, "n/a"), {}, "'a' .* is empty in row 4"),
        ((3, 0, "2,5"), {}, "'a' .* holds '2,5' in row 4.*: write it with a decimal point"),
        ((3, 0, "nan"), {}, "'a' .* holds nan in row 4"),
        ((3, 3, ""), {}, "'kind' .* is empty in row 4"),
        ((3, 4, " "), {"client": "site"}, "'site' .* is empty in row 4"),
        (None, {"target": "class"}, "no column class: it has a, b, c, kind, site"),
        (None, {"drop": ("d",)}, "no column d"),
        (None, {"drop": ("a", "b", "c", "site")}, "no column of features"),
    ],
)
def test_a_bad_table_is_refused_with_a_remedy(replaced, settings, message, tmp_path):
    rows = table_rows()
    if replaced:
        row, column, value = replaced
        rows[row][column] = value
    path = write_csv(tmp_path / "t.csv", rows)
    with pytest.raises(ValueError, match=message) as caught:
        read(TableFile(path, **{"target": "kind", "drop": ("site",) * ("client" not in settings)}
                       | settings))  # fmt: skip
    assert "t.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"a,k\n1,2,3\n", "row 1 of .* has 3 values for 2 columns"),
        (b"a,a,k\n1,2,3\n", "columns of the same name"),
        (b"\xff\xfea,k\n", "line 1: the text is not UTF-8"),
    ],
)
def test_a_damaged_table_is_refused(text, message, tmp_path):
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        read(TableFile(tmp_path / "t.csv", target="k"))


def test_the_extension_says_what_a_table_is(tmp_path):
    (tmp_path / "t.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must end in \.csv, \.tsv or \.parquet"):
        read(TableFile(Path("t.pkl"), target="k"), root=tmp_path)


def test_a_parquet_file_is_the_same_table(tmp_path):
    path = tmp_path / "t.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        path.write_bytes(b"")
        with pytest.raises(ImportError, match=r"fedbolic\[parquet\].*\.csv"):
            read(TableFile(path, target="kind"))
        return
    columns = dict(zip("abc", X.T, strict=True)) | {"kind": [("cat", "dog")[y] for y in Y]}
    parquet.write_table(pyarrow.table(columns), path)
    assert_split(read(TableFile(path, target="kind")))


def test_a_configuration_names_a_table_and_its_clients(tmp_path):
    path = write_csv(tmp_path / "t.csv", table_rows())
    text = f"""
    data:
      class_path: fedbolic.data.Partitioned
      init_args:
        dataset:
          class_path: fedbolic.data.TableFile
          init_args: {{path: {path}, target: kind, client: site}}
        partition: fedbolic.data.ByColumn
    """
    (tmp_path / "run.yaml").write_text(text)
    given = build(experiment.run, ["--config", str(tmp_path / "run.yaml")])
    assert given["data"] == Partitioned(TableFile(path, "kind", "site"), ByColumn())
    (tmp_path / "again.yaml").write_text(describe(experiment.run, given))
    assert (
        build(experiment.run, ["--config", str(tmp_path / "again.yaml")])["data"] == given["data"]
    )


# --- other packages ----------------------------------------------------------------------------


class Table(dict):
    """The public interface of a data set that is used: columns, their names and features."""

    features: dict = {}  # noqa: RUF012

    @property
    def column_names(self):
        return list(self)


class Names:
    """A feature with names of classes."""

    names = ("zero", "one")


class Partitioner:
    """The public interface of a partitioner."""

    def __init__(self, parts):
        self.parts, self.num_partitions = parts, len(parts)

    def load_partition(self, i):
        return self.parts[i]


def test_a_data_set_of_hugging_face_becomes_arrays():
    table = Table(image=list(np.ones((8, 4, 4), np.uint8)), label=list(Y[:8]), who=list("abca" * 2))
    table.features = {"label": Names()}
    parts = read(from_huggingface(table, inputs="image", target="label", client="who"))
    assert parts.x_train.shape == (6, 1, 4, 4)
    assert parts.class_names == ("zero", "one")
    assert parts.owners.max() == 2
    with pytest.raises(ValueError, match="no column text: there are image, label, who"):
        from_huggingface(table, inputs="text", target="label")


def test_columns_of_numbers_and_names_become_features_and_classes():
    table = Table(a=list(X[:, 0]), b=list(X[:, 1]), kind=[("cat", "dog")[y] for y in Y])
    parts = read(from_huggingface(table, inputs=("a", "b"), target="kind"))
    assert_split(parts, x=X[:, :2])
    assert parts.class_names == ("cat", "dog")


def test_inputs_of_different_shapes_are_refused():
    table = Table(x=[[1.0], [1.0, 2.0]], y=[0, 1])
    with pytest.raises(ValueError, match="differ in shape"):
        from_huggingface(table, inputs="x", target="y")


def test_partitions_of_flower_are_the_clients():
    tables = [Table(x=list(X[i::3]), y=list(Y[i::3])) for i in range(3)]
    whole = in_one(from_partitioner(Partitioner(tables), inputs="x", target="y"))
    data = Partitioned(whole, ByColumn(), test_rate=0.0).load(Rng(0))
    for i, client in enumerate(data.clients):
        rows = X[i::3].astype(np.float32).tolist()
        assert all(row in rows for row in client.train.all()["x"].tolist())


def test_the_packages_themselves_agree():
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    whole = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    assert_split(read(from_huggingface(whole, inputs="x", target="y")))
    partitioner = partitioners.IidPartitioner(num_partitions=4)
    partitioner.dataset = whole
    parts = from_partitioner(partitioner, inputs="x", target="y")
    assert [len(part.y) for part in parts] == [5, 5, 5, 5]
