"""Times of hyperbolix, which needs JAX and a newer Python, measured in its own environment."""

import importlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

OPERATIONS = {
    "dist": ("dist", "xy"),
    "expmap": ("expmap", "vx"),
    "expmap0": ("expmap_0", "u"),
    "logmap": ("logmap", "yx"),
    "logmap0": ("logmap_0", "x"),
    "transp": ("ptransp", "vxy"),
    "mobius_add": ("addition", "xy"),
}
"""Name there and arguments of each operation: points x and y, a tangent v at x, one u at 0."""

ROUNDS, LEAST = 9, 0.02
"""Number of timings, and the CPU seconds of each."""


def microseconds(jax: Any, call: Callable, given: list[Any]) -> float:
    """Median CPU time of a compiled call, which has run before."""
    jax.block_until_ready(call(*given))
    taken, repeats = [], 1
    while len(taken) < ROUNDS:
        began = time.process_time()
        for _ in range(repeats):
            jax.block_until_ready(call(*given))
        spent = time.process_time() - began
        if spent < LEAST:
            repeats *= 2
        else:
            taken.append(1e6 * spent / repeats)
    return statistics.median(taken)


def main(file: str) -> None:
    """Print the times of all operations as JSON, by model and name.

    Args:
        file: Arrays named ``ball x`` and so on, which :mod:`benchmarks.geometry` has written.
    """
    jax, manifolds = importlib.import_module("jax"), importlib.import_module("hyperbolix.manifolds")
    arrays, found = np.load(file), {}
    for model, space in (("hyperboloid", manifolds.Hyperboloid()), ("ball", manifolds.Poincare())):
        for name, (theirs, letters) in OPERATIONS.items():
            if name == "mobius_add" and model != "ball":
                continue
            given = [jax.numpy.asarray(arrays[f"{model} {letter}"]) for letter in letters]
            operation = getattr(space, theirs)
            each = jax.vmap(lambda *given, f=operation: f(*given, 1.0))
            whole = jax.grad(lambda *given, f=each: f(*given).sum(), tuple(range(len(given))))
            found[f"{model} {name}"] = {
                "value": microseconds(jax, jax.jit(each), given),
                "gradients": microseconds(jax, jax.jit(whole), given),
            }
    print(json.dumps(found))
