"""Images embedded in a hyperbolic ball, for ``benchmarks.hulls --tables dimensions``.

A small network with a hyperbolic entry and head is trained on one share of the training images.
The other share and the test images are embedded, and none of them has trained the network. The
points are written in the format of ``fedbolic.data.Points``, whose ``holdout: official`` keeps the
test images apart. This takes the place of the m-VAE of the paper's embeddings.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbolic.core.rng import Rng
from fedbolic.data import Digits, FashionMNIST
from fedbolic.data.contract.dataset import Dataset
from fedbolic.manifolds import Poincare
from fedbolic.nn import MLR, ToManifold

WIDTH = 128
"""Units of the hidden layer."""

BATCH, LR = 128, 3e-3

DIMS = (2, 3, 5)


class Parts(NamedTuple):
    """Embedded images that have not trained the network, and the test images."""

    x_train: Float[np.ndarray, "n dim"]
    y_train: Int[np.ndarray, " n"]
    x_test: Float[np.ndarray, "m dim"]
    y_test: Int[np.ndarray, " m"]


@dataclass(frozen=True)
class Task:
    """Images to embed.

    Args:
        data: The images.
        num_points: Training images that are embedded; the others train the network.
        epochs: Passes of the training.
    """

    data: Dataset
    num_points: int
    epochs: int


TASKS = {
    "digits": Task(Digits(), num_points=676, epochs=200),
    "Fashion-MNIST": Task(FashionMNIST(), num_points=3000, epochs=3),
}


def network(num_features: int, dim: int, num_classes: int, *, flat: bool) -> nn.Sequential:
    """Embedding of images and head, the last module.

    The entry takes features as space coordinates on the hyperboloid. The default entry clips their
    length, which puts many points on one sphere, where each of them is a corner of a hull.
    """
    body = [nn.Flatten(), nn.Linear(num_features, WIDTH), nn.ReLU(), nn.Linear(WIDTH, dim)]
    if flat:
        return nn.Sequential(nn.Sequential(*body), nn.Linear(dim, num_classes))
    entry = ToManifold(Poincare(), mode="space")
    return nn.Sequential(nn.Sequential(*body, entry), MLR(Poincare(), dim, num_classes))


def embedded(task: Task, dim: int, seed: int, *, flat: bool = False) -> Parts:
    """Train a network and embed the images that have not trained it."""
    images, rng = task.data.read(None, download=False), Rng(seed).at("embedding", dim)
    x, x_test = (_scaled(part) for part in (images.x_train, images.x_test))
    order = torch.randperm(len(x), generator=Rng(seed).at("images").generator())
    points, own = order[: task.num_points], order[task.num_points :]
    with rng.at("weights").as_torch_global(torch.device("cpu")):
        model = network(x[0].numel(), dim, images.num_classes, flat=flat)
    train(model, x[own], images.y_train[own], epochs=task.epochs, rng=rng.at("batches"))
    with torch.no_grad():
        found = [model[0](part).double().numpy() for part in (x[points], x_test)]
        unit = float(model[0](x[own]).square().sum(dim=1).mean().sqrt()) if flat else 1.0
    found = [part / unit for part in found]
    return Parts(found[0], images.y_train[points].numpy(), found[1], images.y_test.numpy())


def _scaled(images: Tensor) -> Tensor:
    return images / 255 if images.dtype == torch.uint8 else images


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, rng: Rng) -> None:
    """Train a network by Adam with a step size that falls to 0 linearly."""
    optimiser, generator = torch.optim.Adam(model.parameters(), LR), rng.generator()
    num_steps = epochs * -(-len(x) // BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / num_steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            optimiser.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
            falling.step()


def saved(folder: Path, name: str, dim: int, seed: int, *, flat: bool = False) -> Path:
    """File of an embedding, which is computed if the folder lacks it."""
    kind = "flat" if flat else "ball"
    file = folder / f"{name.lower()}_{kind}_{dim}_{seed}.npz"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        parts = embedded(TASKS[name], dim, seed, flat=flat)
        np.savez(file, **parts._asdict())
        print(f"{file}: {len(parts.y_train)} and {len(parts.y_test)} points", flush=True)
    return file
