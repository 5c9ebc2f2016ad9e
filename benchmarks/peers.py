"""The same operations on the same numbers, by this library or a peer, in the peer's environment.

As a script, ``peers.py IN.pt OUT.pt LIBRARY`` needs torch and that library only.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Verbs = dict[str, Callable[..., Tensor]]


def fedbolic(model: str, c: float, dtype: torch.dtype) -> Verbs:
    """Operations of this library."""
    from fedbolic.manifolds import Lorentz, Poincare

    space = Poincare(c) if model == "ball" else Lorentz(c)
    return _methods(space, model)


def geoopt(model: str, c: float, dtype: torch.dtype) -> Verbs:
    """Operations of geoopt, whose hyperboloid takes the squared radius ``1 / c``."""
    import geoopt

    held: Any = torch.tensor(
        c if model == "ball" else 1 / c, dtype=dtype
    )  # a float would be rounded
    return _methods(geoopt.PoincareBall(held) if model == "ball" else geoopt.Lorentz(held), model)


def hypll(model: str, c: float, dtype: torch.dtype) -> Verbs:
    """Hypll's formulas on ordinary tensors; it has no hyperboloid."""
    if model != "ball":
        return {}
    diffgeom = importlib.import_module("hypll.manifolds.poincare_ball.math.diffgeom")

    k = torch.tensor(c, dtype=dtype)
    return {
        "dist": lambda x, y: diffgeom.dist(x, y, k),
        "expmap0": lambda u: diffgeom.expmap0(u, k),
        "logmap0": lambda y: diffgeom.logmap0(y, k),
        "expmap": lambda x, u: diffgeom.expmap(x, u, k),
        "logmap": lambda x, y: diffgeom.logmap(x, y, k),
        "mobius_add": lambda x, y: diffgeom.mobius_add(x, y, k),
    }


def _methods(space: Any, model: str) -> Verbs:
    names = ["dist", "expmap0", "logmap0", "expmap", "logmap"]
    return {n: getattr(space, n) for n in names + (["mobius_add"] if model == "ball" else [])}


def answers(operations: Verbs, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results of a library in one cell of the grid, in float64."""
    if not operations:
        return {}
    x, reached = given["x"], operations["expmap"](given["x"], given["step"])
    out = {
        "far from tangents": operations["dist"](
            operations["expmap0"](given["u"]), operations["expmap0"](given["v"])
        ),
        "far": operations["dist"](x, given["y"]),
        "near": operations["dist"](x, given["near"]),
        "expmap0": operations["expmap0"](given["u"]),
        "exp0, log0": operations["logmap0"](operations["expmap0"](given["u"])),
        "expmap": reached,
        "exp, log": operations["logmap"](x, reached),
    }
    if "mobius_add" in operations:
        out["mobius_add"] = operations["mobius_add"](x, given["other"])
    return {name: value.double() for name, value in out.items()}


LIBRARIES = {"fedbolic": fedbolic, "geoopt": geoopt, "hypll": hypll}


def main(given: str, out: str, library: str) -> None:
    """Compute the results for every cell of the file ``given``."""
    torch.set_num_threads(1)
    cells = torch.load(given)
    made = []
    for (model, c, dtype, _), tensors in cells:
        made.append(answers(LIBRARIES[library](model, c, getattr(torch, dtype)), tensors))
    torch.save(made, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
