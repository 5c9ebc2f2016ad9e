"""Federated averaging as one would write it by hand in PyTorch: what the engines are held against.

It needs torch alone, so that a peer's own environment can build the same networks from it.
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
        name: In the tables.
        num_clients: All take part in every round.
        size: Examples of each.
        batch_size: The last batch of a pass may be shorter.
        input_shape: Of one example, ``(channels, height, width)`` or ``(dim,)``.
        num_classes: Of the labels.
        channels: Of the convolutions, each 5x5 with ReLU and 2x2 max pooling after it.
        widths: Of the fully connected layers before the head, each with ReLU after it.
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
        """The width of what the head reads."""
        return self.widths[-1] if self.widths else _after_convolutions(self)


def _after_convolutions(work: Workload) -> int:
    channels, *sides = work.input_shape
    for _ in work.channels:
        sides = [(side - KERNEL + 1) // 2 for side in sides]
    return math.prod((work.channels[-1] if work.channels else channels, *sides))


def body(work: Workload) -> nn.Sequential:
    """The network up to its head."""
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
    """Inputs and labels of every client: normal noise, so that nothing depends on a data set."""
    generator = torch.Generator().manual_seed(0)

    def client() -> tuple[Tensor, Tensor]:
        x = torch.randn(work.size, *work.input_shape, generator=generator)
        return x.to(dtype), torch.randint(work.num_classes, (work.size,), generator=generator)

    return [client() for _ in range(work.num_clients)]


def batches(work: Workload, seed: int) -> Iterator[Tensor]:
    """The positions of a client's examples, batch by batch, in the order that a seed gives."""
    order = torch.randperm(work.size, generator=torch.Generator().manual_seed(seed))
    yield from order.split(work.batch_size)


def train(net: nn.Module, work: Workload, x: Tensor, y: Tensor, seed: int) -> None:
    """One client's pass."""
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
    """The global parameters after one round: clients in turn, their changes averaged in float64.

    Args:
        net: Worked with; what it holds is replaced.
        work: What each client does.
        data: Of the clients.
        values: The global parameters before.
        seeds: Of the clients' orders in this round.
    """
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()}
    for (x, y), seed in zip(data, seeds, strict=True):
        net.load_state_dict(values)
        train(net, work, x, y, seed)
        with torch.no_grad():
            for name, value in net.named_parameters():
                total[name] += len(y) * (value - values[name]).double()
    num = sum(len(y) for _, y in data)
    return {name: value + (total[name] / num).to(value.dtype) for name, value in values.items()}
