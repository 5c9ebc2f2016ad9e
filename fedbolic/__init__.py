"""GPU deep learning for hyperbolic federated models."""

__version__ = "0.1.0"
