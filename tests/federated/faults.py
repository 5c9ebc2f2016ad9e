"""Faults of clients, and their warnings."""

import dataclasses
import math
import os
import signal

import torch

FAULTS = {
    "raises": "RuntimeError: the battery is empty",
    "nan": "NaN or infinite",
    "inf": "NaN or infinite",
    "shape": "another form",
    "dtype": "another form",
    "extra": "another form",
    "missing": "another form",
    "nested": "another form",
    "nan state": "NaN or infinite",
    "inf state": "NaN or infinite",
    "nan weight": "its weight is nan",
    "inf weight": "its weight is inf",
    "negative weight": r"its weight is -1\.0",
}
"""Faults of a client, each with the pattern of its warning."""


def spoil(fault, update, client_state):
    """The update and client state of a client with a fault."""
    delta = update.payload["delta"]
    bad = {"nan": math.nan, "inf": math.inf, "negative": -1.0}.get(fault.split()[0])
    if fault == "raises":
        raise RuntimeError("the battery is empty")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.endswith("state"):
        return update, {**client_state, "bad": {"deep": torch.tensor([0.0, bad])}}
    if fault.endswith("weight"):
        return dataclasses.replace(update, weight=bad), client_state
    payload = {
        "nan": {"x": torch.where(torch.arange(len(delta["x"])) == 1, math.nan, delta["x"])},
        "inf": {"x": torch.where(torch.arange(len(delta["x"])) == 1, -math.inf, delta["x"])},
        "shape": {"x": delta["x"][None]},
        "dtype": {"x": delta["x"].half()},
        "extra": {**delta, "secret": torch.zeros(1)},
        "missing": {},
        "nested": {"x": {"x": delta["x"]}},
    }[fault]
    return dataclasses.replace(update, payload={"delta": payload}), client_state
