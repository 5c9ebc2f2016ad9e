"""Scores of an embedded hierarchy besides the ranking of ancestors: distances, common ancestors."""

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from fedbolic.data import Hierarchy
from fedbolic.nn.loss.ranking import RowDistances


def tree_distances(
    hierarchy: Hierarchy, direct: Int64[Tensor, "m 2"], nodes: Int64[Tensor, " k"]
) -> Int64[Tensor, "k n"]:
    """Fewest steps from some nodes to all nodes, up or down; one node lies above all roots.

    Args:
        hierarchy: The hierarchy.
        direct: Its direct pairs.
        nodes: Nodes at which paths start.
    """
    roots = (hierarchy.depths == 0).nonzero().flatten()
    above = torch.stack((roots, torch.full_like(roots, len(hierarchy))), 1)
    u, v = torch.cat((direct, above)).cpu().numpy().T
    size = len(hierarchy) + 1
    graph = csr_array((np.ones(len(u)), (u, v)), shape=(size, size))
    steps = shortest_path(graph, directed=False, unweighted=True, indices=nodes.cpu().numpy())
    return torch.from_numpy(steps[:, :-1]).long()


def distance_error(distances: Float[Tensor, "*batch"], steps: Int[Tensor, "*batch"]) -> float:
    r"""Root mean square of the relative errors of tree distances along the best line.

    .. math:: \min_{\alpha, \beta} \sqrt{\operatorname{mean}
        \left(\frac{\alpha + \beta d - t}{t}\right)^2}

    for the distances :math:`d` of the embedding and :math:`t` of the tree. The line forgives a unit
    of length and, with biases, the constant that they leave open.

    Args:
        distances: Distances of pairs in the embedding.
        steps: Their distances in the tree; pairs with 0 are left out.

    Example:
        >>> distance_error(torch.tensor([3.0, 5.0, 9.0]), torch.tensor([1, 2, 4])) < 1e-6
        True
    """
    apart = steps > 0
    t = steps[apart].double().cpu().numpy()
    d = distances[apart].double().cpu().numpy()
    sides = np.stack((1 / t, d / t), axis=1)
    line, *_ = np.linalg.lstsq(sides, np.ones_like(t), rcond=None)
    return float(np.sqrt(np.mean((sides @ line - 1) ** 2)))


def lowest_common_ancestors(
    hierarchy: Hierarchy, pairs: Int64[Tensor, "m 2"]
) -> Int64[Tensor, " m"]:
    """The deepest common ancestor of every pair, the first of several; -1 if there is none.

    A node is no ancestor of itself.

    Args:
        hierarchy: The closure.
        pairs: Pairs of nodes.
    """
    u, v = hierarchy.pairs.cpu().numpy().T
    size = len(hierarchy)
    depths = hierarchy.depths.cpu().numpy()
    above = csr_array((np.ones(len(u)), (u, v)), shape=(size, size))
    first, second = pairs.cpu().numpy().T
    common = (above[first] * above[second]).multiply(depths[None] + 1).tocsr()
    deepest = np.asarray(common.argmax(axis=1)).ravel()
    deepest[np.asarray(common.max(axis=1).todense()).ravel() == 0] = -1
    return torch.from_numpy(deepest.astype(np.int64))


def common_ancestor_score(
    gaps: RowDistances, pairs: Int64[Tensor, "m 2"], lowest: Int64[Tensor, " m"]
) -> float:
    r"""Mean reciprocal rank of the lowest common ancestor of pairs, among all other nodes.

    Nodes :math:`w` are ranked by :math:`d(u, w) + d(v, w)`. Ties count against the ancestor.

    Args:
        gaps: Distances, or minus the scores, of some nodes to all nodes.
        pairs: Pairs ``(u, v)``.
        lowest: Their lowest common ancestors.
    """
    ranks = []
    for of, target in zip(pairs.split(256), lowest.split(256), strict=True):
        both = gaps(of[:, 0]).double() + gaps(of[:, 1]).double()
        own = both.gather(1, target[:, None])
        both.scatter_(1, of, torch.inf)
        ranks.append((both <= own).sum(1))
    return float((1 / torch.cat(ranks).double()).mean())
