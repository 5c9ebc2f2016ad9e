"""The step on which all clients agree: the shortest vector in the hull of their changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.log import logger
from fedbolic.types import Tree

BLOCK = 2**21
"""Entries of the widest float64 block, 16 MiB: a Gram matrix never needs all changes at once."""

QUIET = 1e-8
"""A change shorter than this share of the median of those above 0 would freeze training."""

FIRM = 1e8
"""Weight of an equation against the form minimised under it: one over the root of rounding."""


@dataclass(frozen=True)
class MinNorm(Aggregator):
    r"""The least-norm convex combination of the clients' changes (MGDA, consistent aggregation).

    .. math:: \Delta^* = \sum_k p_k \Delta_k, \quad
        p = \arg\min_{p \ge 0, \, 1^\top p = 1} \tfrac12 \Big\| \sum_k p_k \Delta_k \Big\|^2

    No client is against it: :math:`\langle \Delta_k, \Delta^* \rangle \ge |\Delta^*|^2` for all k.
    It acts on ``payload["delta"]``; every other part is the mean by weight, integers the largest.
    Set aside are clients of weight 0 and those whose change is 0 or below 1e-8 of the median length
    of the others; one that is not finite leaves its client out of everything, with a warning.

    The point is unique; its weights are not where changes are affinely dependent, as any n + 2 of n
    parameters are. Of the steps that such weights give (``l2``, ``l2_direction``), ``exact`` takes
    the shortest: neither the clients' order nor a silent or repeated client moves it, except that
    ``average`` follows the mean. The step of ``cu`` depends on where it stops.

    Departs from the paper: the toughest client is mixed with the combination of all clients, not of
    all others, because the printed update does not converge; ``exact`` solves without iterating.

    Args:
        solver: ``exact``, or ``cu``: the paper's consistent updating, which is Frank-Wolfe.
        normalize: What enters the hull: ``none``, the changes (paper); ``l2``, unit changes whose
            p then weighs the raw ones (the authors' code: clients may disagree with that step);
            ``l2_direction``, unit changes and a step along their least-norm point.
        rescale: Length of the step: its own (``none``) or that of the mean by weight (``average``).
        max_steps: Most iterations of ``cu``, at least 1.

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
        collected, gram = _usable(dict(updates))
        sizes = torch.tensor([update.weight for update in collected.values()]).double()
        if not sizes.sum() > 0:
            raise ValueError("the weights of all updates are zero: no client has training data")
        prior = sizes / sizes.sum()
        p, gap = self.weigh(gram, prior)
        norm, average = (float((w @ gram @ w).clamp_min(0).sqrt()) for w in (p, prior))
        # below this a norm is rounding of the Gram matrix, and its vector has no direction
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
        step = tree.map(lambda *leaves: _combine(p * scale, leaves), *deltas)
        means = tree.map(lambda *leaves: _mean(prior, leaves), *others)
        return AggregatedUpdate({**step, **means}, float(sizes.sum()), tuple(collected), metrics)

    def weigh(
        self, gram: Float[Tensor, "k k"], prior: Float[Tensor, " k"]
    ) -> tuple[Float[Tensor, " k"], float]:
        """The clients' weights in the step, and the duality gap over the largest square norm.

        Args:
            gram: Inner products of the changes, in float64.
            prior: Weights of a plain mean, summing to one; kept if no change is of any length.
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
        """A form of the weights that is least where the step is shortest, if they decide on it."""
        lengths = gram.diagonal().sqrt()
        if self.normalize == "l2":
            return gram / gram.max()
        if self.normalize == "l2_direction":  # the step is the point over the mean of 1 / length
            late = 1 - lengths.min() / lengths
            late[late < 1e-12] = 0  # equal lengths, to rounding
            return late.outer(late) / (late.max().square() if late.any() else 1)
        return None


def min_norm_point(
    gram: Float[Tensor, "k k"],
    start: Float[Tensor, " k"],
    ties: Float[Tensor, "k k"] | None = None,
) -> tuple[Float[Tensor, " k"], float]:
    r"""Weights of the least-norm point of a hull, exact to rounding, and their duality gap.

    .. math:: p = u / 1^\top u, \quad
        u = \arg\min_{u \ge 0} \; u^\top V u + r^2 (1^\top u - 1)^2 \quad (\text{any } r > 0)

    Non-negative least squares (an active set) on a factor of ``V`` with columns of unit length and
    ``r`` the shortest vector, so that vectors of very different lengths are resolved in one pass.
    The point is unique; its weights are not if vectors depend on each other.

    Args:
        gram: Inner products ``V`` of the vectors, float64.
        start: Weights summing to one; given back if they are already optimal to rounding.
        ties: A form ``W`` of the weights: of all that give the point, those of least ``p'Wp``.

    Returns:
        Weights, and the gap ``(p'Vp - min_k (Vp)_k) / max_k V_kk``: 0 at the optimum, and twice
        it bounds how far the square norm is above the least, in the same unit.

    References:
        Lawson and Hanson (1974), Solving Least Squares Problems, Ch. 22 (equations by weight) and
        23; Wolfe (1976), Mathematical Programming 11, for the equivalence.

    Example:
        >>> gram = torch.tensor([[16.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
        >>> p, gap = min_norm_point(gram, torch.full((2,), 0.5, dtype=torch.float64))
        >>> [round(w, 12) for w in p.tolist()]
        [0.2, 0.8]
    """
    forms = [gram] if ties is None else [gram, ties]
    if all(_is_optimal(form, start) for form in forms):
        return start, duality_gap(gram, start)
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
    return p, duality_gap(gram, p)


def _least_of_solutions(equations: np.ndarray, u: np.ndarray, form: np.ndarray) -> np.ndarray:
    """The weights of least form of those, not negative, that solve the same equations as ``u``."""
    values, vectors = np.linalg.eigh(form)
    resolved = _above_rounding(values)
    factor = np.sqrt(values[resolved])[:, None] * vectors.T[resolved]
    matrix = np.vstack([FIRM * equations, factor])
    goal = aim = equations @ u
    for _ in range(2):  # the second corrects what the form took from the equations in the first
        u = _solve(matrix, np.append(FIRM * aim, np.zeros(len(factor))))
        aim = aim + goal - equations @ u
    return u


def _solve(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    # the active set changes a few times per vector; scipy's own limit of 3 per vector can be tight
    return nnls(matrix, target, maxiter=50 * matrix.shape[1])[0]


def _above_rounding(values: np.ndarray) -> np.ndarray:
    return values > len(values) * np.finfo(float).eps * values[-1]


def _is_optimal(gram: Float[Tensor, "k k"], p: Float[Tensor, " k"]) -> bool:
    rounding = len(p) * torch.finfo(gram.dtype).eps * float(p @ gram @ p)
    return duality_gap(gram, p) * float(gram.max()) <= rounding


def frank_wolfe(
    gram: Float[Tensor, "k k"], start: Float[Tensor, " k"], steps: int
) -> tuple[Float[Tensor, " k"], float]:
    r"""Consistent updating: from ``start``, again and again towards the toughest vector.

    .. math:: \tau = \arg\min_k \langle \Delta_k, \Delta \rangle, \quad
        t = \mathrm{clip}_{[0, 1]} \frac{\langle \Delta - \Delta_\tau, \Delta \rangle}
        {|\Delta - \Delta_\tau|^2}, \quad p \leftarrow (1 - t) \, p + t \, e_\tau,
        \quad \Delta = \sum_k p_k \Delta_k

    The exact line search of Frank-Wolfe, so the norm never grows. With the combination of all
    *others*, weighted to sum to one, in the place of :math:`\Delta` the iterates are the same.

    Args:
        gram: Inner products of the vectors, float64.
        start: Weights summing to one.
        steps: Most steps; it stops where the toughest vector has no more to give.

    Returns:
        Weights, and their gap as in :func:`min_norm_point`.

    References:
        Liao et al. (2023), Eq. (11) and Appendix C, arXiv:2307.14384; Jaggi (2013), Alg. 1.
    """
    p = start.clone()
    for _ in range(steps):
        products = gram @ p
        tau = int(products.argmin())
        slope = p @ (products - products[tau])  # of terms that are not negative: no cancellation
        square = p @ products - 2 * products[tau] + gram[tau, tau]
        # Eq. (11) is 0 / 0, or rounding over rounding, once the toughest vector is the step itself
        if slope <= len(p) * torch.finfo(p.dtype).eps * (p @ products).abs() or square <= 0:
            break
        t = float((slope / square).clamp_max(1))
        p *= 1 - t
        p[tau] += t
    p = p / p.sum()
    return p, duality_gap(gram, p)


def duality_gap(gram: Float[Tensor, "k k"], p: Float[Tensor, " k"]) -> float:
    """Duality gap of weights: ``(p'Vp - min_k (Vp)_k) / max_k V_kk``, 0 at the optimum."""
    products = gram @ p
    largest = float(gram.diagonal().max())
    return float((p @ (products - products.min())) / largest) if largest else 0.0


def gram_matrix(trees: Sequence[Tree]) -> Float[Tensor, "k k"]:
    """Inner products of trees as flat vectors, summed in float64 by blocks of columns.

    Args:
        trees: At least one, all of the same names and shapes.
    """
    num_columns = max(1, BLOCK // len(trees))
    flat = [[torch.as_tensor(leaf).reshape(-1) for _, leaf in tree.leaves(x)] for x in trees]
    device = flat[0][0].device if flat[0] else None
    gram = torch.zeros(len(trees), len(trees), dtype=torch.float64, device=device)
    for rows in zip(*flat, strict=True):
        for i in range(0, len(rows[0]), num_columns):
            block = torch.stack([row[i : i + num_columns].double() for row in rows])
            gram.addmm_(block, block.T)
    return ((gram + gram.T) / 2).cpu()


def _usable(updates: dict[int, Update]) -> tuple[dict[int, Update], Tensor]:
    """The updates with a finite change, and the Gram matrix of those changes."""
    if not updates:
        raise ValueError("there is no update to aggregate")
    form = None
    for i, update in updates.items():
        if "delta" not in update.payload:
            names = sorted(update.payload)
            raise ValueError(f"client {i} sent {names}: MinNorm needs its 'change' of the model")
        form = form or tree.signature(update.payload)
        if tree.signature(update.payload) != form:
            raise ValueError(f"client {i} sent a payload of another form than those before")
    gram = gram_matrix([update.payload["delta"] for update in updates.values()])
    finite = gram.diagonal().isfinite()
    if not finite.any():
        raise ValueError("no client sent a finite change: lower the local step size")
    for i, fine in zip(updates, finite.tolist(), strict=True):
        if not fine:
            logger.warning("client %d is left out: its change is not finite", i)
    kept = {i: u for (i, u), fine in zip(updates.items(), finite.tolist(), strict=True) if fine}
    return kept, gram[finite][:, finite]


def _audible(lengths: Tensor) -> Tensor:
    moved = lengths[lengths > 0]
    return lengths > (QUIET * moved.median() if len(moved) else 0)


def _least_cosine(gram: Tensor, p: Tensor) -> float:
    """The smallest cosine between the step and a client's change."""
    lengths, products = gram.diagonal().sqrt(), gram @ p
    heard = _audible(lengths)
    return float((products[heard] / lengths[heard]).min() / (p @ products).sqrt())


def _combine(weights: Tensor, leaves: tuple[Tensor | float, ...]) -> Tensor:
    like = torch.as_tensor(leaves[0])
    total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
    for weight, leaf in zip(weights.tolist(), leaves, strict=True):
        if weight:
            total.add_(torch.as_tensor(leaf).double(), alpha=weight)
    return total.to(like.dtype)


def _mean(weights: Tensor, leaves: tuple[Tensor | float, ...]) -> Tensor:
    if torch.as_tensor(leaves[0]).is_floating_point():
        return _combine(weights, leaves)
    return torch.stack([torch.as_tensor(leaf) for leaf in leaves]).amax(dim=0)
