"""Hyperbolic spaces as frozen records: the Lorentz sheet, the Poincaré ball, and flat space."""
