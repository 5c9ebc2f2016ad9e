"""Hashes of short runs, by which two versions of the code are compared to the last bit.

python -m tests.hashes --out FILE [--before FILE] [--only NAME] [--engines NAME ...]

Two rounds of every ``configs/**/quick.yaml``, cut to a few clients and examples, are run with each
engine, and the metrics, the server's state and the client states are hashed. FILE gets a line for
each. With ``--before``, the file of an earlier version on the same machine, the differences are
printed and the exit code says whether there are any. States of secure sums are hashed without their
secrets, which differ between runs.
"""

import argparse
import csv
import hashlib
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from fedbolic.federated import Batched, Engine, RunStoppedError, Sequential, Trainer
from fedbolic.federated.engines.graphed import Graphed
from fedbolic.federated.engines.workers import Workers
from fedbolic.run.computing import DTYPES
from fedbolic.testing.compare import flat
from tests.subjects import QUICK, RNG, settings, subject

ENGINES: dict[str, Engine] = {
    "Sequential": Sequential(),
    "Batched": Batched(),
    "Graphed": Graphed(),
    "Workers": Workers(2),
}
SECRETS = "secure", "roster", "session"
"""Names that only the states of a secure sum have; what its method keeps is under ``inner``."""

Key = tuple[str, str, str]
"""Configuration, engine, and what is hashed."""


def main() -> None:
    """Hash the runs, write the file, and print what differs from an earlier one."""
    parser = argparse.ArgumentParser(prog="python -m tests.hashes", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="CSV to write")
    parser.add_argument("--before", type=Path, help="CSV of an earlier version")
    parser.add_argument("--only", default="", help="part of the names of the configurations")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    found: dict[Key, str] = {}
    for name in QUICK:
        if options.only in name:
            for engine in options.engines:
                found |= {(name, engine, kind): h for kind, h in hashes(name, engine).items()}
    with options.out.open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows((*key, found[key]) for key in found)
    if options.before:
        sys.exit(1 if report(read(options.before), found) else 0)


def hashes(name: str, engine: str) -> dict[str, str]:
    """Hashes of a run by kind; a run that is refused or stops has its message instead."""
    given, (method, data) = settings(name), subject(name)
    parts = (given[part] for part in ("cohort", "channels", "evaluation", "privacy"))
    trainer, dtype = Trainer(ENGINES[engine], *parts), DTYPES[given["precision"]]
    try:
        rounds = list(trainer.run(method, data.to(torch.device("cpu"), dtype), RNG))
    except (ValueError, RunStoppedError) as error:
        return {"error": digest({"type": type(error).__name__, "text": str(error)})}
    rows = [repr(row) for _, new in rounds for row in new]
    state = rounds[-1][0]
    states = {str(i): state.client_states[i] for i in sorted(state.client_states)}
    return {
        "metrics": digest({str(place): row for place, row in enumerate(rows)}),
        "server": digest(_method_state(state.server_state)),
        "clients": digest({i: _method_state(one) for i, one in states.items()}),
    }


def _method_state(state: dict[str, Any]) -> dict[str, Any]:
    secure = any(name in state for name in SECRETS)
    return state.get("inner", {}) if secure else state


def digest(state: dict[str, Any]) -> str:
    """Hash of a tree: paths, types, dtypes, shapes and bits of its leaves."""
    found = hashlib.sha256()
    leaves = flat(state)
    for path in sorted(leaves):
        leaf = leaves[path]
        if isinstance(leaf, torch.Tensor):
            values = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            found.update(f"{path} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            found.update(values.numpy().tobytes())
        else:
            found.update(f"{path} {type(leaf).__name__} {leaf!r}\n".encode())
    return found.hexdigest()


def read(file: Path) -> dict[Key, str]:
    """Hashes that an earlier call wrote."""
    with file.open(newline="") as lines:
        return {(name, engine, kind): found for name, engine, kind, found in csv.reader(lines)}


def report(before: dict[Key, str], found: dict[Key, str]) -> int:
    """Print the keys of both files whose hashes differ, and count them."""
    common = [key for key in found if key in before]
    different = [key for key in common if before[key] != found[key]]
    for key in different:
        print(" | ".join(key))
    print(f"{len(different)} of {len(common)} hashes differ")
    return len(different)


if __name__ == "__main__":
    main()
