"""Audit of the settings of a finished or stopped run, from its folder."""

import csv
import tempfile
from dataclasses import replace
from pathlib import Path

from fedbolic.core import check
from fedbolic.core.log import without_repetition
from fedbolic.federated import Trainer
from fedbolic.remote.loopback import is_deployed
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from fedbolic.run.record import RunFolder
from fedbolic.testing.audit import Audit, audit
from fedbolic.testing.canary_nodes import CanaryNodes
from fedbolic.testing.noisy_audit import audit_noisy


def audit_run(path: Path, *, planted: int = 1000, seed: int = 0) -> Audit:
    """Audit with the engine, cohorts, noise and number of clients of a run.

    The method and the data of the run are replaced by those of canaries. Where the clients were
    nodes, the canaries are nodes, too, in this process.

    Args:
        path: Folder of the run.
        planted: Least number of canaries, at least 1.
        seed: Seed of the coins.

    Raises:
        FileNotFoundError: If there is no run.
        ValueError: If the run has no privacy.
    """
    check.at_least(1, planted=planted)
    folder = RunFolder.open(path)
    settings = build(run, ["--config", str(folder.config)])
    facts = folder.environment
    given = {n: settings[n] for n in ("engine", "cohort", "privacy") if n in settings}
    size = facts["data"]["num_clients"], facts["rounds"]
    with without_repetition(), tempfile.TemporaryDirectory() as nodes:
        if is_deployed(path):
            given["engine"] = CanaryNodes(Path(nodes))
        if given.get("privacy") is None:
            asked = settings["method"], given["engine"], size[0]
            found = audit_noisy(*asked, planted=planted, seed=seed)
        else:
            found = audit(Trainer(**given), *size, planted=planted, seed=seed)
    with (path / "metrics.csv").open() as file:
        stated = [(int(r["round"]), float(r["value"])) for r in csv.DictReader(file)
                  if r["name"] == "privacy/epsilon"]  # fmt: skip
    # how finely a sum of noisy clients is rounded follows from the size of the model
    slack = 1e-9 if given.get("privacy") else 0.02
    if stated and stated[-1][0] == facts["rounds"] and stated[-1][1] < found.ledger * (1 - slack):
        fault = f"metrics.csv states epsilon {stated[-1][1]:g}, and the ledger {found.ledger:.4g}"
        return replace(found, faults=(*found.faults, fault))
    return found
