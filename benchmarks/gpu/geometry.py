"""Pairwise distances, heads of hyperplanes and the hash on a device, as shares of its rates."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from benchmarks.geometry import libraries
from benchmarks.gpu import roofline
from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.workloads import Size
from benchmarks.timing import median_seconds
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.manifolds.manifold import Mode
from fedbolic.nn import MLR
from fedbolic.nn.layers.dropout import Dropout
from flynn.fly_hash import connections, fly_hash

PART = "geometry"
REPEATS = 10
CHECKED = 256
"""Points of each set whose distances are compared with those in float64."""


class Sets(NamedTuple):
    """Numbers of points of two sets, their dimensions, and the modes that fit in memory."""

    n: int
    m: int
    dim: int
    modes: tuple[Mode, ...] = ("auto", "mm", "mm64")

    @property
    def moved(self) -> int:
        """Numbers of the points and of all distances."""
        return (self.n + self.m) * self.dim + self.n * self.m


SETS = (
    Sets(8192, 8192, 3, ("auto", "mm", "mm64", "broadcast")),
    Sets(8192, 8192, 33),
    Sets(8192, 8192, 129),
    Sets(1_000_000, 1000, 17),
)
ROWS = Sets(1_000_000, 1_000_000, 16, ())

HEAD = (65_536, 512, 1000)
"""Examples, dimensions and classes."""

HASH = (60_000, 784, 170_128, 19, 17)
"""Examples, features, bits, features of a bit and ones: the hash of MNIST."""

HASH_NAME = f"FlyHash {HASH[0]} x {HASH[2]}"


def geometry(report: Report, device: torch.device, size: Size) -> None:
    """Measure distances, a head, dropout and the hash."""
    copies = report.figure(roofline.PART, "copy", "TB_per_s")
    products = report.figure(roofline.PART, "matrix float32", "TFLOP_per_s")
    most = size.most_rows
    for sets in SETS:
        sets = sets._replace(n=min(sets.n, most), m=min(sets.m, most))
        for kind in (Lorentz, Poincare):
            for mode in sets.modes:
                name = f"{kind.__name__} cdist {sets.n} x {sets.m} x {sets.dim}, {mode}"
                report.add(
                    PART, name, lambda k=kind, s=sets, m=mode: distances(k, s, m, device, copies)
                )
    if libraries.installed("geoopt"):
        sets = SETS[0]._replace(n=min(SETS[0].n, most), m=min(SETS[0].m, most))
        report.add(PART, "geoopt: the first of these", lambda: peer_distances(sets, device, copies))
    n, dim, classes = HEAD
    head = min(n, most), dim, min(classes, most)
    rows = ROWS._replace(n=min(ROWS.n, most), m=min(ROWS.m, most))
    for by, runs in RUNNERS.items():
        report.add(
            PART, f"MLR, hyperboloid{by}", lambda r=runs: r(head_rate, *head, device, products)
        )
        for kind in (Lorentz, Poincare):
            name = f"{kind.__name__} dist {rows.n} x {rows.dim}{by}"
            report.add(PART, name, lambda k=kind, r=runs: r(row_rate, k, rows, device, copies))
        report.add(PART, f"Dropout{by}", lambda r=runs: r(dropout_rate, most, device, copies))
    n, features, dim, fan_in, active = HASH
    case = min(n, most), features, min(dim, 8 * most), fan_in, active
    report.add(PART, f"FlyHash {case[0]} x {case[2]}", lambda: hash_seconds(*case, device))


def point_sets(kind: type[Lorentz | Poincare], sets: Sets, device: torch.device) -> list[Tensor]:
    """Two sets of points about two units of length from the origin."""
    space = kind(1.0)
    made = []
    for count in (sets.n, sets.m):
        u = torch.randn(count, sets.dim, device=device) / sets.dim**0.5
        made.append(space.expmap0(space.lift(2 * u) if isinstance(space, Lorentz) else u))
    return made


def measured(
    function: Callable[..., Tensor],
    given: Sequence[Tensor],
    numbers: int,
    copies: float | None,
    *,
    true: Callable[..., Tensor] | None = None,
) -> Row:
    """Bytes that must move per second in a function of points and, with one in float64, its error.

    Args:
        function: Function of the given tensors.
        given: Its arguments.
        numbers: Numbers of float32 that must move.
        copies: Terabytes per second of a copy; ``None`` if not measured.
        true: The function that gives the true values; the gradient is timed, too.
    """
    device = given[0].device
    with torch.no_grad():
        seconds = median_seconds(lambda: function(*given), device, REPEATS)
        rate = 4 * numbers / seconds / 1e12
        found: Row = {"ms": 1e3 * seconds, "GB_per_s": 1e3 * rate}
        found |= {} if copies is None else {"share_of_copy": rate / copies}
        if true is None:
            return found
        some = [x[:CHECKED] for x in given]
        got, wanted = function(*some).double(), true(*(x.double() for x in some))
        error = ((got - wanted).abs() / wanted).nan_to_num(nan=0.0).max().item()
    first = given[0].requires_grad_()

    def both() -> Tensor:
        return torch.autograd.grad(function(first, *given[1:]).sum(), first)[0]

    seconds = median_seconds(both, device, REPEATS)
    return {**found, "with_gradient_ms": 1e3 * seconds, "relative_error": error}


def distances(
    kind: type[Lorentz | Poincare],
    sets: Sets,
    mode: Mode,
    device: torch.device,
    copies: float | None,
) -> Row:
    """Figures of one matrix of distances."""
    space = kind(1.0)

    def matrix(x: Tensor, y: Tensor, mode: Mode = mode) -> Tensor:
        return space.cdist(x, y, mode=mode)

    exact, points = partial(matrix, mode="broadcast"), point_sets(kind, sets, device)
    return measured(matrix, points, sets.moved, copies, true=exact)


def peer_distances(sets: Sets, device: torch.device, copies: float | None) -> Row:
    """The distances of geoopt's hyperboloid, which has no pairwise form: by broadcasting."""
    dist = libraries.space_of("geoopt", "hyperboloid", device=str(device)).dist
    points = point_sets(Lorentz, sets, device)
    return measured(lambda x, y: dist(x.unsqueeze(-2), y.unsqueeze(-3)), points, sets.moved, copies)


def row_rate(
    kind: type[Lorentz | Poincare], sets: Sets, device: torch.device, copies: float | None
) -> Row:
    """Figures of the distances of rows, of two sets of the same size."""
    dist, (x, y) = kind(1.0).dist, point_sets(kind, sets, device)
    return measured(dist, (x, y), x.numel() + y.numel() + len(x), copies, true=dist)


def dropout_rate(most: int, device: torch.device, copies: float | None) -> Row:
    """Bytes that must move per second when elements are dropped."""
    layer, x = Dropout(0.5, device=device), torch.ones(min(65_536, most), 1024, device=device)
    return measured(layer, (x,), 2 * x.numel(), copies)


def by_operators(measure: Callable[..., Row], *given: Any) -> Row:
    """Figures without kernels."""
    with mock.patch.object(kernels, "run_on", return_value=False):
        return measure(*given)


RUNNERS: dict[str, Callable[..., Row]] = {
    "": lambda measure, *given: measure(*given),
    ", operators": by_operators,
}
"""Ways to measure, by a suffix of the row's name: with kernels where there are any, and without."""


def head_rate(n: int, dim: int, classes: int, device: torch.device, products: float | None) -> Row:
    """Operations of the matrix product per second in the logits of hyperplanes."""
    (x,) = point_sets(Lorentz, Sets(n, 0, dim), device)[:1]
    head = MLR(Lorentz(), dim, classes, device=device)
    with torch.no_grad():
        seconds = median_seconds(lambda: head(x), device, REPEATS)
        got, head = head(x[:CHECKED]).double(), head.double()
        true = head(x[:CHECKED].double())
    rate = 2 * n * (dim + 1) * classes / seconds / 1e12
    share = {} if products is None else {"share_of_product": rate / products}
    error = ((got - true).abs().max() / true.abs().max()).item()
    return {"ms": 1e3 * seconds, "TFLOP_per_s": rate, **share, "relative_error": error}


def hash_seconds(
    n: int, features: int, dim: int, fan_in: int, active: int, device: torch.device
) -> Row:
    """Seconds of the hash of random pixels, and hashes that differ from the CPU's."""
    rows = connections(dim, features, fan_in, seed=0)
    there = rows.to(device)
    x = torch.randint(256, (n, features), dtype=torch.uint8, device=device)
    seconds = median_seconds(lambda: fly_hash(x, there, active), device, 3)
    some = x[:CHECKED]
    same = (fly_hash(some, there, active).cpu() == fly_hash(some.cpu(), rows, active)).all(dim=1)
    return {"seconds": seconds, "hashes_that_differ": int((~same).sum())}
