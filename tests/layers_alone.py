"""Training of layers, which needs no package but torch, numpy, jaxtyping and what these need.

``make layers`` runs it with the oldest torch that layers support.
"""

import torch
from torch import nn

import fedbolic as fb


def losses(network: nn.Module, steps: int = 5) -> list[float]:
    """Losses of a classifier of random images before each step of training."""
    torch.manual_seed(0)
    x, y = torch.randn(32, 1, 4, 4), torch.randint(3, (32,))
    optimiser = fb.optim.RiemannianAdam(network.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def network(space: fb.manifolds.Lorentz | fb.manifolds.Poincare) -> nn.Module:
    """A network of layers of a space with a learnt curvature."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(16, 8),
        fb.nn.Dropout(0.1),
        fb.nn.ToManifold(space),
        fb.nn.Linear(space, 8, 6),
        fb.nn.SpaceActivation(space, torch.relu),
        fb.nn.HyperbolicBatchNorm(space, 6),
        fb.nn.MLR(space, 6, 3),
    )


def main() -> None:
    """Train a network of each model of hyperbolic space."""
    torch.manual_seed(0)
    for model in (fb.manifolds.Lorentz, fb.manifolds.Poincare):
        found = losses(network(model(fb.manifolds.Curvature(1.0))))
        if not found[-1] < found[0]:
            raise RuntimeError(f"{model.__name__} does not train: {found}")
    print("trained")


if __name__ == "__main__":
    main()
