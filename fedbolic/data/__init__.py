"""Clients, the data they hold, and how data sets are split among them."""

from fedbolic.data.arrays import Arrays
from fedbolic.data.cifar import CIFAR10, CIFAR100
from fedbolic.data.client import HOLDOUT, Client, Examples, FederatedData, Meta, Split
from fedbolic.data.dataset import Dataset, Parts
from fedbolic.data.digits import Digits
from fedbolic.data.graph import Graph, GraphSplit
from fedbolic.data.graph_sets import Amazon, BlockModel, GivenGraph, GraphSet, Planetoid
from fedbolic.data.graphs import Graphs
from fedbolic.data.idx import MNIST, EMNISTLetters, FashionMNIST
from fedbolic.data.images import Images
from fedbolic.data.metis import GraphPartition, Metis
from fedbolic.data.partition import IID, Dirichlet, Partition, Shards
from fedbolic.data.source import Source

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "HOLDOUT",
    "IID",
    "MNIST",
    "Amazon",
    "Arrays",
    "BlockModel",
    "Client",
    "Dataset",
    "Digits",
    "Dirichlet",
    "EMNISTLetters",
    "Examples",
    "FashionMNIST",
    "FederatedData",
    "GivenGraph",
    "Graph",
    "GraphPartition",
    "GraphSet",
    "GraphSplit",
    "Graphs",
    "Images",
    "Meta",
    "Metis",
    "Partition",
    "Parts",
    "Planetoid",
    "Shards",
    "Source",
    "Split",
]
