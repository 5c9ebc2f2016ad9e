"""Audit of methods whose clients add the noise: DP-SGD, and noise in a sum with colluders."""

import itertools

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy import stats

from fedbolic.core.rng import Rng
from fedbolic.federated import DistributedNoise, Engine, Method
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import PrivateSteps
from fedbolic.testing.audit import GUESSED, IDEAL_DRAWS, Audit, bound_by_guesses, log_ratio
from fedbolic.testing.audit_checks import RARE, RECORDED, faults_of_shape
from fedbolic.testing.canaries import CanaryEngine
from fedbolic.testing.noisy_clients import StepsSubject, Subject, SumSubject

UNUSED = 4000
"""Number of axes of nobody, on which noise is examined."""

COMPARED_AXES = 64
"""Number of axes of nobody on which the noise of two runs is compared: by chance, never equal."""

LARGEST_ROUNDING = 0.02
"""Largest part of a contribution that rounding at random changes in an almost silent run."""


def subject_of(method: Method, num_clients: int, planted: int) -> Subject:
    """Canaries in the place of the model and the data of a method.

    Args:
        method: Method of a run.
        num_clients: Number of clients of the run.
        planted: Number of canaries, where it is free.

    Raises:
        ValueError: If clients of the method add no noise that this audit knows.
    """
    if isinstance(method, PrivateSteps):
        return StepsSubject(method, min(planted, int(0.5 / method.dp_delta)))
    if isinstance(method, DistributedNoise | SecureSum):
        return SumSubject(method, num_clients)
    raise ValueError(
        f"only a run with privacy is audited, by privacy, PrivateSteps or DistributedNoise, and "
        f"{type(method).__name__} has none of these"
    )


def audit_noisy(
    method: Method, engine: Engine, num_clients: int, *, planted: int = 1000, seed: int = 0
) -> Audit:
    """Audit of a method whose clients add noise, by runs of canaries.

    The server reads what one client of DP-SGD sends in every round; in a sum, it knows the noise of
    all clients but those whose noise the ledger counts.

    Args:
        method: Method of a run.
        engine: Engine of its clients.
        num_clients: Number of its clients.
        planted: Least number of canaries in all runs together.
        seed: Seed of the coins; keys of noise do not follow from it.

    Raises:
        ValueError: As :func:`subject_of`.
    """
    subject = subject_of(method, num_clients, planted)
    spent, delta = subject.ledger.epsilon(subject.ledger.rounds), subject.ledger.dp_delta
    scores, coins = [], []
    for number in range(-(-planted // subject.num)):
        present = Rng(seed).at("coins", number).numpy().random(subject.num) < 0.5
        seen = subject.run(engine, present, seed + number, resumed=subject.rounds > 1)
        scores.append(_scores(subject, seen.sums))
        coins.append(present)
    charged, found = _accounts(subject, engine)
    generator = Rng(seed).at("ideal").numpy()
    share = max(GUESSED, key=lambda s: np.mean(_ideal(subject, planted, s, generator)))
    ideals = _ideal(subject, planted, share, generator)  # anew: the largest of four is too large
    bound = bound_by_guesses(np.concatenate(scores), np.concatenate(coins), share, delta)
    faults = [*found, *_faults(subject, engine, seed)]
    if bound > spent:
        faults.append(f"the attack disproves the ledger's epsilon of {spent:.4g}")
    return Audit(spent, bound, ideals, tuple(faults), charged)


def _accounts(subject: Subject, engine: Engine) -> tuple[float | None, list[str]]:
    """Epsilon in the accounts of the latest nodes, and faults of these nodes."""
    if not isinstance(engine, CanaryEngine):
        return None, []
    ledger, charged = subject.ledger, engine.charged(subject.ledger)
    faults = engine.faults(ledger)
    if charged < (spent := ledger.epsilon(ledger.rounds)):
        faults.append(f"an account of a node is charged {charged:.4g}, and the ledger {spent:.4g}")
    return charged, faults


def _scores(subject: Subject, sums: Float64[ndarray, "rounds n"]) -> Float64[ndarray, " n"]:
    rate = subject.ledger.rate
    return log_ratio(sums, subject.std, rate, subject.trials).sum(axis=0)


def _ideal(
    subject: Subject, planted: int, share: float, generator: np.random.Generator
) -> tuple[float, ...]:
    """Bounds of the attack on draws of the ideal mechanism."""
    found, shape = [], (subject.rounds, planted)
    for _ in range(IDEAL_DRAWS):
        present = generator.random(planted) < 0.5
        into = generator.binomial(subject.trials, subject.ledger.rate, shape)
        drawn = present * into + subject.std * generator.standard_normal(shape)
        scores = _scores(subject, drawn)
        found.append(bound_by_guesses(scores, present, share, subject.ledger.dp_delta))
    return tuple(found)


def _faults(subject: Subject, engine: Engine, seed: int) -> list[str]:
    """Faults that need no attack: of keys, noise, contributions and records."""
    nobody, wide = np.zeros(subject.num, dtype=bool), subject.wider(UNUSED)
    first, some = wide.run(engine, nobody, seed), subject.wider(COMPARED_AXES)
    noise, faults = first.idle / wide.std, list[str]()
    one, other = (some.run(engine, nobody, seed).idle for _ in range(2))
    if np.array_equal(one, other):
        faults.append("the key of the noise follows from the seed of the run")
    faults += faults_of_shape(noise.ravel())
    for earlier, later in itertools.pairwise(noise):
        if abs(np.corrcoef(earlier, later)[0, 1]) > 6 / len(earlier) ** 0.5:
            faults.append("the noise of two rounds is correlated")
    faults += _faults_of_counts(subject.silent(), engine, seed)
    allowed = RECORDED | {"clients/failed"}
    names = sorted({row.name for row in first.rows} - allowed)
    return faults + [f"the metric {n!r} is recorded, and its cost is not declared" for n in names]


def _faults_of_counts(quiet: Subject, engine: Engine, seed: int) -> list[str]:
    """Faults of the contributions of a run with almost no noise, in which everybody is present."""
    everybody = np.ones(quiet.num, dtype=bool)
    sums = quiet.run(engine, everybody, seed).sums
    counts, trials, rate = np.rint(sums), quiet.trials, quiet.ledger.rate
    inside = 0 <= counts.min() <= counts.max() <= trials
    if not inside or np.abs(sums - counts).max() > LARGEST_ROUNDING:
        return ["a contribution is not the bound: by clipping, weights or the divisor"]
    if stats.binomtest(int(counts.sum()), counts.size * trials, rate).pvalue < RARE:
        return ["contributions are more or fewer than the ledger's rate allows"]
    # a few rare contributions are the same in two sound runs, too
    same = (stats.binom.pmf(np.arange(trials + 1), trials, rate) ** 2).sum() ** counts.size
    if same < RARE and np.array_equal(counts, np.rint(quiet.run(engine, everybody, seed).sums)):
        return ["batches follow from the seed of the run"]
    return []
