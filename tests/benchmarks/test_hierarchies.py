"""Rows of the benchmark train alike, learn, and resume; one of them follows the written algorithm."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks import hierarchies
from benchmarks.hierarchies import Problem, Results, Trial, TrialScores
from benchmarks.hierarchy_rows import (
    COOLED,
    PLAIN,
    ROWS,
    START,
    Training,
    initial,
    tangents,
    train,
)
from fedbolic.data import balanced_tree
from fedbolic.nn import rank_and_map
from fedbolic.rng import Rng

TREE = balanced_tree(2, 3)
SHORT = Training(epochs=2, batch_size=9, num_negatives=4)
