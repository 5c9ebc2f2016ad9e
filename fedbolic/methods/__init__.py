"""Federated methods for any classifier, one file each.

Local training, FedProx, FedPer, FedBABU and FedBN are settings of
:class:`~fedbolic.methods.fedavg.FedAvg`.
"""

import fedbolic.methods.joint  # noqa: F401  # registers its joint forms
from fedbolic.methods.closed_form_head import ClosedFormHead
from fedbolic.methods.fedavg import FedAvg
from fedbolic.methods.feddyn import FedDyn
from fedbolic.methods.fedmrur import FedMRUR
from fedbolic.methods.fednova import FedNova
from fedbolic.methods.majority import Majority
from fedbolic.methods.moon import Moon
from fedbolic.methods.personal.apfl import Apfl
from fedbolic.methods.personal.apple import Apple
from fedbolic.methods.personal.ditto import Ditto
from fedbolic.methods.personal.fedala import FedALA
from fedbolic.methods.personal.fedamp import FedAMP
from fedbolic.methods.personal.fedcp import FedCP
from fedbolic.methods.personal.feddbe import FedDBE
from fedbolic.methods.personal.fedmtl import FedMTL
from fedbolic.methods.personal.fedpac import FedPAC
from fedbolic.methods.personal.fedproto import FedProto
from fedbolic.methods.personal.fedrep import FedRep
from fedbolic.methods.personal.fedrod import FedRoD
from fedbolic.methods.personal.gpfl import GPFL
from fedbolic.methods.personal.perfedavg import PerFedAvg
from fedbolic.methods.personal.pfedme import PFedMe
from fedbolic.methods.private_steps import PrivateSteps
from fedbolic.methods.scaffold import Scaffold
from fedbolic.methods.spherefed import SphereFed
from fedbolic.nn.functional.random_features import RandomFeatures

__all__ = [
    "GPFL",
    "Apfl",
    "Apple",
    "ClosedFormHead",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAvg",
    "FedCP",
    "FedDBE",
    "FedDyn",
    "FedMRUR",
    "FedMTL",
    "FedNova",
    "FedPAC",
    "FedProto",
    "FedRep",
    "FedRoD",
    "Majority",
    "Moon",
    "PFedMe",
    "PerFedAvg",
    "PrivateSteps",
    "RandomFeatures",
    "Scaffold",
    "SphereFed",
]
