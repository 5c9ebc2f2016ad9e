"""Federated data of labelled points in the Poincare ball: embeddings from files, or generated."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import scipy
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.core.reading import read_arrays
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data.contract.client import HOLDOUT, Client, Examples, FederatedData
from fedbolic.data.contract.labelled import check_classes
from fedbolic.data.contract.partition import IID, Partition
from fedbolic.data.contract.source import Source
from fedbolic.data.files.published_files import find_given
from fedbolic.manifolds import Poincare

Holdout: TypeAlias = Literal["drawn", "official"]

PARTS = ("x_train", "y_train", "x_test", "y_test")

_NUM_RADII = 10_001
"""Points of the grid on which the density of distances is integrated."""

_MAX_DRAWS = 1000
"""Maximum number of random geodesics tried for two classes that are large enough."""


@dataclass(frozen=True)
class ClassRuns(Partition):
    """Equal runs of every class, one per client, after all examples are shuffled once.

    The last clients get fewer examples of a small class, or no examples of it.

    Args:
        num_clients: Number of clients, at least 1.
        legacy: If given, shuffle with NumPy's legacy generator, seeded with ``legacy`` times the
            run's seed; at least 0. The experiments of FedHull's authors used 3.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
        >>> [sorted(labels[part].tolist()) for part in ClassRuns(2).split(labels, Rng(0))]
        [[0, 0, 1], [0, 0, 1]]
    """

    num_clients: int = 3
    legacy: int | None = None

    def __post_init__(self) -> None:
        check.at_least(1, num_clients=self.num_clients)
        if self.legacy is not None:
            check.at_least(0, legacy=self.legacy)

    @override
    def split(self, labels: Int64[Tensor, " n"], rng: Rng) -> list[Tensor]:
        if self.legacy is None:
            order = torch.randperm(len(labels), generator=rng.generator())
        else:
            old = np.random.RandomState(self.legacy * rng.seed)  # as in the authors' code
            order = torch.from_numpy(old.permutation(len(labels)))
        parts: list[list[Tensor]] = [[] for _ in range(self.num_clients)]
        for label in labels.unique():
            run = order[labels[order] == label]
            length = math.ceil(len(run) / self.num_clients)
            for i, part in enumerate(parts):
                part.append(run[i * length : (i + 1) * length])
        return [torch.cat(part).sort().values for part in parts]


@dataclass(frozen=True)
class Points(Source):
    """Labelled points of the Poincare ball, read from a file and split among clients.

    The file is an ``.npz`` with ``x_train``, ``y_train``, ``x_test`` and ``y_test``; labels are
    integers from 0, of any dtype. Points stay float64 because they may lie near the boundary. The
    two parts of an embedding need not be identically distributed: if labels were used to place the
    training points only, a test set drawn from both parts is easier than the file's own.

    Args:
        path: The file. A relative path is looked up in ``root`` if that is given, otherwise in the
            folders of ``FEDBOLIC_DATA`` and then in the working directory.
        partition: Partition of the training points among clients.
        test_rate: Fraction of all points held out as the server's test set, in (0, 1), rounded up;
            ignored if ``holdout`` is ``official``.
        split: Seed of scikit-learn's ``train_test_split``, independent of the run's seed. By
            default it is derived from the run's seed.
        client_test_rate: Fraction of a client's points held out for testing, in [0, 1).
        c: Minus the curvature, above 0.
        root: Folder to read from; by default the one named by the variable FEDBOLIC_DATA.
        holdout: The server's test set: ``drawn`` from both parts of the file, training part first,
            as FedHull's authors do, or the file's own test part (``official``).

    Raises:
        ValueError: If a value is out of range, or ``split`` is given with an official holdout.
    """

    path: Path
    partition: Partition = ClassRuns()
    test_rate: float = 0.15
    split: int | None = None
    client_test_rate: float = 0.0
    c: float = 1.0
    root: Path | None = None
    holdout: Holdout = "drawn"

    def __post_init__(self) -> None:
        check.positive(c=self.c)
        check.one_of(get_args(Holdout), holdout=self.holdout)
        _check_rates(self.test_rate, self.client_test_rate)
        if self.holdout == "official" and self.split is not None:
            raise ValueError(
                f"split is {self.split}, but the official holdout is not drawn: leave split out, "
                "or use holdout='drawn'"
            )

    @override
    def load(self, rng: Rng) -> FederatedData:
        path = find_given(self.path, self.root, kind=".npz file")
        x, y, num_train = _read(path)
        try:
            Poincare(self.c).require(x)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if self.holdout == "official":
            if num_train in (0, len(y)):
                raise ValueError(f"{path} has an empty part: use holdout='drawn'")
            split = _Split(x, y, *torch.arange(len(y)).tensor_split([num_train]))
        else:
            seed = rng.at("holdout").number() % 2**32 if self.split is None else self.split
            split = _drawn(x, y, self.test_rate, seed)
        return _federate(split, self.partition, self.client_test_rate, rng)


@dataclass(frozen=True)
class HalfPlanes(Source):
    r"""Uniform points of a hyperbolic disc, labelled by their side of a random geodesic.

    With ``dim`` above 2, uniform points of a ball, labelled by their side of a random hyperplane.

    .. math:: \tau = 2 s \operatorname{arsinh}(\sqrt\eta \sinh(R_H / 2 s)), \quad \eta \sim U(0, 1)

    Here tau and R_H are hyperbolic distances of a point and of the disc's rim to the origin, and
    s is 1 / sqrt(c). The geodesic passes through a point at ``offset`` times the disc's radius.
    Points closer to it than ``margin`` are left out, and it is redrawn until both classes are large
    enough. With ``overlap``, normal noise is added to the signed distance of each point before
    its side is taken, so that the classes overlap and no classifier is perfect.

    Args:
        num_points: Number of points before the margin is applied, at least 10.
        offset: Position of the geodesic's point, as a fraction of the radius, in [0, 1): mu.
        margin: Minimum hyperbolic distance to the geodesic, at least 0: gamma.
        radius: Radius of the disc in coordinates, above 0 with ``c R^2 < 1``.
        least: Minimum number of points per class, at least 1.
        partition: Partition of the training points among clients.
        test_rate: Fraction of all points held out as the server's test set, in (0, 1), rounded up.
        client_test_rate: Fraction of a client's points held out for testing, in [0, 1).
        c: Minus the curvature, above 0.
        overlap: Standard deviation of that noise, a hyperbolic distance, at least 0; the paper has
            none.
        dim: Number of dimensions, at least 2; the paper has 2.

    References:
        Prakash et al. (2024), Algorithm 3 and Sec. 6.2, arXiv:2308.06895.

    Example:
        >>> data = HalfPlanes(num_points=500, least=50).load(Rng(0))
        >>> data.meta.num_clients, data.meta.num_classes, len(data.holdout.test)
        (10, 2, 50)
    """

    num_points: int = 2000
    offset: float = 0.4
    margin: float = 0.0
    radius: float = 0.95
    least: int = 100
    partition: Partition = IID(10)
    test_rate: float = 0.1
    client_test_rate: float = 0.0
    c: float = 1.0
    overlap: float = 0.0
    dim: int = 2

    def __post_init__(self) -> None:
        check.at_least(10, num_points=self.num_points)
        check.at_least(2, dim=self.dim)
        check.at_least(1, least=self.least)
        check.rate(below_one=True, offset=self.offset)
        check.not_negative(margin=self.margin, overlap=self.overlap)
        check.positive(radius=self.radius, c=self.c)
        if self.c * self.radius**2 >= 1:
            raise ValueError(f"c R^2 must be below 1, got radius {self.radius} and c {self.c}")
        _check_rates(self.test_rate, self.client_test_rate)

    @override
    def load(self, rng: Rng) -> FederatedData:
        x = uniform_points(
            self.num_points, radius=self.radius, c=self.c, rng=rng.at("points"), dim=self.dim
        )
        x, y = self._label(x, rng.at("geodesic").generator())
        split = _drawn(x, y, self.test_rate, rng.at("holdout").number() % 2**32)
        return _federate(split, self.partition, self.client_test_rate, rng)

    def _label(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The points outside the margin of a random geodesic, labelled by their side of it."""
        for _ in range(_MAX_DRAWS):
            (direction,) = _directions(1, self.dim, generator)
            through = self.offset * self.radius * direction
            normal = torch.randn(self.dim, generator=generator, dtype=torch.float64)
            away = Poincare(self.c).dist2plane(x, through, normal)
            far = away.abs() >= self.margin
            side = away[far]
            if self.overlap:
                noise = torch.randn(len(side), generator=generator, dtype=torch.float64)
                side = side + self.overlap * noise
            y = (side >= 0).long()
            if min(int(y.sum()), int((1 - y).sum())) >= self.least:
                return x[far], y
        raise ValueError(
            f"{_MAX_DRAWS} geodesics left fewer than {self.least} points in a class: use a smaller "
            "margin, offset or least, or more points"
        )


def uniform_points(
    num_points: int, *, radius: float, c: float = 1.0, rng: Rng, dim: int = 2
) -> Float64[Tensor, "n dim"]:
    r"""Points distributed uniformly by volume in a hyperbolic ball around the origin.

    In the plane the distance from the origin is drawn by its closed form. In other dimensions its
    density, proportional to :math:`\sinh^{n-1}`, is integrated on a fine grid and inverted.

    Args:
        num_points: Number of points, at least 0.
        radius: Radius of the disc in coordinates, above 0 with ``c R^2 < 1``.
        c: Minus the curvature, above 0.
        rng: Random stream.
        dim: Number of dimensions n, at least 2.

    References:
        Prakash et al. (2024), Algorithm 3, arXiv:2308.06895.

    Example:
        >>> bool((uniform_points(100, radius=0.5, rng=Rng(0)).norm(dim=1) <= 0.5).all())
        True
    """
    generator, root = rng.generator(), math.sqrt(c)
    share = torch.rand(num_points, generator=generator, dtype=torch.float64)
    farthest = math.atanh(radius * root)
    if dim == 2:
        half = (share.sqrt() * math.sinh(farthest)).asinh()
    else:
        grid = np.linspace(0, farthest, _NUM_RADII)
        volume = scipy.integrate.cumulative_trapezoid(np.sinh(2 * grid) ** (dim - 1), initial=0)
        half = torch.from_numpy(np.interp(share.numpy() * volume[-1], volume, grid))
    return (half.tanh() / root)[:, None] * _directions(num_points, dim, generator)


def _directions(num: int, dim: int, generator: torch.Generator) -> Float64[Tensor, "num dim"]:
    """Uniform unit vectors; in the plane, by one angle for each."""
    if dim == 2:
        turn = 2 * math.pi * torch.rand(num, generator=generator, dtype=torch.float64)
        return torch.stack([turn.cos(), turn.sin()], dim=1)
    normal = torch.randn(num, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(normal)


def _check_rates(test_rate: float, client_test_rate: float) -> None:
    check.positive(test_rate=test_rate)
    check.rate(below_one=True, test_rate=test_rate, client_test_rate=client_test_rate)


def _read(path: Path) -> tuple[Float64[Tensor, "n dim"], Int64[Tensor, " n"], int]:
    """Points and labels of both parts of a file, joined, and the size of the training part."""
    arrays = read_arrays(path, PARTS)
    if missing := [name for name in PARTS if name not in arrays]:
        raise ValueError(f"{path} lacks {', '.join(missing)}: it needs {', '.join(PARTS)}")
    parts = [arrays[name] for name in PARTS]
    x_train, y_train, x_test, y_test = parts
    if not _fit(x_train, y_train, x_test, y_test):
        forms = ", ".join(f"{part.dtype} {part.shape}" for part in parts)
        raise ValueError(
            f"{path} must hold rows of points and one integer label from 0 for each, got {forms} "
            f"for {', '.join(PARTS)}"
        )
    x, y = np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test])
    points, labels = torch.from_numpy(x.astype(np.float64)), torch.from_numpy(y.astype(np.int64))
    check_classes(str(path), labels)
    return points, labels, len(x_train)


def _fit(x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> bool:
    """True if the arrays of a file are rows of points and their labels, and not all are empty."""
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
            return False
        if (
            x.ndim != 2
            or y.shape != x.shape[:1]
            or not ((y >= 0) & (y < 2**53) & (y % 1 == 0)).all()
        ):
            return False
    return x_train.shape[1] == x_test.shape[1] and len(y_train) + len(y_test) > 0


class _Split(NamedTuple):
    """Points, labels, and the indices of training points and of the holdout."""

    x: Float64[Tensor, "n dim"]
    y: Int64[Tensor, " n"]
    train: Int64[Tensor, " num_train"]
    held: Int64[Tensor, " num_held"]


def _drawn(x: Tensor, y: Tensor, test_rate: float, seed: int) -> _Split:
    """Hold out a random share of the points."""
    # imported here because it takes a second and other data do not need it
    with extra("data", "Points"):
        from sklearn.model_selection import train_test_split

    train, held = train_test_split(np.arange(len(y)), test_size=test_rate, random_state=seed)
    return _Split(x, y, torch.from_numpy(train), torch.from_numpy(held))


def _federate(
    split: _Split, partition: Partition, client_test_rate: float, rng: Rng
) -> FederatedData:
    """Split the training points among clients, and give the holdout to the server."""
    x, y, train, held = split
    shares = [train[part] for part in partition.split(y[train], rng.at("partition"))]
    splits = []
    for i, share in enumerate(shares):
        order = share[torch.randperm(len(share), generator=rng.at("split", i).generator())]
        test = order[: math.ceil(round(client_test_rate * len(share), 6))].sort().values
        own = share[~torch.isin(share, test)]
        splits.append([Examples({"x": x[index], "y": y[index]}) for index in (own, test)])
    num_classes = int(y.max()) + 1
    meta = Meta(num_classes, tuple(x.shape[1:]), len(splits))
    empty = Examples({"x": x[:0], "y": y[:0]})
    clients = tuple(Client(i, own, empty, test, meta) for i, (own, test) in enumerate(splits))
    holdout = Client(HOLDOUT, empty, empty, Examples({"x": x[held], "y": y[held]}), meta)
    return FederatedData(clients, meta, holdout)
