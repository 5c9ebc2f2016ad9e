"""Names of earlier versions and their replacements."""

import re

KEYS = {
    "schedule": "local",
    "tune": "fine_tuning",
    "calibrate": "ridge_head in the evaluation, closed_form_head in SphereFed",
    "pull": "personal_proximal",
    "shrink": "personal_proximal",
}
"""Renamed options of a run."""

CLASSES = {
    "fedbolic.federated.FedAvg": "fedbolic.methods.FedAvg",
    "fedbolic.federated.fedavg.FedAvg": "fedbolic.methods.FedAvg",
    "fedbolic.federated.Collect": "fedbolic.federated.Gather",
    "fedbolic.data.Images": "fedbolic.data.Partitioned",
    "fedbolic.data.images.Images": "fedbolic.data.Partitioned",
    "fedhull.boundary.Hyperbolic": "fedhull.boundary.HyperbolicBoundary",
    "fedhull.boundary.Euclidean": "fedhull.boundary.EuclideanBoundary",
    "fedhull.Hyperbolic": "fedhull.HyperbolicBoundary",
    "fedhull.Euclidean": "fedhull.EuclideanBoundary",
}
"""Renamed classes, by import path; ``PREFIXES`` lists packages and modules that moved."""

PREFIXES = {
    "fedbolic.baselines": "fedbolic.methods",
    **{
        f"fedbolic.federated.{module}": f"fedbolic.federated.engines.{module}"
        for module in ("auto", "batched", "ranks", "sequential", "workers")
    },
    "fedbolic.federated.aggregate": "fedbolic.federated.aggregators",
    "fedbolic.federated.modular": "fedbolic.federated.aggregators.modular",
    "fedbolic.federated.min_norm": "fedbolic.federated.aggregators.min_norm",
}

METRICS = {
    "tuned": "fine_tuned",
    "calibrated": "ridge_head",
    "train/drawn_in": "train/clamped_fraction",
}
"""Renamed metrics, or the first parts of their names."""


def renamed(text: str) -> str:
    """Hint with the replacements of old names in an error message; empty without old names.

    Options are recognized if quoted or part of a dotted path, import paths anywhere.

    Example:
        >>> renamed("Option 'schedule.epochs' is not accepted")
        'schedule is now called local'
        >>> renamed("the schedule is empty")
        ''
    """
    found = {}
    paths = {**CLASSES, **PREFIXES}
    for path in sorted(paths, key=len, reverse=True):
        if re.search(rf"(?<![\w.]){re.escape(path)}(?!\w)", text):
            found[path] = paths[path]
            text = text.replace(path, "")
    quoted = {key for key in KEYS if re.search(rf"(?<=[-.'\"]){key}(?=[.'\":=])", text)}
    found |= {key: KEYS[key] for key in sorted(quoted)}
    return ", ".join(f"{old} is now called {new}" for old, new in found.items())


def renamed_metric(name: str) -> str | None:
    """The current name of a metric of an earlier version; ``None`` if it has not changed.

    Example:
        >>> renamed_metric("tuned/accuracy")
        'fine_tuned/accuracy'
        >>> renamed_metric("test/accuracy")
    """
    for old, new in METRICS.items():
        if name == old or name.startswith(f"{old}/"):
            return new + name.removeprefix(old)
    return None
