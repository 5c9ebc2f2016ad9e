"""The papers' comparison methods, one file each.

Local training, FedProx, FedPer and FedBABU are settings of
:class:`~fedbolic.federated.fedavg.FedAvg`.
"""

from fedbolic.baselines.ditto import Ditto
from fedbolic.baselines.majority import Majority
from fedbolic.baselines.scaffold import Scaffold
from fedbolic.baselines.spherefed import SphereFed

__all__ = ["Ditto", "Majority", "Scaffold", "SphereFed"]
