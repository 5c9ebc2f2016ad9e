"""Riemannian SGD and Adam: as pure functions, and as optimisers of ``torch.optim``."""

from fedbolic.optim.functional import SGD, Adam, Optimizer
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD

__all__ = ["SGD", "Adam", "Optimizer", "RiemannianAdam", "RiemannianSGD"]
