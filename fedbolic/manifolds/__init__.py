"""Manifolds as frozen records: hyperboloid, ball, sphere, flat space, products; and places."""

from fedbolic.manifolds.cones import entailment_loss, exterior_angle, half_aperture
from fedbolic.manifolds.convert import (
    change_curvature,
    push_to_lorentz,
    push_to_poincare,
    to_lorentz,
    to_poincare,
)
from fedbolic.manifolds.curvature import Curvature
from fedbolic.manifolds.euclidean import Euclidean
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import Manifold
from fedbolic.manifolds.mean import frechet_mean, midpoint
from fedbolic.manifolds.places import ManifoldPlaces, Places
from fedbolic.manifolds.places_half_space import HalfSpacePlaces
from fedbolic.manifolds.places_polar import PolarPlaces
from fedbolic.manifolds.poincare import Poincare
from fedbolic.manifolds.product import Product
from fedbolic.manifolds.stereographic import Stereographic
from fedbolic.manifolds.wrapped_normal import WrappedNormal

__all__ = [
    "Curvature",
    "Euclidean",
    "HalfSpacePlaces",
    "Lorentz",
    "Manifold",
    "ManifoldPlaces",
    "Places",
    "Poincare",
    "PolarPlaces",
    "Product",
    "Stereographic",
    "WrappedNormal",
    "change_curvature",
    "entailment_loss",
    "exterior_angle",
    "frechet_mean",
    "half_aperture",
    "midpoint",
    "push_to_lorentz",
    "push_to_poincare",
    "to_lorentz",
    "to_poincare",
]
