"""The direct pairs of a hierarchy, from which all others follow."""

import numpy as np
import scipy
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fedbolic.data.hierarchies.hierarchy import Hierarchy


def direct_pairs(hierarchy: Hierarchy) -> Int64[Tensor, "m 2"]:
    """Pairs of a node and a parent: those with no chain of other pairs between their ends.

    Args:
        hierarchy: Direct pairs, the closure, or anything in between.

    Raises:
        ValueError: As :meth:`~fedbolic.data.Hierarchy.closure`.

    Example:
        >>> pairs = torch.tensor([[0, 1], [0, 2], [1, 2]])
        >>> direct_pairs(Hierarchy(("lion", "cat", "mammal"), pairs)).tolist()
        [[0, 1], [1, 2]]
    """
    chains = _chains(hierarchy)
    if not np.isin(chains, hierarchy.keys.cpu().numpy()).all():
        hierarchy = hierarchy.closure()
        chains = _chains(hierarchy)
    keys = hierarchy.keys[~torch.isin(hierarchy.keys.cpu(), torch.from_numpy(chains))]
    return torch.stack((keys // len(hierarchy), keys % len(hierarchy)), dim=1)


def _chains(hierarchy: Hierarchy) -> NDArray[np.int64]:
    """Keys of the pairs whose ends two pairs join."""
    pairs, size = hierarchy.pairs.cpu().numpy(), len(hierarchy)
    joined = scipy.sparse.csr_array((np.ones(len(pairs)), pairs.T), shape=(size, size))
    found = scipy.sparse.coo_array(joined @ joined)
    return found.row.astype(np.int64) * size + found.col
