"""FlatLand: personalised federated graph learning in Lorentz spaces (Liu et al., FedKDD 2024)."""

from flatland.fedpub import FedPub, MaskedGCN
from flatland.frames import Frame, Twin
from flatland.links import LinkNetwork
from flatland.method import FlatLand
from flatland.model import GCN, LorentzGCN
from flatland.readout import GraphReadout
from flatland.ricci import Constant, FormanAbs, FormanInverse, InverseDegree

__all__ = [
    "GCN",
    "Constant",
    "FedPub",
    "FlatLand",
    "FormanAbs",
    "FormanInverse",
    "Frame",
    "GraphReadout",
    "InverseDegree",
    "LinkNetwork",
    "LorentzGCN",
    "MaskedGCN",
    "Twin",
]
