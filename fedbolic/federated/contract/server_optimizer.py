"""Server optimisers: pure functions from an aggregated delta to the next global parameters.

FedOpt is FedAvg with one of these: the negative delta takes the place of a gradient.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree


class ServerOptimizer(ABC):
    """The server's step along the aggregated delta of a round."""

    @abstractmethod
    def init(self, parameters: Params) -> Tree:
        """The optimiser's state before the first round, part of the server's state."""

    @abstractmethod
    def step(self, parameters: Params, delta: Params, state: Tree) -> tuple[Params, Tree]:
        """The parameters and the state after one round.

        Args:
            parameters: The global parameters of the last round.
            delta: Aggregated change of the clients, with the same names.
            state: The state after the last step.
        """


@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    r"""Gradient descent with heavy-ball momentum: FedAvg, and FedAvgM with ``momentum``.

    .. math:: v \leftarrow \beta v + \Delta, \quad \theta \leftarrow \theta + \eta v

    Args:
        lr: The server's step size eta, above 0; 1 is FedAvg.
        momentum: beta, in [0, 1).

    Raises:
        ValueError: If a value is outside its range.

    References:
        Hsu et al. (2019), Sec. 4.3, arXiv:1909.06335.

    Example:
        >>> import torch
        >>> server, x, delta = ServerSGD(0.5), {"x": torch.zeros(1)}, {"x": torch.ones(1)}
        >>> server.step(x, delta, server.init(x))
        ({'x': tensor([0.5000])}, {})
    """

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check.positive(lr=self.lr)
        check.rate(momentum=self.momentum, below_one=True)

    @override
    def init(self, parameters: Params) -> Tree:
        return {"velocity": tree.zeros_like(parameters)} if self.momentum else {}

    @override
    def step(self, parameters: Params, delta: Params, state: Tree) -> tuple[Params, Tree]:
        if self.momentum:
            delta = tree.add(tree.scale(state["velocity"], self.momentum), delta)
            state = {"velocity": delta}
        return tree.add(parameters, tree.scale(delta, self.lr)), state


@dataclass(frozen=True)
class AdaptiveOptimizer(ServerOptimizer):
    r"""Algorithm 2 of Reddi et al., of which subclasses differ in the second moment alone.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \quad
        \theta \leftarrow \theta + \eta \frac{m}{\sqrt v + \tau}, \quad v_0 = \tau^2

    There is no bias correction.

    Args:
        lr: The server's step size eta, above 0.
        beta1: Share of the first moment that is kept, in [0, 1).
        tau: Degree of adaptivity, above 0: a smaller one adapts more.

    Raises:
        ValueError: If a value is outside its range.
    """

    lr: float = 0.01
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check.positive(lr=self.lr, tau=self.tau)
        check.rate(beta1=self.beta1, below_one=True)

    @abstractmethod
    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        """The second moment after a round."""

    @override
    def init(self, parameters: Params) -> Tree:
        return {
            "mean": tree.zeros_like(parameters),
            "second": tree.map_tensors(lambda x: x.new_full(x.shape, self.tau**2), parameters),
        }

    @override
    def step(self, parameters: Params, delta: Params, state: Tree) -> tuple[Params, Tree]:
        kept, new = tree.scale(state["mean"], self.beta1), tree.scale(delta, 1 - self.beta1)
        mean, second = tree.add(kept, new), tree.map(self.second, state["second"], delta)
        moved = tree.map(
            lambda x, m, v: x + self.lr * m / (v.sqrt() + self.tau), parameters, mean, second
        )
        return moved, {"mean": mean, "second": second}


@dataclass(frozen=True)
class ServerAdagrad(AdaptiveOptimizer):
    r"""FedAdagrad: :math:`v \leftarrow v + \Delta^2`.

    Args:
        beta1: Share of the first moment that is kept, in [0, 1); the paper's experiments take 0.

    References:
        Reddi et al. (2021), Algorithm 2, arXiv:2003.00295.
    """

    beta1: float = 0.0

    @override
    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta.square()


@dataclass(frozen=True)
class ServerAdam(AdaptiveOptimizer):
    r"""FedAdam: :math:`v \leftarrow \beta_2 v + (1 - \beta_2) \Delta^2`.

    Args:
        beta2: Share of the second moment that is kept, in [0, 1).

    References:
        Reddi et al. (2021), Algorithm 2, arXiv:2003.00295.

    Example:
        >>> import torch
        >>> server, x, delta = ServerAdam(lr=0.1), {"x": torch.zeros(1)}, {"x": torch.ones(1)}
        >>> server.step(x, delta, server.init(x))[0]  # 0.1 (0.1 / (0.1 + 0.001))
        {'x': tensor([0.0990])}
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rate(beta2=self.beta2, below_one=True)

    @override
    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta.square()


@dataclass(frozen=True)
class ServerYogi(AdaptiveOptimizer):
    r"""FedYogi: :math:`v \leftarrow v - (1 - \beta_2) \Delta^2 \operatorname{sign}(v - \Delta^2)`.

    Args:
        beta2: One minus the weight of a new square, in [0, 1).

    References:
        Reddi et al. (2021), Algorithm 2, arXiv:2003.00295.
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rate(beta2=self.beta2, below_one=True)

    @override
    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        square = delta.square()
        return v - (1 - self.beta2) * square * (v - square).sign()
