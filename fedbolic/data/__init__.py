"""Clients, the data they hold, and how data sets are split among them."""

from fedbolic.data.arrays import Arrays
from fedbolic.data.cifar import CIFAR10, CIFAR100
from fedbolic.data.client import HOLDOUT, Client, Examples, FederatedData, Meta, Split
from fedbolic.data.dataset import Dataset, Parts
from fedbolic.data.digits import Digits
from fedbolic.data.idx import MNIST, EMNISTLetters, FashionMNIST
from fedbolic.data.images import Images
from fedbolic.data.partition import IID, Dirichlet, Partition, Shards
from fedbolic.data.points import ClassRuns, HalfPlanes, Points, uniform_points
from fedbolic.data.source import Source
from fedbolic.data.tables import Rows, Synthetic, Table

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "HOLDOUT",
    "IID",
    "MNIST",
    "Arrays",
    "ClassRuns",
    "Client",
    "Dataset",
    "Digits",
    "Dirichlet",
    "EMNISTLetters",
    "Examples",
    "FashionMNIST",
    "FederatedData",
    "HalfPlanes",
    "Images",
    "Meta",
    "Partition",
    "Parts",
    "Points",
    "Rows",
    "Shards",
    "Source",
    "Split",
    "Synthetic",
    "Table",
    "uniform_points",
]
