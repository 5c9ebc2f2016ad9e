"""Clients, their data, and the partitioning of data sets among them."""

from fedbolic.data.adaptors import from_huggingface, from_partitioner, in_one
from fedbolic.data.arrays import Arrays, InMemory
from fedbolic.data.arxiv import Arxiv
from fedbolic.data.cifar import CIFAR10, CIFAR100
from fedbolic.data.client import (
    HOLDOUT,
    Client,
    ClientSlices,
    Examples,
    FederatedData,
    LabelledSplit,
    Meta,
    Split,
)
from fedbolic.data.dataset import Dataset, OfficialParts
from fedbolic.data.digits import Digits
from fedbolic.data.disease import Disease
from fedbolic.data.federated_links import FederatedLinks, LinkExamples
from fedbolic.data.flipped_labels import FlippedLabels
from fedbolic.data.graph import Graph, GraphSplit
from fedbolic.data.graph_classification import GraphClassification
from fedbolic.data.graph_families import GraphFamily, TreesAndRings, TUFamily
from fedbolic.data.graph_file import GraphFile, save_graph
from fedbolic.data.graph_files import GraphFiles
from fedbolic.data.graph_sets import Amazon, BlockModel, GivenGraph, GraphSet, Planetoid
from fedbolic.data.graphs import Graphs
from fedbolic.data.hierarchy import Hierarchy
from fedbolic.data.hierarchy_files import HierarchySet, Mammals, Nouns, read_hierarchy
from fedbolic.data.hierarchy_partition import (
    HierarchyPartition,
    Pooled,
    RandomPairs,
    Subtrees,
    SubtreesAndAuthority,
)
from fedbolic.data.hierarchy_sets import BalancedTree, HierarchyFile, RandomTree
from fedbolic.data.hierarchy_split import HierarchySplit
from fedbolic.data.idx import MNIST, EMNISTLetters, FashionMNIST
from fedbolic.data.image_folder import ImageFolder
from fedbolic.data.link_split import LabelledPairs, LinkSplit, split_links
from fedbolic.data.louvain import Louvain
from fedbolic.data.metis import GraphPartition, Metis
from fedbolic.data.missing_edges import MissingEdges
from fedbolic.data.partition import IID, ByColumn, Dirichlet, Partition, Shards
from fedbolic.data.partitioned import Partitioned
from fedbolic.data.partitioned_hierarchy import PartitionedHierarchy
from fedbolic.data.points import ClassRuns, HalfPlanes, Points, uniform_points
from fedbolic.data.source import Source
from fedbolic.data.table_file import TableFile
from fedbolic.data.tables import Rows, Synthetic, Table
from fedbolic.data.trees import balanced_tree, random_tree, taxonomy
from fedbolic.data.validation_fold import ValidationFold
from fedbolic.data.whole_graphs import WholeGraphs, pick_graphs, unite_graphs

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
    "ClassRuns",
    "Client",
    "ClientSlices",
    "Dataset",
    "Digits",
    "Dirichlet",
    "Disease",
    "EMNISTLetters",
    "Examples",
    "FashionMNIST",
    "FederatedData",
    "FederatedLinks",
    "FlippedLabels",
    "GivenGraph",
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
    "Planetoid",
    "Points",
    "Pooled",
    "RandomPairs",
    "RandomTree",
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
    "ValidationFold",
    "WholeGraphs",
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
]
