"""Loggers of Lightning for a run: Weights & Biases, MLflow, Comet, TensorBoard, CSV, or others."""

import contextlib
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedbolic.core.imports import extra, load_class
from fedbolic.core.yaml_text import flat_settings, yaml_line
from fedbolic.federated import RunStoppedError
from fedbolic.run.configuration import SetupError, one_line

with extra("run", "fedbolic.run"):
    import yaml

PYTORCH = "lightning.pytorch.loggers"

LOGGERS = {
    "wandb": f"{PYTORCH}.WandbLogger",
    "mlflow": f"{PYTORCH}.MLFlowLogger",
    "comet": f"{PYTORCH}.CometLogger",
    "tensorboard": f"{PYTORCH}.TensorBoardLogger",
    "csv": f"{PYTORCH}.CSVLogger",
}
"""Import paths of the best-known loggers, by a short name."""

PACKAGES = {
    "WandbLogger": ("wandb",),
    "MLFlowLogger": ("mlflow",),
    "CometLogger": ("comet_ml",),
    "TensorBoardLogger": ("tensorboard", "tensorboardX"),
}
"""Packages of which a logger of Lightning needs one, by its class."""

LOGGER_PROJECT = "fedbolic"
"""Default project or experiment in which runs are grouped."""


@dataclass(frozen=True)
class LoggerSettings:
    """A logger with keyword arguments of its class.

    Args:
        logger: Short name or import path of the logger.
        arguments: Keyword arguments, such as ``project``; they replace the defaults for a run.
    """

    logger: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)


def check_loggers(chosen: Sequence[str | LoggerSettings]) -> None:
    """Refuse loggers that cannot be created, before anything is written.

    Args:
        chosen: Loggers of a run.

    Raises:
        SetupError: If there is no such class, it is no logger, its package is missing, or it does
            not take the arguments.
    """
    for each in chosen:
        name, arguments = _parts(each)
        kind = _kind(name)
        packages = PACKAGES.get(kind.__name__, ()) if _is_lightnings(kind) else ()
        if packages and not any(map(_is_installed, packages)):
            raise SetupError(f"logger {name!r} needs {packages[0]}: pip install {packages[0]}")
        try:
            args, kwargs = _arguments(kind, arguments, Path("folder"))
            inspect.signature(kind).bind(*args, **kwargs)
        except TypeError as error:
            raise SetupError(f"logger {name!r} cannot be created: {one_line(error)}") from error


def make_loggers(chosen: Sequence[str | LoggerSettings], folder: Path) -> list[Any]:
    """Create the loggers of a run, and log its configuration as hyper-parameters.

    Args:
        chosen: Loggers that :func:`check_loggers` accepts.
        folder: Folder of the run, with its ``config.yaml``.

    Raises:
        RunStoppedError: If a logger cannot start, for instance without a network.
    """
    made = []
    for each in chosen:
        name, arguments = _parts(each)
        try:
            args, kwargs = _arguments(_kind(name), arguments, folder)
            logger = _kind(name)(*args, **kwargs)
            with contextlib.suppress(NotImplementedError):  # Fabric's own CSVLogger
                logger.log_hyperparams(hyperparameters((folder / "config.yaml").read_text()))
        except Exception as error:  # of any package
            raise RunStoppedError(
                f"logger {name!r} cannot start ({one_line(error)}): remove the cause, then use "
                f"`fedbolic resume {folder}`"
            ) from error
        made.append(logger)
    return made


def close_logger(logger: Any, status: str) -> None:
    """Have a logger write what it has kept, and end its run.

    Args:
        logger: A logger of :func:`make_loggers`.
        status: ``success`` or ``failed``, in Lightning's words.
    """
    logger.finalize(status)
    if _is_lightnings(type(logger)) and type(logger).__name__ == "WandbLogger":
        logger.experiment.finish(exit_code=int(status != "success"))  # or the next run joins it


def hyperparameters(config: str) -> dict[str, Any]:
    r"""The options of a configuration by dotted name; lists and tables are texts.

    Example:
        >>> hyperparameters("seed: 1\nmethod: {class_path: a.B, init_args: {lr: 0.1}}")
        {'seed': 1, 'method': 'a.B', 'method.lr': 0.1}
    """
    found = flat_settings(yaml.safe_load(config))
    return {n: yaml_line(v) if isinstance(v, dict | list) else v for n, v in found.items()}


def _parts(each: str | LoggerSettings) -> tuple[str, dict[str, Any]]:
    return (each, {}) if isinstance(each, str) else (each.logger, each.arguments)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # it is imported, but not from a file
        return True


def _kind(name: str) -> type:
    # imported here because it takes half a second and worker processes do not need it
    from lightning.fabric.loggers.logger import Logger

    try:
        return load_class(LOGGERS.get(name, name), Logger)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise SetupError(f"logger {name!r} cannot be created: {one_line(error)}") from error


def _is_lightnings(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")


def _arguments(
    kind: type, arguments: dict[str, Any], folder: Path
) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """Arguments of a logger: the given ones, and those that place it in the folder of the run."""
    title = f"{folder.parent.name}/{folder.name}"
    defaults: dict[str, dict[str, Any]] = {
        "WandbLogger": {"project": LOGGER_PROJECT, "name": title, "save_dir": str(folder)},
        "MLFlowLogger": {
            "experiment_name": LOGGER_PROJECT,
            "run_name": title,
            "tracking_uri": os.environ.get(
                "MLFLOW_TRACKING_URI",
                f"sqlite:///{folder.absolute()}/mlflow.db",  # MLflow 3 refuses to log to files
            ),
            "artifact_location": str(folder / "mlruns"),
        },
        "CometLogger": {"project": LOGGER_PROJECT, "name": title, "offline_directory": str(folder)},
    }
    if _is_lightnings(kind) and kind.__name__ in defaults:
        return (), {**defaults[kind.__name__], **arguments}
    return (folder,), arguments
