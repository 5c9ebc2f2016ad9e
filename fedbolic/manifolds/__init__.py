"""Hyperbolic spaces as frozen records: the Lorentz sheet, the Poincaré ball, and flat space."""

from fedbolic.manifolds.euclidean import Euclidean
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import Manifold
from fedbolic.manifolds.poincare import Poincare

__all__ = ["Euclidean", "Lorentz", "Manifold", "Poincare"]
