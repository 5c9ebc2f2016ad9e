"""Convex hulls in the hyperbolic plane, and distances of points."""
