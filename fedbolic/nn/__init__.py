"""Hyperbolic layers for any PyTorch network, independent of federated learning.

Sizes of layers count dimensions, not coordinates; points lie along the last axis. All parameters
are Euclidean, so any PyTorch optimiser works.
"""

from fedbolic.nn.activation import SpaceActivation, TangentActivation
from fedbolic.nn.adapters import HypLoRALinear, LoRALinear, add_adapters
from fedbolic.nn.attention import LorentzAttention
from fedbolic.nn.burn_in import BurnInSchedule
from fedbolic.nn.busemann import BusemannLinear
from fedbolic.nn.change_curvature import ChangeCurvature
from fedbolic.nn.classify import LorentzMLR, PoincareMLR
from fedbolic.nn.contrastive import (
    CosineContrast,
    DistanceContrast,
    EntailmentContrast,
    LogitScale,
)
from fedbolic.nn.decoder import FermiDirac
from fedbolic.nn.dropout import Dropout
from fedbolic.nn.embedding import HyperbolicEmbedding
from fedbolic.nn.image_convolution import LorentzConv2d, PoincareConv2d
from fedbolic.nn.linear import LorentzFC, LorentzLinear, PoincareLinear
from fedbolic.nn.negatives import NegativeSampler
from fedbolic.nn.normalize import GyroBatchNorm, HyperbolicBatchNorm, HyperbolicLayerNorm
from fedbolic.nn.pair_loss import MarginLoss, RankingLoss
from fedbolic.nn.parameter_groups import parameter_groups
from fedbolic.nn.pool import CentroidPool, CentroidPool2d
from fedbolic.nn.prototype import BusemannHead, PrototypeHead
from fedbolic.nn.ranking import RankingScores, rank_and_map
from fedbolic.nn.residual import HyperbolicResidual
from fedbolic.nn.tangent_dropout import TangentDropout
from fedbolic.nn.tangent_linear import TangentLinear
from fedbolic.nn.to_manifold import ToManifold
from fedbolic.pair_keys import contains_pair, pair_keys

__all__ = [
    "BurnInSchedule",
    "BusemannHead",
    "BusemannLinear",
    "CentroidPool",
    "CentroidPool2d",
    "ChangeCurvature",
    "CosineContrast",
    "DistanceContrast",
    "Dropout",
    "EntailmentContrast",
    "FermiDirac",
    "GyroBatchNorm",
    "HypLoRALinear",
    "HyperbolicBatchNorm",
    "HyperbolicEmbedding",
    "HyperbolicLayerNorm",
    "HyperbolicResidual",
    "LoRALinear",
    "LogitScale",
    "LorentzAttention",
    "LorentzConv2d",
    "LorentzFC",
    "LorentzLinear",
    "LorentzMLR",
    "MarginLoss",
    "NegativeSampler",
    "PoincareConv2d",
    "PoincareLinear",
    "PoincareMLR",
    "PrototypeHead",
    "RankingLoss",
    "RankingScores",
    "SpaceActivation",
    "TangentActivation",
    "TangentDropout",
    "TangentLinear",
    "ToManifold",
    "add_adapters",
    "contains_pair",
    "pair_keys",
    "parameter_groups",
    "rank_and_map",
]
