"""Quick settings of every gradient method, as in ``configs``, without a YAML reader.

A machine with a GPU need not have the packages that read configurations; a test holds these
settings equal to the files.
"""

from collections.abc import Mapping
from typing import Any

from fedbolic.data import (
    IID,
    BalancedTree,
    Digits,
    Dirichlet,
    FederatedLinks,
    GraphClassification,
    Graphs,
    Partitioned,
    PartitionedHierarchy,
    Subtrees,
)
from fedbolic.data.contract.source import Source
from fedbolic.federated import LocalTraining, Mean, ServerAdam, ServerSGD
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.methods import (
    Apfl,
    Apple,
    ClosedFormHead,
    Ditto,
    FedAvg,
    FedDyn,
    FedMRUR,
    FedMTL,
    FedNova,
    FedProto,
    FedRep,
    FedRoD,
    Moon,
    PFedMe,
    Scaffold,
    SphereFed,
)
from fedbolic.nn.network.backbone import ConvNet
from fedbolic.nn.network.hyperbolic_resnet import HyperbolicResNet
from fedbolic.nn.network.resnet import ResNet
from flatland import (
    GCN,
    Constant,
    ExpandedGCN,
    FedGnn,
    FedGta,
    FedPub,
    FedSagePlus,
    FlatLand,
    Gcfl,
    GradientNorms,
    GraphReadout,
    KeyNodeGCN,
    LinkNetwork,
    LorentzGCN,
    NeighbourGenerator,
)
from flatland.rivals.fedpub import MaskedGCN
from hyperfed import CrossEntropy, HyperFed

DIGITS = Partitioned(Digits(), Dirichlet(10, alpha=0.5, min_size=10))
NODES = Graphs(partition=Dirichlet(4, alpha=1.0, min_size=40))
TREE = PartitionedHierarchy(BalancedTree(2, 5), Subtrees(4))
BATCH_NORMS: Sharing = {
    "*.stem.1.*": "personal",
    "*.branch.[14].*": "personal",
    "*.shortcut.1.*": "personal",
    "*": "shared",
}
TRAINED: dict[str, Any] = {"backbone": ConvNet(), "rounds": 20, "local": LocalTraining(5, 32)}
"""Settings that most methods share."""

HEADED: dict[str, Any] = {"rounds": 20, "local": LocalTraining(5, 32)}
"""Settings of the methods with a head in closed form."""

QUICK_METHODS: Mapping[str, tuple[GradientMethod, Source]] = {
    "apfl": (Apfl(**TRAINED, lr=0.1, mixing=0.5), DIGITS),
    "apple": (Apple(**TRAINED, lr=0.5, relations_lr=0.01, mu=0.001), DIGITS),
    "closed_form_head": (ClosedFormHead(FedAvg(**HEADED, lr=0.1), when="start"), DIGITS),
    "closed_form_head/end": (
        ClosedFormHead(FedDyn(**HEADED, lr=0.1), when="end", layer="body.1"),
        DIGITS,
    ),
    "ditto": (Ditto(**TRAINED, lr=0.1, personal_proximal=1.0), DIGITS),
    "fedavg": (FedAvg(**TRAINED, lr=0.1), DIGITS),
    "fedavg/hyperbolic": (
        FedAvg(
            HyperbolicResNet(16, (1,), 8), rounds=5, local=LocalTraining(epochs=1, batch_size=32)
        ),
        Partitioned(Digits(), Dirichlet(5, alpha=0.5, min_size=10)),
    ),
    "fedbabu": (
        FedAvg(**TRAINED, lr=0.1, sharing={"head.*": "fixed", "*": "shared"}, fine_tune_fixed=True),
        DIGITS,
    ),
    "fedbn": (
        FedAvg(
            ResNet(blocks=(1, 1), width=8, stem="cifar"),
            rounds=20,
            local=LocalTraining(5, 32),
            lr=0.1,
            sharing=BATCH_NORMS,
        ),
        DIGITS,
    ),
    "feddyn": (FedDyn(**TRAINED, lr=0.1), DIGITS),
    "fedgnn": (FedGnn(ExpandedGCN((16, 16), bits=4), rounds=20, pseudo=4), NODES),
    "fedgta": (FedGta(GCN((16, 16)), rounds=20), NODES),
    "fedhgcn": (
        FlatLand(
            KeyNodeGCN((16, 16)),
            rounds=20,
            sharing={"curvature.*": "fixed", "*": "shared"},
            curvature=Constant(),
        ),
        NODES,
    ),
    "fedmrur": (FedMRUR(**TRAINED, lr=0.1, mu=0.1), DIGITS),
    "fedmtl": (FedMTL(**TRAINED, lr=0.1, coupling=0.1), DIGITS),
    "fednova": (FedNova(**TRAINED, lr=0.1, momentum=0.5), DIGITS),
    "fedopt": (FedAvg(**TRAINED, lr=0.1, server_optimizer=ServerAdam(lr=0.01)), DIGITS),
    "fedper": (FedAvg(**TRAINED, lr=0.1, sharing={"head.*": "personal", "*": "shared"}), DIGITS),
    "fedproto": (FedProto(**TRAINED, lr=0.1, prototype_weight=1.0), DIGITS),
    "fedprox": (FedAvg(**TRAINED, lr=0.1, proximal=0.01), DIGITS),
    "fedpub": (FedPub(rounds=20, network=MaskedGCN(widths=(16, 16))), NODES),
    "fedrep": (FedRep(**TRAINED, lr=0.3, head_share=0.5), DIGITS),
    "fedrod": (FedRoD(**TRAINED, lr=0.1), DIGITS),
    "fedsage_plus": (
        FedSagePlus(
            GCN((16, 16)),
            rounds=20,
            generator=NeighbourGenerator(8, most=3, rounds=2, epochs=20, lr=0.02, num_codes=8),
        ),
        NODES,
    ),
    "flatland": (FlatLand(rounds=20, proximal=0.01, network=LorentzGCN(widths=(16, 16))), NODES),
    "flatland/graphs": (
        FlatLand(
            GraphReadout(LorentzGCN(widths=(16, 16)), pooling="centroid"),
            rounds=20,
            proximal=0.01,
        ),
        GraphClassification(partition=IID(4)),
    ),
    "flatland/links": (
        FlatLand(LinkNetwork(LorentzGCN(widths=(16,)), dim=8), rounds=20, proximal=0.01),
        FederatedLinks(partition=IID(3)),
    ),
    "gcfl": (Gcfl(GCN((16, 16)), rounds=20, warmup=1), NODES),
    "gcfl_plus": (
        Gcfl(GCN((16, 16)), rounds=20, warmup=1, affinity=GradientNorms(2)),
        NODES,
    ),
    "hierarchies": (
        HierarchyEmbedding(dim=2, rounds=20, lr=0.1, local=LocalTraining(4, 16)),
        TREE,
    ),
    "hyperfed": (HyperFed(**TRAINED, lr=1.0), DIGITS),
    "hyperfed/h_ce": (
        HyperFed(
            **TRAINED,
            lr=0.1,
            objective=CrossEntropy(),
            aggregator=Mean(),
            server_optimizer=ServerSGD(momentum=0.5),
        ),
        DIGITS,
    ),
    "local": (FedAvg(**TRAINED, lr=0.1, sharing={"*": "personal"}), DIGITS),
    "moon": (Moon(**TRAINED, lr=0.1, mu=1.0, temperature=0.5), DIGITS),
    "pfedme": (
        PFedMe(
            ConvNet(),
            rounds=20,
            local=LocalTraining(5, 32, repeats=5),
            lr=0.1,
            personal_lr=0.1,
            personal_proximal=1.0,
        ),
        DIGITS,
    ),
    "scaffold": (Scaffold(**TRAINED, lr=0.1), DIGITS),
    "spherefed": (SphereFed(**TRAINED, lr=1.0), DIGITS),
}
"""Method and data of every ``quick.yaml`` whose method takes gradient steps, by folder."""
