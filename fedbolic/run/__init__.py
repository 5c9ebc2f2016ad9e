"""Runs: from settings to a folder, many of them from a table, and from a folder to a network."""

from fedbolic.run.configuration import SetupError
from fedbolic.run.experiment import resume, run
from fedbolic.run.exports import export
from fedbolic.run.loggers import LoggerSettings
from fedbolic.run.progress import ProgressBar
from fedbolic.run.record import RunFolder
from fedbolic.run.sweeps import sweep
from fedbolic.run.trained import TrainedModel, load

__all__ = [
    "LoggerSettings",
    "ProgressBar",
    "RunFolder",
    "SetupError",
    "TrainedModel",
    "export",
    "load",
    "resume",
    "run",
    "sweep",
]
