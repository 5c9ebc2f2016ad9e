"""HyperFed: hyperbolic class prototypes and consistent aggregation (Liao et al., IJCAI 2023)."""
