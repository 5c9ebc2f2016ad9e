"""Hyperbolic layers for any PyTorch network, independent of federated learning.

Sizes of layers count dimensions, not coordinates; points lie along the last axis. All parameters
are Euclidean, so any PyTorch optimiser works.
"""

from fedbolic.core.pair_keys import contains_pair, pair_keys
from fedbolic.nn.layers.activation import SpaceActivation, TangentActivation, TangentDropout
from fedbolic.nn.layers.adapters import HypLoRALinear, LoRALinear, add_adapters
from fedbolic.nn.layers.busemann import BusemannLinear
from fedbolic.nn.layers.change_curvature import ChangeCurvature
from fedbolic.nn.layers.classify import MLR
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.nn.layers.embedding import HyperbolicEmbedding
from fedbolic.nn.layers.image_convolution import Conv2d
from fedbolic.nn.layers.linear import Linear, LorentzFC
from fedbolic.nn.layers.normalize import (
    GyroBatchNorm,
    HyperbolicBatchNorm,
    HyperbolicLayerNorm,
    HyperbolicRMSNorm,
)
from fedbolic.nn.layers.parameter_groups import parameter_groups
from fedbolic.nn.layers.pool import CentroidPool, CentroidPool2d
from fedbolic.nn.layers.prototype import BusemannHead, PrototypeHead
from fedbolic.nn.layers.residual import HyperbolicResidual
from fedbolic.nn.layers.tangent_linear import TangentLinear
from fedbolic.nn.layers.to_manifold import ToManifold
from fedbolic.nn.loss.burn_in import BurnInSchedule
from fedbolic.nn.loss.contrastive import (
    CosineContrast,
    DistanceContrast,
    EntailmentContrast,
    LogitScale,
)
from fedbolic.nn.loss.decoder import FermiDirac
from fedbolic.nn.loss.negatives import NegativeSampler
from fedbolic.nn.loss.pair_loss import MarginLoss, RankingLoss
from fedbolic.nn.loss.ranking import RankingScores, rank_and_map
from fedbolic.nn.transformer.attention import LorentzAttention
from fedbolic.nn.transformer.block import LorentzDecoderBlock, LorentzEncoderBlock
from fedbolic.nn.transformer.embedding import LorentzPositions, PatchEmbedding
from fedbolic.nn.transformer.networks import LorentzTransformer, LorentzViT

__all__ = [
    "MLR",
    "BurnInSchedule",
    "BusemannHead",
    "BusemannLinear",
    "CentroidPool",
    "CentroidPool2d",
    "ChangeCurvature",
    "Conv2d",
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
    "HyperbolicRMSNorm",
    "HyperbolicResidual",
    "Linear",
    "LoRALinear",
    "LogitScale",
    "LorentzAttention",
    "LorentzDecoderBlock",
    "LorentzEncoderBlock",
    "LorentzFC",
    "LorentzPositions",
    "LorentzTransformer",
    "LorentzViT",
    "MarginLoss",
    "NegativeSampler",
    "PatchEmbedding",
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
