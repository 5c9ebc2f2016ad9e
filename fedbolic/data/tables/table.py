"""Tabular data sets: published tables by OpenML id, generated tables, and images as rows."""

import gzip
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.core.reading import lines, open_file, table_rows
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.contract.labelled import check_classes, every_fourth
from fedbolic.data.files.published_files import RemoteFile, locate
from fedbolic.data.tables.columns import Columns

Two: TypeAlias = Literal["largest", "mean"] | None

PMLB = "https://github.com/EpistasisLab/pmlb/raw/master/datasets"


@dataclass(frozen=True)
class Origin:
    """File of a table, and its conversion to labelled examples.

    Args:
        file: Gzipped file: tab-separated or comma-separated with column names on the first line, or
            ARFF. The last column is the target.
        two: Conversion to two classes: ``largest`` separates the largest class (the first one in
            case of a tie) from the rest, ``mean`` separates targets below their mean from the rest.
            ``None`` keeps the published classes.
        rows: Number of rows to use, from the first; ``None`` for all.
    """

    file: RemoteFile
    two: Two = None
    rows: int | None = None


def _pmlb(name: str, md5: str, *, two: Two = None, rows: int | None = None) -> Origin:
    file = f"{name}/{name}.tsv.gz"
    return Origin(RemoteFile(f"pmlb/{file}", md5, (f"{PMLB}/{file}",)), two, rows)


def _openml(file: str, md5: str, *, two: Two = None) -> Origin:
    return Origin(RemoteFile(f"openml/{file.partition('.')[0]}/{file}", md5, ()), two)


TABLES = {
    6: _pmlb("letter", "a9702c5150043ec3c27d14f1033808e5"),
    12: _openml("mfeat-factors.csv.gz", "9a9738804a8f6308ef00bc166b163c58"),
    14: _pmlb("mfeat_fourier", "0444bd8fffa3d76c4dd1606812ea502e"),
    16: _openml("mfeat-karhunen.csv.gz", "c3d1bb80be370afeaefe5452402a1c40"),
    22: _openml("mfeat-zernike.csv.gz", "67826cb9b62471bfe413c208a2db56a2"),
    36: _openml("segment.csv.gz", "11656653a399f07600eadb1263733111"),
    44: _pmlb("spambase", "9cbc8646e05a17390ca2b7816a35d1a2"),
    60: _pmlb("waveform_40", "cdb25a723371a0e1e0330f6395eedf1f"),
    182: _openml("satimage.csv.gz", "ad721f03921d637601c81831b9d80f17"),
    715: _pmlb("586_fri_c3_1000_25", "9602cadd5afe404cde9e190846a25e76", two="mean"),
    718: _pmlb("588_fri_c4_1000_100", "b5eb4ab3e532050e6bd7e93f2c38f65a", two="mean"),
    722: _pmlb("201_pol", "698019777b813070632a978ae4aecb6d", two="mean"),
    723: _pmlb("592_fri_c4_1000_25", "f088bd8422ccbd927a0e9a28e7167133", two="mean"),
    734: _openml("ailerons.arff.gz", "a3abf3541a2abb64959fced2e439b7e2", two="mean"),
    752: _openml("puma32H.arff.gz", "23fe5e15b0678976a5fbc02c719f07b2", two="mean"),
    761: _pmlb("573_cpu_act", "640bc5ad955688c993f12c46d21a9288", two="mean"),
    797: _pmlb("607_fri_c4_1000_50", "db4daf0b7ae1ce9faea1f4d85bcaf9d2", two="mean"),
    806: _pmlb("618_fri_c3_1000_50", "7d8cdfdab528fd0118b307023b387c70", two="mean"),
    833: _openml("bank32nh.arff.gz", "5bceeb7bcb04befcd28f7f3e30ca7500", two="mean"),
    849: _pmlb("598_fri_c0_1000_25", "84028e6d7595df01c4895982ff8a8d4c", two="mean"),
    903: _pmlb("589_fri_c2_1000_25", "f1b912ea75fb5cd584440b1e0a9a3ede", two="mean"),
    917: _pmlb("620_fri_c1_1000_25", "fecb32c3b6798026428905eb3c692956", two="mean"),
    971: _pmlb("mfeat_fourier", "0444bd8fffa3d76c4dd1606812ea502e", two="largest"),
    978: _openml("mfeat-factors.csv.gz", "9a9738804a8f6308ef00bc166b163c58", two="largest"),
    979: _pmlb("waveform_40", "cdb25a723371a0e1e0330f6395eedf1f", two="largest"),
    995: _openml("mfeat-zernike.csv.gz", "67826cb9b62471bfe413c208a2db56a2", two="largest"),
    1020: _openml("mfeat-karhunen.csv.gz", "c3d1bb80be370afeaefe5452402a1c40", two="largest"),
    1049: _openml("pc4.arff.gz", "e3326c97e24532bc01b70f2cf89beddc"),
    1050: _openml("pc3.csv.gz", "7a409a7a541689ba09cf8025b43e835a"),
    1067: _openml("kc1.csv.gz", "f60830605f775c50061d9c4e4bf30c27"),
    1068: _openml("pc1.csv.gz", "723037eed0920cb9c2cdf94e08a3b1f9"),
    1466: _openml("cardiotocography.csv.gz", "e7f9675d5aab0fcec0435cc8d783c38a"),
    1475: _openml("first-order-theorem-proving.csv.gz", "2807c2e5d260199d75fb9294280f6e04"),
    1479: _pmlb("Hill_Valley_with_noise", "ffec697a43d873ba6548bbbf0e973111"),
    1496: _pmlb("ring", "979a3f376de5c0d5f77476e671a0c7f1"),
    1504: _openml("steel-plates-fault.csv.gz", "accc8ddcfc7c682661f633ddacb97ee2"),
    40497: _pmlb("ann_thyroid", "00470eaa6eabed8106f2f0b21d2c8fc5", rows=3772),
}
"""Tables by OpenML id; files of PMLB contain the same examples."""


@dataclass(frozen=True, eq=False)
class Whole:
    """A whole table without a split into training and test parts.

    Args:
        x: Features, one example per row.
        y: Labels from 0, in ascending order of the published targets.
    """

    x: Float64[Tensor, "n d"]
    y: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Table(Dataset):
    """A published table of numbers with a class in its last column.

    There is no official test part: every fourth example of each class is used for testing. Files
    are read from ``pmlb/NAME/NAME.tsv.gz`` or ``openml/NAME/NAME.csv.gz`` (or ``.arff.gz``) in a
    data folder or in the cache. Files of PMLB are downloaded; files of OpenML must be placed there.

    Args:
        openml: OpenML id of the table, a key of :data:`TABLES`; 6 is Letters, 182 Satimage.

    Raises:
        ValueError: If the id is not in :data:`TABLES`.

    References:
        Vanschoren et al. (2013), arXiv:1407.7722; Olson et al. (2017), arXiv:1703.00512. Ids as in
        Table 4 of Ram and Sinha (2022), arXiv:2112.07157.
    """

    openml: int

    def __post_init__(self) -> None:
        if self.openml not in TABLES:
            known = ", ".join(map(str, sorted(TABLES)))
            raise ValueError(f"openml is {self.openml}, but the known tables are {known}")

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        table = self.read_all(root, download=download)
        test = every_fourth(table.y)
        x, y, num = table.x.float(), table.y, int(table.y.max()) + 1
        return OfficialParts(f"table {self.openml}", x[~test], y[~test], x[test], y[test], num)

    def read_all(self, root: Path | None, *, download: bool) -> Whole:
        """Read the whole table in double precision.

        Args:
            root: As for :meth:`read`.
            download: As for :meth:`read`.

        Raises:
            FileNotFoundError: If the file is missing and cannot be downloaded.
            ValueError: If the file is damaged.
        """
        origin = TABLES[self.openml]
        file = origin.file
        (path,) = locate(file, root=root, download=download and bool(file.urls))
        name = str(path)
        with open_file(path) as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            texts = lines(unpacked, name)
            if name.endswith(".arff.gz"):
                texts = _after_data(texts)
            else:
                next(texts, None)  # names of the columns
            delimiter = "\t" if name.endswith(".tsv.gz") else ","
            rows = (row for _, row in table_rows(texts, name, delimiter=delimiter))
            rows = itertools.islice(rows, origin.rows)
            first = next(rows, None)
            if first is None:
                raise ValueError(f"{path} has no rows: it is truncated or damaged")
            head = [f"{i}" for i in range(1, len(first) + 1)]
            columns = Columns(
                name,
                head,
                features=range(len(first) - 1),
                coded=(len(first) - 1,),
                dtype=np.float64,
            )
            x = columns.read(itertools.chain([first], rows))
        values, codes = columns.codes(len(first) - 1)
        return Whole(torch.from_numpy(x), _classes(values, codes, origin.two, name))


def _after_data(texts: Iterator[str]) -> Iterator[str]:
    for line in texts:
        if line.strip().lower() == "@data":
            break
    rows = (line.strip().rstrip(",") for line in texts)  # some lines end in a comma
    return (row for row in rows if row and not row.startswith("%"))


def _classes(
    values: Sequence[str], codes: Int64[Tensor, " n"], two: Two, name: str
) -> Int64[Tensor, " n"]:
    """Convert targets, given by their different values in ascending order, to labels from 0."""
    if two == "mean":
        try:
            numbers = np.array(values, dtype=np.float64)[codes]
        except ValueError as error:
            raise ValueError(f"{name} has a target that is not a number: {error}") from error
        return torch.from_numpy((numbers >= numbers.mean()).astype(np.int64))
    check_classes(name, codes)
    if two == "largest":
        codes = (codes != codes.bincount().argmax()).long()
    return codes


@dataclass(frozen=True)
class Synthetic(Dataset):
    """Generated classes of several Gaussian clusters at the corners of a hypercube.

    The classes are not linearly separable.

    Args:
        num_train: Number of training examples, at least 1.
        num_test: Number of test examples from the same distribution, at least 0.
        num_features: Number of features, all informative; at least the base-2 logarithm of the
            total number of clusters.
        num_classes: Number of classes, at least 2.
        num_clusters: Number of clusters per class, at least 1.
        separation: Half the side of the hypercube, above 0.
        draw: Seed of the generator, from 0, independent of the run's seed.

    Raises:
        ValueError: If a value is out of range.

    References:
        Ram and Sinha (2022), Appendix D.2, arXiv:2112.07157; Guyon (2003), Design of experiments
        of the NIPS 2003 variable selection benchmark.

    Example:
        >>> parts = Synthetic(num_train=90, num_test=10, num_features=8).read(None, download=False)
        >>> parts.x_train.shape, parts.num_classes
        (torch.Size([90, 8]), 5)
    """

    num_train: int = 10_000
    num_test: int = 1000
    num_features: int = 50
    num_classes: int = 5
    num_clusters: int = 3
    separation: float = 1.2
    draw: int = 0

    def __post_init__(self) -> None:
        check.at_least(0, num_test=self.num_test, draw=self.draw)
        check.at_least(1, num_train=self.num_train, num_clusters=self.num_clusters)
        check.at_least(2, num_classes=self.num_classes)
        check.positive(separation=self.separation)
        least = math.ceil(math.log2(self.num_classes * self.num_clusters))
        if self.num_features < least:
            raise ValueError(
                f"num_features must be at least {least}, got {self.num_features}: a cube needs a "
                "corner for every cluster"
            )

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        # imported here because it takes a second and other data sets do not need it
        with extra("data", "Synthetic"):
            from sklearn.datasets import make_classification

        x, y = make_classification(
            self.num_train + self.num_test,
            self.num_features,
            n_informative=self.num_features,
            n_redundant=0,
            n_classes=self.num_classes,
            n_clusters_per_class=self.num_clusters,
            class_sep=self.separation,
            random_state=self.draw,
        )
        x, y = torch.from_numpy(x), torch.tensor(y, dtype=torch.int64)
        n = self.num_train
        return OfficialParts("Synthetic", x[:n], y[:n], x[n:], y[n:], self.num_classes)


@dataclass(frozen=True)
class Rows(Dataset):
    """Images of a data set flattened to rows of integers, summed over their channels.

    Args:
        images: Data set of uint8 images.
        classes: Classes to keep, at least two, relabelled 0, 1, ... in this order; ``None`` for
            all.

    Raises:
        ValueError: If ``classes`` repeats a class or has fewer than two; when read, if the images
            are not uint8.
    """

    images: Dataset
    classes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes must be two or more different ones, got {self.classes}")

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        parts = self.images.read(root, download=download)
        if parts.x_train.dtype != torch.uint8:
            raise ValueError(
                f"{parts.name} holds {parts.x_train.dtype}, but uint8 images are needed"
            )
        train = self._rows(parts.x_train, parts.y_train)
        test = self._rows(parts.x_test, parts.y_test)
        return OfficialParts(
            parts.name, *train, *test, len(self.classes or ()) or parts.num_classes
        )

    def _rows(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.classes is not None:
            kept = torch.isin(y, torch.tensor(self.classes))
            x, y = x[kept], (y[kept, None] == torch.tensor(self.classes)).long().argmax(dim=1)
        return x.sum(dim=1, dtype=torch.int16).flatten(1).float(), y
