"""FlatLand: personalised federated graph learning in Lorentz spaces (Liu et al., FedKDD 2024)."""

import flatland.graphs.joint  # registers joint forms
import flatland.joint  # noqa: F401
from flatland.frames import Frame, Twin
from flatland.graphs.links import LinkNetwork
from flatland.graphs.model import GCN, LorentzGCN
from flatland.graphs.readout import GraphReadout
from flatland.graphs.ricci import Constant, FormanAbs, FormanInverse, InverseDegree
from flatland.key_nodes import KeyNodeGCN
from flatland.method import FlatLand
from flatland.private_ricci import PrivateForman
from flatland.rivals.adafgl import AdaFgl, PersonalPropagation
from flatland.rivals.affinities import GradientNorms, ShiftedCosines, UpdateCosines
from flatland.rivals.fedgnn import FedGnn
from flatland.rivals.fedgta import FedGta
from flatland.rivals.fedpub import FedPub, MaskedGCN
from flatland.rivals.fedsage import FedSagePlus
from flatland.rivals.fedstar import FedStar, StructureGIN
from flatland.rivals.fedtad import Distillation, FedTad
from flatland.rivals.fgssl import ContrastedGCN, Fgssl
from flatland.rivals.gcfl import Gcfl
from flatland.rivals.neighbours import NeighbourGenerator
from flatland.rivals.signatures import ExpandedGCN

__all__ = [
    "GCN",
    "AdaFgl",
    "Constant",
    "ContrastedGCN",
    "Distillation",
    "ExpandedGCN",
    "FedGnn",
    "FedGta",
    "FedPub",
    "FedSagePlus",
    "FedStar",
    "FedTad",
    "Fgssl",
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
    "PersonalPropagation",
    "PrivateForman",
    "ShiftedCosines",
    "StructureGIN",
    "Twin",
    "UpdateCosines",
]
