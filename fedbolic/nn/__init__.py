"""Hyperbolic layers for any PyTorch network, independent of federated learning.

Sizes of layers count dimensions, not coordinates; points lie along the last axis. All parameters
are Euclidean, so any PyTorch optimiser works.
"""

from fedbolic.nn.activation import SpaceActivation, TangentActivation
from fedbolic.nn.attention import LorentzAttention
from fedbolic.nn.change_curvature import ChangeCurvature
from fedbolic.nn.classify import LorentzMLR, PoincareMLR
from fedbolic.nn.dropout import Dropout
from fedbolic.nn.embedding import HyperbolicEmbedding
from fedbolic.nn.linear import LorentzFC, LorentzLinear, PoincareLinear
from fedbolic.nn.normalize import HyperbolicBatchNorm, HyperbolicLayerNorm
from fedbolic.nn.pool import CentroidPool
from fedbolic.nn.prototype import BusemannHead, PrototypeHead
from fedbolic.nn.residual import HyperbolicResidual
from fedbolic.nn.tangent_dropout import TangentDropout
from fedbolic.nn.tangent_linear import TangentLinear

__all__ = [
    "BusemannHead",
    "CentroidPool",
    "ChangeCurvature",
    "Dropout",
    "HyperbolicBatchNorm",
    "HyperbolicEmbedding",
    "HyperbolicLayerNorm",
    "HyperbolicResidual",
    "LorentzAttention",
    "LorentzFC",
    "LorentzLinear",
    "LorentzMLR",
    "PoincareLinear",
    "PoincareMLR",
    "PrototypeHead",
    "SpaceActivation",
    "TangentActivation",
    "TangentDropout",
    "TangentLinear",
]
