"""Audit of a private run: a lower bound of epsilon by planted clients, and checks of parts."""

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray
from scipy.special import logsumexp
from scipy.stats import binom

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.federated import Trainer
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.testing.audit_checks import noise_covariance, structural_faults, sum_noise
from fedbolic.testing.canaries import Canaries, CanaryEngine, canary_data, released_by

CONFIDENCE = 0.95
"""Confidence of a lower bound of epsilon."""

GUESSED = (0.05, 0.1, 0.2, 0.4)
"""Fractions of the canaries about which an attacker may guess; the best is found in advance."""

IDEAL_DRAWS = 20
"""Draws of the ideal mechanism."""


@dataclass(frozen=True)
class Audit:
    """Result of an audit.

    Args:
        ledger: Epsilon of the ledger.
        bound: Epsilon that the attack disproves with 95 % confidence.
        ideals: Bounds of the same attack on as many canaries of the ideal mechanism, a draw each.
        faults: Faults, one sentence each.
        charged: Smallest epsilon in an account of a node; ``None`` without accounts.
    """

    ledger: float
    bound: float
    ideals: tuple[float, ...]
    faults: tuple[str, ...]
    charged: float | None = None

    @property
    def ideal(self) -> float:
        """Mean bound against the ideal mechanism; one attack varies as its draws do."""
        return float(np.mean(self.ideals))

    def __str__(self) -> str:
        found = "".join(f"FAULT: {fault}\n" for fault in self.faults) or "no fault was found\n"
        accounts = "" if self.charged is None else f", accounts of nodes {self.charged:.4g}"
        return (
            f"ledger: epsilon {self.ledger:.4g}{accounts}; attack: at least {self.bound:.4g} with "
            f"95 % confidence, where the ideal mechanism gives {self.ideal:.4g} on average, from "
            f"{min(self.ideals):.4g} to {max(self.ideals):.4g} in {len(self.ideals)} draws\n{found}"
        )


def chance(
    num_right: int, num_guesses: int, num_planted: int, epsilon: float, delta: float
) -> float:
    r"""Largest probability of that many right guesses if a mechanism has this epsilon and delta.

    .. math::
        P[B \ge v] + 2 m \delta \max_{1 \le i \le v} \frac{1}{i} P[v - i \le B < v], \qquad
        B \sim \mathrm{Bin}\left(r, \frac{e^\varepsilon}{1 + e^\varepsilon}\right)

    Args:
        num_right: Number of right guesses, v.
        num_guesses: Number of guesses, r, fixed in advance.
        num_planted: Number of planted clients, m.
        epsilon: Epsilon.
        delta: Delta.

    References:
        Steinke, Nasr and Jagielski (2023), Theorem 5.2, arXiv:2305.08846.
    """
    share = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(num_right - 1, num_guesses, share))
    fewer = np.cumsum(binom.pmf(np.arange(num_right - 1, -1, -1), num_guesses, share))
    worst = float(np.max(fewer / np.arange(1, num_right + 1), initial=0.0))
    return min(1.0, tail + 2 * num_planted * delta * worst)


def lower_bound(num_right: int, num_guesses: int, num_planted: int, delta: float) -> float:
    """Largest epsilon, up to 0.01, that the guesses disprove with 95 % confidence.

    Args:
        num_right: Number of right guesses.
        num_guesses: Number of guesses.
        num_planted: Number of planted clients.
        delta: Delta.
    """
    low, high = 0, 2000  # hundredths of epsilon; the chance rises with it
    while low < high:
        middle = (low + high + 1) // 2
        if chance(num_right, num_guesses, num_planted, middle / 100, delta) > 1 - CONFIDENCE:
            high = middle - 1
        else:
            low = middle
    return low / 100


def audit(
    trainer: Trainer, num_clients: int, rounds: int, *, planted: int = 1000, seed: int = 0
) -> Audit:
    """Audit of the privacy of a trainer's runs, by runs of planted clients.

    Each canary is in a run or not, by a coin, and an attacker who sees all releases guesses which.
    Runs are interrupted in their middle and go on from a stored checkpoint. They are repeated until
    there are enough canaries.

    Args:
        trainer: Trainer of a private run, with its engine and its cohorts.
        num_clients: Number of clients of the run.
        rounds: Number of its rounds.
        planted: Least number of canaries in all runs together.
        seed: Seed of the coins; keys of noise do not follow from it.

    Raises:
        ValueError: If the trainer has no privacy.
    """
    ledger, trainer = _settled(trainer, num_clients, rounds)
    spent = ledger.epsilon(rounds)
    bound, ideals = attacked(trainer, num_clients, rounds, planted=planted, seed=seed)
    engine = trainer.engine
    faults = engine.faults(None) if isinstance(engine, CanaryEngine) else []
    faults += structural_faults(trainer, num_clients, ledger.noise_multiplier, seed)
    if bound > spent:
        faults.append(f"the attack disproves the ledger's epsilon of {spent:.4g}")
    return Audit(spent, bound, ideals, tuple(faults))


def attacked(
    trainer: Trainer, num_clients: int, rounds: int, *, planted: int = 1000, seed: int = 0
) -> tuple[float, tuple[float, ...]]:
    """Lower bound of epsilon by an attack, and bounds against draws of the ideal mechanism.

    Args:
        trainer: As for :func:`audit`, as are the others.
        num_clients: Number of clients of the run.
        rounds: Number of its rounds.
        planted: Least number of canaries in all runs together.
        seed: Seed of the coins.
    """
    ledger, trainer = _settled(trainer, num_clients, rounds)
    size = trainer.cohort.expected_size(num_clients)
    std = sum_noise(trainer.privacy or _refused(), ledger.noise_multiplier, size)
    method, coins, scores, asked = Canaries(rounds, num_clients), [], [], []
    for number in range(-(-planted // num_clients)):
        present = Rng(seed).at("coins", number).numpy().random(num_clients) < 0.5
        data, resumed = canary_data(present), rounds > 1
        found = released_by(trainer, method, data, seed + number, resumed=resumed)
        members = _members(trainer, method, num_clients, seed + number, found.states[0].privacy)
        sums = found.deltas * size / found.bounds[:, None]
        coins.append(present)
        asked.append(members)
        scores.append(_scores(sums, members, ledger, std))
    generator, known = Rng(seed).at("ideal").numpy(), np.concatenate(asked, axis=1)
    share = max(GUESSED, key=lambda s: np.mean(_ideal(ledger, std, known, s, generator)))
    bound = bound_by_guesses(np.concatenate(scores), np.concatenate(coins), share, ledger.dp_delta)
    return bound, _ideal(ledger, std, known, share, generator)


def _settled(trainer: Trainer, num_clients: int, rounds: int) -> tuple[PrivacyLedger, Trainer]:
    """The ledger of a run, and the trainer with the size of noise that it found."""
    privacy = trainer.privacy or _refused()
    ledger = privacy.ledger(trainer.cohort, num_clients, rounds)
    privacy = replace(privacy, noise_multiplier=ledger.noise_multiplier)
    return ledger, replace(trainer, privacy=privacy)


def _refused() -> NoReturn:
    raise ValueError("only a run with privacy is audited")


def _members(
    trainer: Trainer, method: Canaries, num_clients: int, seed: int, key: Tree
) -> Bool[ndarray, "rounds n"]:
    """Clients that are asked in every round, as whoever sees the requests knows."""
    cohort, found = trainer.cohort, np.zeros((method.rounds, num_clients), dtype=bool)
    privacy = trainer.privacy or _refused()
    aggregation = PrivateAggregation.of_run(privacy, method, cohort, num_clients)
    for done, row in enumerate(found):
        first, place = cohort.place(done, num_clients)
        stream = aggregation.order(key, Rng(seed), first, 0).at("cohort")
        row[list(cohort.sample(range(num_clients), stream, place=place))] = True
    return found


def _scores(
    deltas: Float64[ndarray, "rounds n"],
    members: Bool[ndarray, "rounds n"],
    ledger: PrivacyLedger,
    std: float,
) -> Float64[ndarray, " n"]:
    r"""Logarithm of the likelihood ratio of being in the run, for every canary.

    .. math:: s^T K^{-1} (x - s / 2) / \sigma^2

    K is the covariance of the noise of the rounds, and s says in which of them the canary takes
    part. Where that is secret, the ratio is that of a mixture over all choices.
    """
    if ledger.participation in ("poisson", "fixed"):
        return log_ratio(deltas, std, ledger.rate).sum(axis=0)
    precision = np.linalg.inv(noise_covariance(ledger))
    found: Float64[ndarray, " n"] = (members * (precision @ (deltas - members / 2))).sum(axis=0)
    return found / std**2


def log_ratio(
    seen: Float64[ndarray, "rounds n"], std: float, rate: float, trials: int = 1
) -> Float64[ndarray, "rounds n"]:
    r"""Logarithm of the likelihood ratio of noisy numbers of contributions to noise alone.

    .. math:: \log \sum_k \Pr[\mathrm{Bin}(T, q) = k] \, e^{(k s - k^2 / 2) / \sigma^2}

    Args:
        seen: Noisy numbers of contributions, s.
        std: Deviation of the noise.
        rate: Probability of a contribution, q.
        trials: Number of contributions that are possible, T.
    """
    k = np.arange(trials + 1)[:, None, None]
    weights = binom.logpmf(k, trials, rate)
    found: Float64[ndarray, "rounds n"] = logsumexp(
        weights + (k * seen - k**2 / 2) / std**2, axis=0
    )
    return found


def _ideal(
    ledger: PrivacyLedger,
    std: float,
    members: Bool[ndarray, "rounds n"],
    share: float,
    generator: np.random.Generator,
) -> tuple[float, ...]:
    """Bounds of the attack on draws of the ideal mechanism."""
    found, root = [], np.linalg.cholesky(noise_covariance(ledger))
    for _ in range(IDEAL_DRAWS):
        present = generator.random(members.shape[1]) < 0.5
        into = members
        if ledger.participation in ("poisson", "fixed"):
            into = generator.random(members.shape) < ledger.rate
        drawn = present * into + std * (root @ generator.standard_normal(members.shape))
        scores = _scores(drawn, members, ledger, std)
        found.append(bound_by_guesses(scores, present, share, ledger.dp_delta))
    return tuple(found)


def bound_by_guesses(
    scores: Float64[ndarray, " n"], present: Bool[ndarray, " n"], share: float, delta: float
) -> float:
    """Bound of epsilon by guesses about the largest and the smallest scores, half of them each.

    Args:
        scores: Score of every canary.
        present: Whether each canary was in the run.
        share: Fraction of the canaries about which the attacker guesses.
        delta: Delta.
    """
    order, each = np.argsort(scores), max(1, int(len(scores) * share / 2))
    right = int(present[order[-each:]].sum() + (~present[order[:each]]).sum())
    return lower_bound(right, 2 * each, len(scores), delta)
