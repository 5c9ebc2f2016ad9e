"""Clients, their data, and the partitioning of data sets among them."""

from fedbolic.data.contract.client import (
    HOLDOUT,
    Client,
    ClientSlices,
    Examples,
    FederatedData,
    LabelledSplit,
    Meta,
    Split,
)
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.contract.partition import IID, ByColumn, Dirichlet, Partition, Shards
from fedbolic.data.contract.source import Source
from fedbolic.data.flipped_labels import FlippedLabels
from fedbolic.data.graphs.arxiv import Arxiv
from fedbolic.data.graphs.disease import Disease
from fedbolic.data.graphs.federated_links import FederatedLinks, LinkExamples
from fedbolic.data.graphs.graph import Graph, GraphSplit
from fedbolic.data.graphs.graph_classification import GraphClassification
from fedbolic.data.graphs.graph_families import GraphFamily, TreesAndRings, TUFamily
from fedbolic.data.graphs.graph_file import GraphFile, save_graph
from fedbolic.data.graphs.graph_files import GraphFiles
from fedbolic.data.graphs.graph_sets import Amazon, BlockModel, GivenGraph, GraphSet, Planetoid
from fedbolic.data.graphs.graphs import Graphs
from fedbolic.data.graphs.link_split import LabelledPairs, LinkSplit, split_links
from fedbolic.data.graphs.louvain import Louvain
from fedbolic.data.graphs.metis import GraphPartition, Metis
from fedbolic.data.graphs.missing_edges import MissingEdges
from fedbolic.data.graphs.whole_graphs import WholeGraphs, pick_graphs, unite_graphs
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet, read_hierarchy
from fedbolic.data.hierarchies.hierarchy_partition import (
    CommonLevels,
    HierarchyPartition,
    Pooled,
    RandomPairs,
    Subtrees,
    SubtreesAndAuthority,
)
from fedbolic.data.hierarchies.hierarchy_sets import BalancedTree, HierarchyFile
from fedbolic.data.hierarchies.hierarchy_split import HierarchySplit
from fedbolic.data.hierarchies.holder_files import HolderFiles
from fedbolic.data.hierarchies.partitioned_hierarchy import PartitionedHierarchy
from fedbolic.data.hierarchies.published_hierarchies import GoogleProducts, Mammals, Nouns
from fedbolic.data.hierarchies.trees import balanced_tree, random_tree, taxonomy
from fedbolic.data.hierarchies.vocabulary import agree_names
from fedbolic.data.images.cifar import CIFAR10, CIFAR100
from fedbolic.data.images.cifar_superclasses import CIFAR100Superclasses
from fedbolic.data.images.digits import Digits
from fedbolic.data.images.idx import MNIST, EMNISTLetters, FashionMNIST
from fedbolic.data.images.image_folder import ImageFolder
from fedbolic.data.knowledge.holder_triples import HolderTriples, write_triple_names
from fedbolic.data.knowledge.partitioned_triples import PartitionedTriples
from fedbolic.data.knowledge.triple_partition import (
    ByEntity,
    ByRelation,
    RandomTriples,
    TriplePartition,
)
from fedbolic.data.knowledge.triple_sets import (
    Families,
    TripleFile,
    TripleFolder,
    TripleSet,
    WordNetRelations,
)
from fedbolic.data.knowledge.triple_split import TripleSplit
from fedbolic.data.knowledge.triples import Triples
from fedbolic.data.partitioned import Partitioned
from fedbolic.data.points import ClassRuns, HalfPlanes, Points, uniform_points
from fedbolic.data.tables.adaptors import from_huggingface, from_partitioner, in_one
from fedbolic.data.tables.arrays import Arrays, InMemory
from fedbolic.data.tables.table import Rows, Synthetic, Table
from fedbolic.data.tables.table_file import TableFile
from fedbolic.data.validation_fold import ValidationFold

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "HOLDOUT",
    "IID",
    "MNIST",
    "Amazon",
    "Arrays",
    "Arxiv",
    "BalancedTree",
    "BlockModel",
    "ByColumn",
    "ByEntity",
    "ByRelation",
    "CIFAR100Superclasses",
    "ClassRuns",
    "Client",
    "ClientSlices",
    "CommonLevels",
    "Dataset",
    "Digits",
    "Dirichlet",
    "Disease",
    "EMNISTLetters",
    "Examples",
    "Families",
    "FashionMNIST",
    "FederatedData",
    "FederatedLinks",
    "FlippedLabels",
    "GivenGraph",
    "GoogleProducts",
    "Graph",
    "GraphClassification",
    "GraphFamily",
    "GraphFile",
    "GraphFiles",
    "GraphPartition",
    "GraphSet",
    "GraphSplit",
    "Graphs",
    "HalfPlanes",
    "Hierarchy",
    "HierarchyFile",
    "HierarchyPartition",
    "HierarchySet",
    "HierarchySplit",
    "HolderFiles",
    "HolderTriples",
    "ImageFolder",
    "InMemory",
    "LabelledPairs",
    "LabelledSplit",
    "LinkExamples",
    "LinkSplit",
    "Louvain",
    "Mammals",
    "Meta",
    "Metis",
    "MissingEdges",
    "Nouns",
    "OfficialParts",
    "Partition",
    "Partitioned",
    "PartitionedHierarchy",
    "PartitionedTriples",
    "Planetoid",
    "Points",
    "Pooled",
    "RandomPairs",
    "RandomTriples",
    "Rows",
    "Shards",
    "Source",
    "Split",
    "Subtrees",
    "SubtreesAndAuthority",
    "Synthetic",
    "TUFamily",
    "Table",
    "TableFile",
    "TreesAndRings",
    "TripleFile",
    "TripleFolder",
    "TriplePartition",
    "TripleSet",
    "TripleSplit",
    "Triples",
    "ValidationFold",
    "WholeGraphs",
    "WordNetRelations",
    "agree_names",
    "balanced_tree",
    "from_huggingface",
    "from_partitioner",
    "in_one",
    "pick_graphs",
    "random_tree",
    "read_hierarchy",
    "save_graph",
    "split_links",
    "taxonomy",
    "uniform_points",
    "unite_graphs",
    "write_triple_names",
]
