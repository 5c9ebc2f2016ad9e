"""Federated training: methods, engines, and the trainer that runs their rounds."""

from fedbolic.federated.aggregators.aggregator import Additive, Aggregator, Gather, Mean, Sum
from fedbolic.federated.aggregators.centered_clipping import CenteredClipping
from fedbolic.federated.aggregators.channel import Channel, Clip
from fedbolic.federated.aggregators.geometric_median import GeometricMedian
from fedbolic.federated.aggregators.krum import Krum
from fedbolic.federated.aggregators.median import Median
from fedbolic.federated.aggregators.min_norm import MinNorm
from fedbolic.federated.aggregators.modular import SumModulo
from fedbolic.federated.aggregators.row_mean import RowMean
from fedbolic.federated.aggregators.trimmed_mean import TrimmedMean
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.attacks.alie import ALIE
from fedbolic.federated.attacks.attack import Attack, GaussianNoise, SignFlip
from fedbolic.federated.attacks.attacked import Attacked
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.engine import Engine, Exchange, Failure, RunStoppedError
from fedbolic.federated.contract.gradient_method import GradientMethod, LocalTraining
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.server_optimizer import (
    ServerAdagrad,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    ServerYogi,
)
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.engines.auto import Auto
from fedbolic.federated.engines.batched import Batched
from fedbolic.federated.engines.devices import Devices
from fedbolic.federated.engines.graphed import Graphed
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.engines.workers import Workers
from fedbolic.federated.noise.riemannian_laplace import RiemannianLaplace
from fedbolic.federated.privacy.client_privacy import AdaptiveClipping, ClientPrivacy
from fedbolic.federated.privacy.distributed import DistributedNoise
from fedbolic.federated.privacy.points import LaplaceMean, TangentMean
from fedbolic.federated.privacy.sum_privacy import SumPrivacy
from fedbolic.federated.rounds.cohort import Cohort
from fedbolic.federated.rounds.evaluation import Evaluation, FineTune, RidgeHead
from fedbolic.federated.trainer import Trainer, TrainerState

__all__ = [
    "ALIE",
    "AdaptiveClipping",
    "Additive",
    "AggregatedUpdate",
    "Aggregator",
    "Attack",
    "Attacked",
    "Auto",
    "Batched",
    "CenteredClipping",
    "Channel",
    "ClassifierMethod",
    "ClientPrivacy",
    "Clip",
    "Cohort",
    "Devices",
    "DistributedNoise",
    "Engine",
    "Evaluation",
    "Exchange",
    "Failure",
    "FineTune",
    "Gather",
    "GaussianNoise",
    "GeometricMedian",
    "GradientMethod",
    "Graphed",
    "Krum",
    "LaplaceMean",
    "LocalTraining",
    "Mean",
    "Median",
    "Method",
    "MinNorm",
    "Reporting",
    "RidgeHead",
    "RiemannianLaplace",
    "RowMean",
    "RunStoppedError",
    "Sequential",
    "ServerAdagrad",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "ServerYogi",
    "SignFlip",
    "Sum",
    "SumModulo",
    "SumPrivacy",
    "TangentMean",
    "Trainer",
    "TrainerState",
    "Traits",
    "TrimmedMean",
    "Update",
    "Workers",
]
