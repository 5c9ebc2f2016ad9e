"""Least-norm aggregation: the shortest vector in the convex hull of the client deltas."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.deltas import combine_leaves, usable_deltas
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update

QUIET = 1e-8
"""A delta below this fraction of the median nonzero length is ignored: it would freeze training."""

FIRM = 1e8
"""Weight of the equations against the form minimised under them: about ``eps ** -0.5``."""


@dataclass(frozen=True)
class MinNorm(Aggregator):
    r"""Least-norm convex combination of the client deltas (MGDA, consistent aggregation).

    .. math:: \Delta^* = \sum_k p_k \Delta_k, \quad
        p = \arg\min_{p \ge 0, \, 1^\top p = 1} \tfrac12 \Big\| \sum_k p_k \Delta_k \Big\|^2

    The step conflicts with no client: :math:`\langle \Delta_k, \Delta^* \rangle \ge |\Delta^*|^2`
    for all k. It combines ``payload["delta"]``; of every other part it returns the weighted mean,
    or the maximum for integers. The hull excludes clients of weight 0 and clients whose delta is 0
    or below 1e-8 of the median nonzero length. A delta that is not finite excludes its client from
    everything, with a warning.

    The least-norm point is unique. Its weights are not unique if the deltas are affinely dependent,
    as any n + 2 deltas of n parameters are. Where the step depends on these weights (``l2``,
    ``l2_direction``), ``exact`` takes the shortest step, so neither the order of clients nor a zero
    or repeated delta moves it; with ``average``, the length follows the mean. The step of ``cu``
    depends on its last iteration.

    Departs from the paper: the most conflicting client is combined with the combination of all
    clients, not of all others, because the printed update does not converge; ``exact`` needs no
    iteration.

    Args:
        solver: ``exact``, or ``cu``, the consistent updating of the paper, which is Frank-Wolfe.
        normalize: Vectors of the hull: ``none``, the deltas (paper); ``l2``, unit deltas, whose p
            then weighs the original deltas (the authors' code; clients may conflict with that
            step); ``l2_direction``, unit deltas and a step along their least-norm point.
        rescale: Length of the step: its own (``none``) or that of the weighted mean (``average``).
        max_steps: Maximum number of ``cu`` iterations, at least 1.

    Raises:
        ValueError: If ``max_steps`` is below 1.

    References:
        Liao et al. (2023), Eq. (8)-(11), arXiv:2307.14384; Desideri (2012), Comptes Rendus 350.

    Example:
        >>> updates = [(0, Update({"delta": {"w": torch.tensor([4.0, 0.0])}}, 9.0)),
        ...            (1, Update({"delta": {"w": torch.tensor([0.0, 2.0])}}, 1.0))]
        >>> MinNorm().aggregate(updates).payload["delta"]["w"]
        tensor([0.8000, 1.6000])
    """

    solver: Literal["exact", "cu"] = "exact"
    normalize: Literal["none", "l2", "l2_direction"] = "none"
    rescale: Literal["none", "average"] = "none"
    max_steps: int = 250

    def __post_init__(self) -> None:
        check.at_least(1, max_steps=self.max_steps)

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        collected, gram = usable_deltas(dict(updates), "MinNorm")
        sizes = torch.tensor([update.weight for update in collected.values()]).double()
        if not sizes.sum() > 0:
            raise ValueError("the weights of all updates are zero: no client has training data")
        prior = sizes / sizes.sum()
        p, gap = self.weigh(gram, prior)
        norm, average = (float((w @ gram @ w).clamp_min(0).sqrt()) for w in (p, prior))
        # a squared norm below this is a rounding error of the Gram matrix and has no direction
        rounding = len(p) * torch.finfo(gram.dtype).eps * float(p @ gram.diagonal().sqrt()) ** 2
        has_direction = norm**2 > rounding
        scale = average / norm if self.rescale == "average" and has_direction else 1.0
        metrics = {
            "ca/weight_max": float(p.max()),
            "ca/weight_zero": float((p == 0).sum()),
            "ca/gap": gap,
            "ca/length": norm / average if average else 1.0,
            "ca/cosine_min": _least_cosine(gram, p) if has_direction else 0.0,
        }
        payloads = [update.payload for update in collected.values()]
        deltas = [{"delta": payload["delta"]} for payload in payloads]
        others = [{k: v for k, v in payload.items() if k != "delta"} for payload in payloads]
        step = tree.map(lambda *leaves: combine_leaves(p * scale, leaves), *deltas)
        means = tree.map(lambda *leaves: _mean(prior, leaves), *others)
        return AggregatedUpdate({**step, **means}, float(sizes.sum()), tuple(collected), metrics)

    def weigh(
        self, gram: Float[Tensor, "k k"], prior: Float[Tensor, " k"]
    ) -> tuple[Float[Tensor, " k"], float]:
        """Client weights of the step, and the duality gap relative to the largest squared norm.

        Args:
            gram: Inner products of the deltas, in float64.
            prior: Weights of the ordinary mean, summing to one; returned if no delta counts.
        """
        lengths = gram.diagonal().sqrt()
        heard = _audible(lengths) & (prior > 0)
        if not heard.any():
            return prior, 0.0
        units = torch.ones_like(lengths) if self.normalize == "none" else lengths
        units = units[heard]
        hull = gram[heard][:, heard] / units.outer(units)
        start = prior[heard] / prior[heard].sum()
        if self.solver == "exact":
            q, gap = min_norm_point(hull, start, self._step_form(gram[heard][:, heard]))
        else:
            q, gap = frank_wolfe(hull, start, self.max_steps)
        if self.normalize == "l2_direction":
            q = q / units
        p = torch.zeros_like(prior)
        p[heard] = q / q.sum()
        return p, gap

    def _step_form(self, gram: Float[Tensor, "k k"]) -> Float[Tensor, "k k"] | None:
        """Quadratic form of the weights, least at the shortest step; ``None`` if it is unique."""
        lengths = gram.diagonal().sqrt()
        if self.normalize == "l2":
            return gram / gram.max()
        if self.normalize == "l2_direction":  # the step is the point over the mean of 1 / length
            late = 1 - lengths.min() / lengths
            late[late < 1e-12] = 0  # lengths that are equal to rounding
            return late.outer(late) / (late.max().square() if late.any() else 1)
        return None


def min_norm_point(
    gram: Float[Tensor, "k k"],
    start: Float[Tensor, " k"],
    ties: Float[Tensor, "k k"] | None = None,
) -> tuple[Float[Tensor, " k"], float]:
    r"""Weights of the least-norm point of a convex hull, exact to rounding, and their duality gap.

    .. math:: p = u / 1^\top u, \quad
        u = \arg\min_{u \ge 0} \; u^\top V u + r^2 (1^\top u - 1)^2 \quad (\text{any } r > 0)

    Solved by non-negative least squares (an active-set method) on a factor of ``V`` with columns of
    unit length; ``r`` is the length of the shortest vector. This resolves vectors of very different
    lengths in one pass. The point is unique; its weights are not if the vectors are affinely
    dependent.

    Args:
        gram: Inner products ``V`` of the vectors, in float64.
        start: Weights that sum to one; returned if they are already optimal to rounding.
        ties: Quadratic form ``W`` that selects, among all weights of the point, those with the
            least ``p'Wp``; ``None`` for any of them.

    Returns:
        Weights, and their gap ``(p'Vp - min_k (Vp)_k) / max_k V_kk``: 0 at the optimum. Twice the
        gap bounds the excess of the squared norm over its minimum, in the same unit.

    References:
        Lawson and Hanson (1974), Solving Least Squares Problems, Ch. 22 (equations by weight) and
        23; Wolfe (1976), Mathematical Programming 11, for the equivalence.

    Example:
        >>> gram = torch.tensor([[16.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
        >>> p, gap = min_norm_point(gram, torch.full((2,), 0.5, dtype=torch.float64))
        >>> [round(w, 12) for w in p.tolist()]
        [0.2, 0.8]
    """
    if all(_is_optimal(form, start) for form in (gram, ties) if form is not None):
        return start, _duality_gap(gram, start)
    v = gram.cpu().numpy()
    lengths = np.sqrt(v.diagonal())
    lengths = np.where(lengths > 0, lengths, lengths.max())
    values, vectors = np.linalg.eigh(v / np.outer(lengths, lengths))
    factor = np.sqrt(values.clip(0))[:, None] * vectors.T
    matrix = np.vstack([factor, lengths.min() / lengths])
    u = _solve(matrix, np.append(np.zeros(len(v)), 1.0)) / lengths
    resolved = _above_rounding(values)
    if ties is not None and not resolved.all():
        equations = np.vstack([vectors.T[resolved] * lengths, np.ones(len(v))])
        u = _least_of_solutions(equations, u / u.sum(), ties.cpu().numpy())
    p = torch.from_numpy(u / u.sum()).to(gram)
    return p, _duality_gap(gram, p)


def _least_of_solutions(equations: np.ndarray, u: np.ndarray, form: np.ndarray) -> np.ndarray:
    """Non-negative weights of least form among those that solve the same equations as ``u``."""
    values, vectors = np.linalg.eigh(form)
    resolved = _above_rounding(values)
    factor = np.sqrt(values[resolved])[:, None] * vectors.T[resolved]
    matrix = np.vstack([FIRM * equations, factor])
    goal = aim = equations @ u
    for _ in range(2):  # the second pass corrects the residual of the equations after the first
        u = _solve(matrix, np.append(FIRM * aim, np.zeros(len(factor))))
        aim = aim + goal - equations @ u
    return u


def _solve(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    # a vector can change sets several times; scipy's default limit of 3 per vector can be too low
    return scipy.optimize.nnls(matrix, target, maxiter=50 * matrix.shape[1])[0]


def _above_rounding(values: np.ndarray) -> np.ndarray:
    return values > len(values) * np.finfo(float).eps * values[-1]


def _is_optimal(gram: Float[Tensor, "k k"], p: Float[Tensor, " k"]) -> bool:
    rounding = len(p) * torch.finfo(gram.dtype).eps * float(p @ gram @ p)
    return _duality_gap(gram, p) * float(gram.max()) <= rounding


def frank_wolfe(
    gram: Float[Tensor, "k k"], start: Float[Tensor, " k"], steps: int
) -> tuple[Float[Tensor, " k"], float]:
    r"""Consistent updating: from ``start``, repeated steps towards the most conflicting vector.

    .. math:: \tau = \arg\min_k \langle \Delta_k, \Delta \rangle, \quad
        t = \mathrm{clip}_{[0, 1]} \frac{\langle \Delta - \Delta_\tau, \Delta \rangle}
        {|\Delta - \Delta_\tau|^2}, \quad p \leftarrow (1 - t) \, p + t \, e_\tau,
        \quad \Delta = \sum_k p_k \Delta_k

    The exact line search of Frank-Wolfe, so the norm never grows. The iterates are the same if the
    combination of all *other* vectors, with weights rescaled to sum to one, replaces
    :math:`\Delta`.

    Args:
        gram: Inner products of the vectors, in float64.
        start: Weights that sum to one.
        steps: Maximum number of steps; the iteration ends early at the optimum.

    Returns:
        Weights, and their gap as in :func:`min_norm_point`.

    References:
        Liao et al. (2023), Eq. (11) and Appendix C, arXiv:2307.14384; Jaggi (2013), Alg. 1.
    """
    p = start.clone()
    for _ in range(steps):
        products = gram @ p
        tau = int(products.argmin())
        slope = p @ (products - products[tau])  # all terms are non-negative: no cancellation
        square = p @ products - 2 * products[tau] + gram[tau, tau]
        # Eq. (11) is 0 / 0, up to rounding, once the most conflicting vector is the step itself
        if slope <= len(p) * torch.finfo(p.dtype).eps * (p @ products).abs() or square <= 0:
            break
        t = float((slope / square).clamp_max(1))
        p *= 1 - t
        p[tau] += t
    p = p / p.sum()
    return p, _duality_gap(gram, p)


def _duality_gap(gram: Float[Tensor, "k k"], p: Float[Tensor, " k"]) -> float:
    """Duality gap of weights: ``(p'Vp - min_k (Vp)_k) / max_k V_kk``, 0 at the optimum."""
    products = gram @ p
    largest = float(gram.diagonal().max())
    return float((p @ (products - products.min())) / largest) if largest else 0.0


def _audible(lengths: Tensor) -> Tensor:
    moved = lengths[lengths > 0]
    return lengths > (QUIET * moved.median() if len(moved) else 0)


def _least_cosine(gram: Tensor, p: Tensor) -> float:
    """Smallest cosine between the step and a client's delta."""
    lengths, products = gram.diagonal().sqrt(), gram @ p
    heard = _audible(lengths)
    return float((products[heard] / lengths[heard]).min() / (p @ products).sqrt())


def _mean(weights: Tensor, leaves: tuple[Tensor | float, ...]) -> Tensor:
    if torch.as_tensor(leaves[0]).is_floating_point():
        return combine_leaves(weights, leaves)
    return torch.stack([torch.as_tensor(leaf) for leaf in leaves]).amax(dim=0)
