"""Kernels beside the operators that they replace: resources, launches, errors."""
