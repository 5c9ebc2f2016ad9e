"""Names of earlier versions, and the names that replaced them."""

import re

KEYS = {
    "schedule": "local",
    "tune": "fine_tuning",
    "calibrate": "ridge_head in the evaluation, closed_form_head in SphereFed",
    "pull": "personal_proximal",
    "shrink": "personal_proximal",
}
"""Options of a run."""

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
"""Import paths in configurations; the packages below moved as a whole."""

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
"""Metrics of a run, or the first part of their names."""


def renamed(text: str) -> str:
    """Hint that names the replacements of the old names in an error message; empty without any.

    An option counts where it is quoted or part of a dotted path, an import path anywhere.

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
    """The name of today for a metric of an earlier version; ``None`` if it has not changed.

    Example:
        >>> renamed_metric("tuned/accuracy")
        'fine_tuned/accuracy'
        >>> renamed_metric("test/accuracy")
    """
    for old, new in METRICS.items():
        if name == old or name.startswith(f"{old}/"):
            return new + name.removeprefix(old)
    return None
