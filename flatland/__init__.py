"""FlatLand: personalised federated graph learning in Lorentz spaces (Liu et al., FedKDD 2024)."""

from flatland.affinities import GradientNorms, ShiftedCosines, UpdateCosines
from flatland.fedgnn import FedGnn
from flatland.fedgta import FedGta
from flatland.fedpub import FedPub, MaskedGCN
from flatland.fedsage import FedSagePlus
from flatland.frames import Frame, Twin
from flatland.gcfl import Gcfl
from flatland.key_nodes import KeyNodeGCN
from flatland.links import LinkNetwork
from flatland.method import FlatLand
from flatland.model import GCN, LorentzGCN
from flatland.neighbours import NeighbourGenerator
from flatland.private_ricci import PrivateForman
from flatland.readout import GraphReadout
from flatland.ricci import Constant, FormanAbs, FormanInverse, InverseDegree
from flatland.signatures import ExpandedGCN

__all__ = [
    "GCN",
    "Constant",
    "ExpandedGCN",
    "FedGnn",
    "FedGta",
    "FedPub",
    "FedSagePlus",
    "FlatLand",
    "FormanAbs",
    "FormanInverse",
    "Frame",
    "Gcfl",
    "GradientNorms",
    "GraphReadout",
    "InverseDegree",
    "KeyNodeGCN",
    "LinkNetwork",
    "LorentzGCN",
    "MaskedGCN",
    "NeighbourGenerator",
    "PrivateForman",
    "ShiftedCosines",
    "Twin",
    "UpdateCosines",
]
