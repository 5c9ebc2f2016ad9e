"""Checks of the parts of a private run: keys, divisor, bound, noise, count and what is recorded."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy import stats
from scipy.linalg import toeplitz

from fedbolic.core.rng import Rng
from fedbolic.federated import ClientPrivacy, Sequential, Trainer
from fedbolic.federated.accounting.banded_noise import DIGITS, banded_coefficients
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.testing.canaries import (
    Canaries,
    Released,
    canary_data,
    placed,
    quiet,
    released_by,
)

KEYS = 2**18
"""Number of keys that are drawn; of those from 32 bits, some are equal but with exp(-8)."""

RARE = 1e-9
"""Probability with which a test of noise rejects sound noise."""

LEAST_NUMBERS = 100_000
"""Least number of numbers in a release whose noise is examined."""

RECORDED = frozenset(
    {
        "privacy/epsilon",
        "privacy/epsilon_without_sampling",
        "privacy/clip_norm",
        "bytes/down",
        "bytes/up",
        "clients/asked",
    }
)
"""Metrics of a private run without a test set at the server, none of which depends on the data."""


def sum_noise(privacy: ClientPrivacy, noise_multiplier: float, size: float) -> float:
    """Noise multiplier of the sum of the updates, by the published formula.

    Args:
        privacy: Settings.
        noise_multiplier: Noise multiplier of a round.
        size: Expected number of clients in a round.

    References:
        Andrew et al. (2021), Theorem 1, arXiv:1905.03871.
    """
    if privacy.placement == "clients":
        return noise_multiplier * size**0.5
    if privacy.adaptive is None:
        return noise_multiplier
    count = privacy.adaptive.count_noise or max(size / 20, noise_multiplier)
    return 1 / (1 / noise_multiplier**2 - 1 / (2 * count) ** 2) ** 0.5


def noise_covariance(ledger: PrivacyLedger) -> Float64[ndarray, "rounds rounds"]:
    """Covariance of the noise of the rounds of a run, over the variance of independent noise.

    Args:
        ledger: Ledger of the run.

    References:
        As those of :func:`~fedbolic.federated.accounting.tree_noise.add_leaf` and
        :func:`~fedbolic.federated.accounting.banded_noise.banded_coefficients`.
    """
    n, period = ledger.rounds, ledger.period
    if ledger.correlation == "none":
        return np.eye(n)
    if ledger.correlation == "banded":
        column = np.pad(band := banded_coefficients(n, min(period, n)), (0, n - len(band)))
        root = np.linalg.norm(column) * np.linalg.inv(toeplitz(column, np.zeros(n)))
        return root @ root.T
    own = np.eye(2 * period)  # of nodes from left to right: leaves have the odd numbers

    def estimate(level: int, place: int) -> Float64[ndarray, " nodes"]:
        if level == 0:
            return own[2 * place + 1]
        weight = 1 / (2 * (1 - 2.0 ** (-level - 1)))
        halves = estimate(level - 1, 2 * place) + estimate(level - 1, 2 * place + 1)
        return weight * own[(2 * place + 1) << level] + (1 - weight) * halves

    sums = np.zeros((period + 1, 2 * period))
    for t in range(1, period + 1):
        for level in range(t.bit_length()):
            sums[t] += estimate(level, (t >> level) - 1) if t >> level & 1 else 0
    growth = np.diff(sums, axis=0)
    return np.kron(np.eye(-(-n // period)), growth @ growth.T)[:n, :n]


def structural_faults(
    trainer: Trainer, num_clients: int, noise_multiplier: float, seed: int
) -> list[str]:
    """Faults of a trainer's private runs that need no attack, one sentence each.

    Args:
        trainer: Trainer with a private run's settings.
        num_clients: Number of clients of the run.
        noise_multiplier: Noise multiplier of the ledger.
        seed: Seed of the runs.
    """
    return [
        *_faults_of_keys(trainer, num_clients, seed),
        *_faults_of_the_sum(trainer, num_clients, seed),
        *_faults_of_noise(trainer, num_clients, noise_multiplier, seed),
        *_faults_of_the_count(trainer, num_clients, noise_multiplier, seed),
    ]


def _privacy(trainer: Trainer) -> ClientPrivacy:
    if trainer.privacy is None:
        raise ValueError("only a run with privacy is audited")
    return trainer.privacy


def _faults_of_keys(trainer: Trainer, num_clients: int, seed: int) -> list[str]:
    """Keys that follow from the seed or repeat, and cohorts that do not follow from the key."""
    privacy, method, rng = _privacy(trainer), Canaries(1, num_clients), Rng(seed)
    aggregation = PrivateAggregation.of_run(privacy, method, trainer.cohort, num_clients)
    states, faults = [aggregation.begin(rng, num_clients) for _ in range(2)], []
    keys = [bytes(state["key"].tolist()) for state in states]
    if keys[0] == keys[1]:
        faults.append("the key of the noise follows from the seed of the run")
    else:
        drawn = {privacy.noise.stream(rng).key for _ in range(KEYS)}
        if len(drawn) < KEYS or min(map(len, drawn)) < 32:
            faults.append("keys of the noise repeat, so they have far fewer than 256 bits")
    if not isinstance(aggregation.order(states[0], rng, 1, 0), SecretStream):
        faults.append("cohorts do not follow from the secret key")
    return faults


def _faults_of_the_sum(trainer: Trainer, num_clients: int, seed: int) -> list[str]:
    """A wrong divisor or bound, parts without noise, and failures that show, in silent runs."""
    silent, faults = quiet(trainer), []
    size = trainer.cohort.expected_size(num_clients)
    present = np.ones(num_clients, dtype=bool)
    for fault in (float("nan"), float("inf")):
        data = canary_data(present, faults=(0,), fault=fault)
        found = released_by(silent, Canaries(3, num_clients), data, seed)
        sums = found.deltas * size
        if not np.isfinite(sums).all() or np.abs(sums[:, 0]).max() > 1e-4:
            faults.append("a delta that is not finite contributes more than zero")
            sums = np.nan_to_num(sums)
        apart = np.minimum(np.abs(sums), np.abs(sums - 1)).max(initial=0.0)
        if sums.max(initial=0.0) > 1 + 1e-6 and np.ptp(sums[sums > 0.5]) > 1e-4:
            faults.append("contributions differ by client or round: by weights or by the divisor")
        elif apart > 1e-4:
            faults.append("a contribution is not the bound over the expected size of a cohort")
        faults += _faults_of_records(found)
    for part in ("buffers", "other"):
        try:
            silent.begin(Canaries(1, num_clients, part), canary_data(present), Rng(seed))
        except ValueError:
            continue
        faults.append(f"a payload with the part {part!r}, which gets no noise, is taken")
    return list(dict.fromkeys(faults))


def _faults_of_records(found: Released) -> list[str]:
    names = sorted({row.name for row in found.rows} - RECORDED)
    faults = [f"the metric {name!r} is recorded, and its cost is not declared" for name in names]
    if any(row.client is not None for row in found.rows):
        faults.append("metrics of single clients are recorded")
    return faults


def _faults_of_noise(
    trainer: Trainer, num_clients: int, noise_multiplier: float, seed: int
) -> list[str]:
    """Noise of another size, shape or grid than the ledger assumes, or that repeats."""
    privacy, dim = _privacy(trainer), max(num_clients, LEAST_NUMBERS)
    size = trainer.cohort.expected_size(num_clients)
    data, method = canary_data(np.zeros(num_clients, dtype=bool)), Canaries(2, dim)
    found = released_by(trainer, method, data, seed)
    sums = found.deltas * size
    std = sum_noise(privacy, noise_multiplier, size)
    ledger = privacy.ledger(trainer.cohort, num_clients, method.rounds)
    root = np.linalg.cholesky(noise_covariance(ledger))
    noise = np.linalg.solve(root, sums / found.bounds[:, None] / std)  # as independent noise
    faults = [*faults_of_shape(noise[0]), *faults_of_shape(noise[1])]
    if abs(np.corrcoef(noise[0], noise[1])[0, 1]) > stats.norm.isf(RARE) * 1.1 / dim**0.5:
        faults.append("the noise of two rounds is correlated otherwise than the ledger assumes")
    if privacy.placement == "server":
        grid = GaussianGrid(
            *(dim, bound := float(found.bounds[0]), std * bound * root[0, 0]),
            DIGITS if ledger.correlation == "banded" else 0,
        )
        faults += _faults_of_digits(sums[0] / grid.unit)
    trainer, _, data = placed(trainer, method, data)
    again = next(trainer.run(method, data, Rng(seed), found.states[0]))[0]
    if not np.array_equal(again.server_state["released"].numpy(), found.deltas[0]):
        faults.append("a repeated round has other noise, which can be averaged with the first")
    return list(dict.fromkeys(faults))


def faults_of_shape(noise: Float64[ndarray, " n"]) -> list[str]:
    """Noise of another size or shape than the standard normal distribution.

    Args:
        noise: Noise over the deviation that the ledger assumes.
    """
    square, faults = float((noise**2).sum()), []
    if not stats.chi2(len(noise)).ppf(RARE) < square < stats.chi2(len(noise)).isf(RARE):
        ratio = (square / len(noise)) ** 0.5
        faults.append(f"the noise is {ratio:.3g} times as large as the ledger assumes")
    elif stats.kstest(noise, "norm").pvalue < RARE:
        faults.append("the noise is not normal")
    return faults


def _faults_of_digits(numbers: Float64[ndarray, " n"]) -> list[str]:
    """Numbers that are not whole, or whose last binary digit is not uniform where it is large."""
    whole = np.rint(numbers)
    if np.abs(numbers - whole).max() > 1e-3:
        return ["noisy sums are not whole numbers of a grid, so their last digits betray the sum"]
    for least in (0, 2**24):
        large = whole[np.abs(whole) >= least]
        odd = int((large % 2).sum())
        if len(large) and stats.binomtest(odd, len(large)).pvalue < RARE:
            return ["the last digits of the noise are not uniform: it has too little precision"]
    return []


def _faults_of_the_count(
    trainer: Trainer, num_clients: int, noise_multiplier: float, seed: int, *, runs: int = 60
) -> list[str]:
    """Noise of adaptive clipping's count of another size than the ledger assumes.

    All clients fail, so that the count is noise alone, and nodes would stop the run; runs of one
    round, since the cost of every number of rounds takes a time.
    """
    privacy = _privacy(trainer)
    if (adaptive := privacy.adaptive) is None:
        return []
    size = trainer.cohort.expected_size(num_clients)
    data = canary_data(np.ones(num_clients, dtype=bool), faults=range(num_clients))
    method, silent = Canaries(1, num_clients), replace(trainer, engine=Sequential())
    ends = [released_by(silent, method, data, seed).states[-1] for _ in range(runs)]
    bounds = np.array([end.privacy["clip_norm"] for end in ends])
    moved = -np.log(bounds / privacy.clip_norm) / adaptive.lr + adaptive.quantile - 0.5
    std = adaptive.count_noise or max(size / 20, noise_multiplier)
    square = float(((moved * size / std) ** 2).sum())
    if stats.chi2(len(moved)).ppf(RARE) < square < stats.chi2(len(moved)).isf(RARE):
        return []
    ratio = (square / len(moved)) ** 0.5
    return [f"the noise of the count is {ratio:.3g} times as large as the ledger assumes"]
