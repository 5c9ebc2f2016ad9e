"""Federated classification on one labelled data set split among clients."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.core.check import at_least, rate
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import (
    HOLDOUT,
    Client,
    ClientSlices,
    Examples,
    FederatedData,
    Meta,
)
from fedbolic.data.contract.dataset import Dataset
from fedbolic.data.contract.partition import Dirichlet, Partition
from fedbolic.data.contract.source import Source
from fedbolic.data.images.digits import Digits


@dataclass(frozen=True)
class Partitioned(Source):
    """A labelled data set whose official training part is split among clients.

    Every client holds out a random share of its examples for testing; the official test part is
    the server's test set. Images are float32 of shape (C, H, W) in [-1, 1]. Rows of features are
    float32 and not rescaled.

    Args:
        dataset: Data set to read.
        partition: Partition of the training part among clients.
        test_rate: Fraction of a client's examples held out for testing, in [0, 1), rounded up; not
            stratified.
        validation_rate: Fraction of the remaining examples held out for validation, in [0, 1),
            rounded up.
        num_train: Number of examples of the official training part to use, at least 1, from its
            beginning; all by default.
        num_test: Number of examples of the official test part to use, at least 0, from its
            beginning; all by default. With 0 the server has no test set.
        pool: Side of the square pixel blocks to average, at least 1; 2 turns 28 x 28 images into
            14 x 14.
        root: Folder to read from, in the layout of torchvision; nothing is downloaded then. By
            default, the folder named by the environment variable FEDBOLIC_DATA, then the user's
            cache.
        download: Whether to download missing files into the cache.

    Example:
        >>> data = Partitioned(partition=Dirichlet(5)).load(Rng(0))
        >>> data.meta.num_clients, data.meta.input_shape, len(data.holdout.test)
        (5, (1, 8, 8), 445)
    """

    dataset: Dataset = field(default_factory=Digits)
    partition: Partition = field(default_factory=lambda: Dirichlet(num_clients=10))
    test_rate: float = 0.25
    validation_rate: float = 0.0
    num_train: int | None = None
    num_test: int | None = None
    pool: int = 1
    root: Path | None = None
    download: bool = True

    def __post_init__(self) -> None:
        rate(below_one=True, test_rate=self.test_rate, validation_rate=self.validation_rate)
        at_least(1, pool=self.pool)
        if self.num_train is not None:
            at_least(1, num_train=self.num_train)
        if self.num_test is not None:
            at_least(0, num_test=self.num_test)

    @override
    def load(self, rng: Rng) -> FederatedData:
        parts = self.dataset.read(self.root, download=self.download)
        train = self._examples(parts.x_train, parts.y_train, keep=self.num_train, name="num_train")
        test = self._examples(parts.x_test, parts.y_test, keep=self.num_test, name="num_test")
        owners = None if parts.owners is None else parts.owners[: self.num_train]
        shares = self.partition.assign(train.tensors["y"], owners, rng.at("partition"))
        meta = Meta(
            num_classes=parts.num_classes,
            input_shape=tuple(train.tensors["x"].shape[1:]),
            num_clients=len(shares),
        )
        names = parts.class_names
        parts = (
            self._hold_out(client_id, share, rng=rng) for client_id, share in enumerate(shares)
        )
        clients = ClientSlices.dealt(train, parts, meta)
        if not len(test):
            return FederatedData(clients, meta, class_names=names)
        empty = Examples(test.at(torch.arange(0)))
        holdout = Client(HOLDOUT, empty, empty, test, meta)
        return FederatedData(clients, meta, holdout, class_names=names)

    def _examples(self, x: Tensor, y: Tensor, *, keep: int | None, name: str) -> Examples:
        """The first ``keep`` examples of an official part, converted for a model."""
        if keep is not None and keep > len(y):
            raise ValueError(
                f"{name} is {keep}, but there are {len(y)} examples: ask for {len(y)} or fewer"
            )
        x, y = x[:keep], y[:keep]
        if x.ndim == 2 and self.pool > 1:
            raise ValueError(f"pool is {self.pool}, but the examples are not images: use pool=1")
        return Examples({"x": self.preprocess(x), "y": y})

    @override
    def raw_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[:1] + tuple(size * self.pool for size in shape[1:])

    @override
    def preprocess(self, x: Tensor) -> Tensor:
        return pixels(x, pool=self.pool) if x.ndim > 2 else x.float()

    def _hold_out(
        self, client_id: int, share: Int64[Tensor, " n"], *, rng: Rng
    ) -> tuple[Tensor, ...]:
        """Split a client's examples into training, validation and test indices."""
        if not len(share):
            raise ValueError(
                f"client {client_id} got no example: use fewer clients or a partition with a "
                "minimum size"
            )
        generator = rng.at("split", client_id).generator()
        order = share[torch.randperm(len(share), generator=generator)]
        num_test = _part(self.test_rate, len(share))
        num_validation = _part(self.validation_rate, len(share) - num_test)
        test, validation, train = order.tensor_split((num_test, num_test + num_validation))
        return tuple(index.sort().values for index in (train, validation, test))


def pixels(
    images: UInt8[Tensor, "n c h w"] | Float[Tensor, "n c h w"], *, pool: int = 1
) -> Float32[Tensor, "n c h//{pool} w//{pool}"]:
    """Images as float32 in [-1, 1], averaged over blocks of ``pool`` by ``pool`` pixels.

    Args:
        images: Images as bytes, or as floats in [0, 1].
        pool: Side of a block in pixels, a divisor of height and width.

    Raises:
        ValueError: If ``pool`` does not divide height and width.

    Example:
        >>> pixels(torch.tensor([[[[0, 255], [0, 255]]]], dtype=torch.uint8)).flatten().tolist()
        [-1.0, 1.0, -1.0, 1.0]
    """
    height, width = images.shape[2:]
    if height % pool or width % pool:
        raise ValueError(f"pool must divide height {height} and width {width}, got {pool}")
    top = 255 if images.dtype == torch.uint8 else 1
    # one copy, then in place, because several copies of a large data set would not fit
    scaled = images.to(torch.float32, copy=True).div_(top).sub_(0.5).div_(0.5)
    return functional.avg_pool2d(scaled, pool) if pool > 1 else scaled


def _part(share: float, size: int) -> int:
    """``share`` times ``size`` rounded up, at most ``size - 1``."""
    # rounded to 6 digits first, because 0.07 * 100 is 7.000000000000001
    return min(math.ceil(round(share * size, 6)), size - 1)
