"""Federated training: methods, engines, and the trainer that runs their rounds."""

from fedbolic.federated.aggregate import Additive, Aggregator, Collect, Mean, Median, Sum
from fedbolic.federated.auto import Auto
from fedbolic.federated.batched import Batched
from fedbolic.federated.channel import Channel, Clip
from fedbolic.federated.cohort import Cohort
from fedbolic.federated.engine import Engine, Failure, RunStoppedError
from fedbolic.federated.evaluation import Calibrate, Evaluation, Tune
from fedbolic.federated.fedavg import FedAvg
from fedbolic.federated.method import Method, Total, Update
from fedbolic.federated.min_norm import MinNorm
from fedbolic.federated.modular import SumModulo
from fedbolic.federated.ranks import Ranks
from fedbolic.federated.sequential import Sequential
from fedbolic.federated.stepped import Schedule, Stepped
from fedbolic.federated.trainer import Position, Trainer
from fedbolic.federated.workers import Workers

__all__ = [
    "Additive",
    "Aggregator",
    "Auto",
    "Batched",
    "Calibrate",
    "Channel",
    "Clip",
    "Cohort",
    "Collect",
    "Engine",
    "Evaluation",
    "Failure",
    "FedAvg",
    "Mean",
    "Median",
    "Method",
    "MinNorm",
    "Position",
    "Ranks",
    "RunStoppedError",
    "Schedule",
    "Sequential",
    "Stepped",
    "Sum",
    "SumModulo",
    "Total",
    "Trainer",
    "Tune",
    "Update",
    "Workers",
]
