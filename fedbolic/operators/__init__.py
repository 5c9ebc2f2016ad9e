"""Operators with derivatives that run a kernel on a CUDA device."""
