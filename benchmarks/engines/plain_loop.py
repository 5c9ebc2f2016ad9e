"""Federated averaging written by hand in PyTorch: the reference for the engines.

It needs torch only, so that a peer's own environment can build the same networks from it.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

KERNEL = 5


@dataclass(frozen=True)
class Workload:
    """One federation and one network: every client makes one pass over its examples in a round.

    Args:
        name: Name in the tables.
        num_clients: Number of clients; all take part in every round.
        size: Examples of each client.
        batch_size: Examples in a batch; the last one of a pass may be smaller.
        input_shape: Shape of one example, ``(channels, height, width)`` or ``(dim,)``.
        num_classes: Number of classes.
        channels: Channels of the convolutions, each 5x5, followed by ReLU and 2x2 max pooling.
        widths: Widths of the fully connected layers before the head, each followed by ReLU.
        lr: Step size.
    """

    name: str
    num_clients: int
    size: int
    batch_size: int = 32
    input_shape: tuple[int, ...] = (1, 28, 28)
    num_classes: int = 10
    channels: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    lr: float = 0.05

    @property
    def num_features(self) -> int:
        """Number of inputs of the head."""
        return self.widths[-1] if self.widths else _after_convolutions(self)


def _after_convolutions(work: Workload) -> int:
    channels, *sides = work.input_shape
    for _ in work.channels:
        sides = [(side - KERNEL + 1) // 2 for side in sides]
    return math.prod((work.channels[-1] if work.channels else channels, *sides))


def body(work: Workload) -> nn.Sequential:
    """The network without its head."""
    layers: list[nn.Module] = []
    channels = work.input_shape[0]
    for out in work.channels:
        layers += [nn.Conv2d(channels, out, KERNEL), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    layers.append(nn.Flatten())
    width = _after_convolutions(work)
    for out in work.widths:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


def network(work: Workload) -> nn.Sequential:
    """The whole network; its parameters are called ``body....`` and ``head....``."""
    head = nn.Linear(work.num_features, work.num_classes)
    return nn.Sequential(OrderedDict(body=body(work), head=head))


def examples(work: Workload, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels of every client: normal noise, so that no data set is needed."""
    generator = torch.Generator().manual_seed(0)

    def client() -> tuple[Tensor, Tensor]:
        x = torch.randn(work.size, *work.input_shape, generator=generator)
        return x.to(dtype), torch.randint(work.num_classes, (work.size,), generator=generator)

    return [client() for _ in range(work.num_clients)]


def batches(work: Workload, seed: int) -> Iterator[Tensor]:
    """Positions of a client's examples, batch by batch, in the order given by a seed."""
    order = torch.randperm(work.size, generator=torch.Generator().manual_seed(seed))
    yield from order.split(work.batch_size)


def train(net: nn.Module, work: Workload, x: Tensor, y: Tensor, seed: int) -> None:
    """Train for one client's pass."""
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr)
    for index in batches(work, seed):
        optimizer.zero_grad()
        cross_entropy(net(x[index]), y[index]).backward()
        optimizer.step()


def plain_round(
    net: nn.Module,
    work: Workload,
    data: Sequence[tuple[Tensor, Tensor]],
    values: dict[str, Tensor],
    seeds: Sequence[int],
) -> dict[str, Tensor]:
    """Global parameters after one round: clients in turn, their updates averaged in float64."""
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()}
    for (x, y), seed in zip(data, seeds, strict=True):
        net.load_state_dict(values)
        train(net, work, x, y, seed)
        with torch.no_grad():
            for name, value in net.named_parameters():
                total[name] += len(y) * (value - values[name]).double()
    num = sum(len(y) for _, y in data)
    return {name: value + (total[name] / num).to(value.dtype) for name, value in values.items()}
