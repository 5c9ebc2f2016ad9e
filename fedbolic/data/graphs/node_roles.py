"""Training, validation and test nodes of a graph, drawn at random or given by masks."""

from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from fedbolic.core.check import one_of, rate
from fedbolic.core.rng import Rng
from fedbolic.data.graphs.graph import Graph, GraphSplit

NodeSplit = Literal["random", "masks"]

TRAIN, VALIDATION, TEST, UNUSED = range(4)

MASK_ROLES = {"train_mask": TRAIN, "val_mask": VALIDATION, "test_mask": TEST}
"""Roles by the names that PyG gives to masks."""


def check_split(split: NodeSplit, *, train_rate: float, test_rate: float) -> None:
    """Refuse an unknown split, and rates that leave no training nodes or sum to more than 1.

    Raises:
        ValueError: If a value is out of range.
    """
    one_of(("random", "masks"), split=split)
    rate(below_one=True, train_rate=train_rate, test_rate=test_rate)
    if train_rate == 0 or train_rate + test_rate > 1:
        raise ValueError(
            f"train_rate must be above 0 and at most 1 with test_rate, got {train_rate} "
            f"and {test_rate}"
        )


def random_roles(
    num_nodes: int, rng: Rng, *, train_rate: float, test_rate: float
) -> Int64[Tensor, " {num_nodes}"]:
    """A role for every node, uniformly at random without stratification.

    Args:
        num_nodes: Number of nodes, at least 0.
        rng: Random stream of the split.
        train_rate: Fraction of training nodes, in (0, 1).
        test_rate: Fraction of test nodes, in [0, 1); the rest is for validation.
    """
    num_train, num_test = round(train_rate * num_nodes), round(test_rate * num_nodes)
    order = torch.randperm(num_nodes, generator=rng.generator())
    roles = torch.full((num_nodes,), VALIDATION)
    roles[order[:num_train]] = TRAIN
    roles[order[num_train : num_train + num_test]] = TEST
    return roles


def masked_roles(graph: Graph, name: str) -> Int64[Tensor, " n"]:
    """The role that the graph's own masks give to every node; ``UNUSED`` without a mask.

    Args:
        graph: Graph with a ``train_mask``; a missing ``val_mask`` or ``test_mask`` is empty.
        name: Name of the graph in errors.

    Raises:
        ValueError: If there is no training mask, a mask is not one boolean per node, or a node is
            in two masks.

    Example:
        >>> masks = {"train_mask": torch.tensor([True, False, False]),
        ...          "test_mask": torch.tensor([False, False, True])}
        >>> edges = torch.zeros(2, 0, dtype=torch.int64)
        >>> masked_roles(Graph(torch.eye(3), edges, torch.tensor([0, 1, 0]), masks), "three nodes")
        tensor([0, 3, 2])
    """
    if "train_mask" not in graph.masks:
        raise ValueError(
            f"{name} has no train_mask, and its other masks are {sorted(graph.masks)}: add "
            "train_mask, val_mask and test_mask, or use split='random'"
        )
    roles = torch.full((len(graph),), UNUSED)
    for mask_name, mask in graph.masks.items():
        if mask.dtype != torch.bool or mask.shape != roles.shape:
            raise ValueError(
                f"{mask_name} of {name} must be one boolean for each of the {len(graph)} nodes, "
                f"got {mask.dtype} of shape {tuple(mask.shape)}: convert it to bool, and keep one "
                "column of several splits"
            )
        twice = (mask & (roles != UNUSED)).nonzero().flatten()
        if len(twice):
            raise ValueError(
                f"node {int(twice[0])} of {name} is in {mask_name} and in another mask: masks must "
                "not overlap"
            )
        roles[mask] = MASK_ROLES[mask_name]
    return roles


def node_splits(
    graph: Graph, roles: Int64[Tensor, " n"]
) -> tuple[GraphSplit, GraphSplit, GraphSplit]:
    """Training, validation and test nodes of a graph by their roles."""
    train, validation, test = (
        GraphSplit(graph, (roles == role).nonzero().flatten()) for role in (TRAIN, VALIDATION, TEST)
    )
    return train, validation, test
