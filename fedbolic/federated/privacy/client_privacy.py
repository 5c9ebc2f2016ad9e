"""Settings of client-level differential privacy."""

import math
from dataclasses import dataclass
from typing import Literal

from fedbolic.core import check
from fedbolic.federated.accounting.gaussian import check_delta
from fedbolic.federated.accounting.ledger import (
    Correlation,
    Neighbours,
    Participation,
    PrivacyLedger,
    solve_noise,
)
from fedbolic.federated.contract.traits import CohortKind
from fedbolic.federated.noise.draws import SystemKeys
from fedbolic.federated.rounds.cohort import Cohort


@dataclass(frozen=True)
class AdaptiveClipping:
    r"""Clipping bound that follows a quantile of the norms of the clients' updates.

    .. math:: b \leftarrow b \exp(-\eta (\tilde\beta - \gamma))

    Beta is the noisy fraction of the updates of norm at most b. It shares the noise of a round with
    the sum of the updates, whose noise becomes :math:`(z^{-2} - (2 \sigma)^{-2})^{-1/2}`, so that
    both together cost what the sum alone would cost.

    Args:
        quantile: Fraction of the updates that shall not be clipped, gamma, in [0, 1].
        lr: Step size of the logarithm of the bound, eta, above 0.
        count_noise: Standard deviation of the noise of the number of these updates, sigma,
            above half the noise multiplier; ``None`` for a twentieth of the cohort, or the noise
            multiplier if that is larger.

    Raises:
        ValueError: If a value is out of range.

    References:
        Andrew et al. (2021), Algorithm 1, arXiv:1905.03871.
    """

    quantile: float = 0.5
    lr: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        check.rate(quantile=self.quantile)
        check.positive(lr=self.lr)
        if self.count_noise is not None:
            check.positive(count_noise=self.count_noise)

    def split(self, noise_multiplier: float, size: float) -> tuple[float, float]:
        """Noise multiplier of the sum of the updates, and standard deviation of that of the count.

        Args:
            noise_multiplier: Noise multiplier that both together are worth.
            size: Expected number of clients in a round.

        Raises:
            ValueError: If the count alone costs as much as both may.
        """
        found = self.count_noise or max(size / 20, noise_multiplier)
        if 2 * found <= noise_multiplier:
            raise ValueError(
                f"count_noise must be above half the noise multiplier, {noise_multiplier / 2:.4g}, "
                f"got {found}"
            )
        return (noise_multiplier**-2 - (2 * found) ** -2) ** -0.5, found

    def next_bound(self, bound: float, fraction: float) -> float:
        """Bound of the next round.

        Args:
            bound: Bound of this round.
            fraction: Noisy fraction of the updates within it.
        """
        return bound * math.exp(-self.lr * (fraction - self.quantile))


@dataclass(frozen=True)
class ClientPrivacy:
    r"""Differential privacy of every client with all of its data, by Gaussian noise.

    .. math::
        \tilde\Delta = \frac{1}{m} \left( \sum_k \Delta_k \min(1, b / \|\Delta_k\|)
            + N(0, z^2 b^2 I) \right)

    m is the expected number of clients in a round, whoever answers. A client that fails counts as
    an update of zero. Under privacy

    * a method may send only ``delta``; its clients have equal weights, and sizes of clients are not
      used. Statistics of batch norm and other parts of a payload are refused;
    * metrics of local training, numbers of failures and scores of the clients are not recorded.
      The model is scored on the server's own test set, which must not come from the clients;
    * ``privacy/epsilon`` in ``metrics.csv`` is the cost of all rounds so far.

    The cohorts and the noise of a round follow from a key of 256 bits in the checkpoint. A round
    that is repeated after an interruption therefore has the same noise, but whoever has
    ``state.pt`` can subtract it: only its owner can read it, and the key is deleted after the last
    round. Clipped updates are rounded, summed and made noisy as integers
    (:class:`~fedbolic.federated.noise.gaussian_grid.GaussianGrid`), so the ledger holds for the
    numbers that are released, if an update follows from its client's data alone. With an engine
    that computes several clients together it may depend on the others by rounding, which is not
    covered; with ``Sequential`` it does not.

    Clients may be nodes that trust the server, which then send payloads alone. Others may see whom
    the server asks, so a run with samples states two numbers: ``privacy/epsilon`` as above, which
    holds for secret samples, and ``privacy/epsilon_without_sampling``.

    Args:
        dp_delta: Delta, in (0, 1) and below one over the number of clients; above a hundredth of
            that a run warns.
        epsilon: Budget of the whole run, above 0: without ``noise_multiplier``, the noise that the
            run needs for it is found; with it, the run stops before the round that would exceed
            the budget. ``None`` for no budget.
        noise_multiplier: Standard deviation of the noise over the clipping bound, z, above 0.
            ``None`` to find it from ``epsilon``.
        clip_norm: Clipping bound of an update's Euclidean norm, b, above 0; with ``adaptive``, that
            of the first round.
        adaptive: Adaptive clipping; ``None`` for a constant bound.
        placement: Party that adds the noise. The ``server`` adds it to the sum, so clients must
            trust the server. If every one of the ``clients`` adds noise of this size to its own
            update, they need not, but the noise of the sum is larger by the root of their number.
        noise: Source of the noise's key.
        correlation: ``none`` for independent noise in every round, or ``tree`` for noise of a
            binary tree over the rounds of an epoch, which starts again in the next one. The noise
            of the sum of all rounds so far, which is what the model sees, then grows with the
            logarithm of their number. With ``ServerSGD`` this is DP-FTRL, with its momentum
            DP-FTRLM. A tree requires that each client takes part once in an epoch,
            ``Cohort(sampling="once")``, and needs no secret samples. ``banded`` noise is optimal
            for the sums of all rounds among those by a Toeplitz matrix with as many bands as an
            epoch has rounds; it requires ``Cohort(sampling="cyclic")`` (DP-BandMF without samples).

    Raises:
        ValueError: If a value is out of range, neither ``epsilon`` nor ``noise_multiplier`` is
            given, or clients add noise under adaptive clipping, or (from ``ledger``) correlated
            noise does not fit the cohort.

    References:
        McMahan et al. (2018), Algorithm 1, arXiv:1710.06963; Kairouz et al. (2021), Practical and
        private (deep) learning without sampling or shuffling, Algorithm 1 with the restarts of
        App. D, arXiv:2103.00039; Choquette-Choo et al. (2023), (Amplified) banded matrix
        factorization, arXiv:2306.08153.

    Example:
        >>> from fedbolic.data import IID, Digits, Partitioned
        >>> from fedbolic.federated import Cohort, Trainer
        >>> from fedbolic.methods import FedAvg
        >>> from fedbolic.core.rng import Rng
        >>> data = Partitioned(Digits(), IID(50)).load(Rng(0))
        >>> privacy = ClientPrivacy(dp_delta=1e-3, epsilon=8.0)
        >>> trainer = Trainer(cohort=Cohort(0.2, sampling="poisson"), privacy=privacy)
        >>> *_, (state, rows) = trainer.run(FedAvg(rounds=2), data, Rng(0))
        >>> [round(row.value, 1) for row in rows if row.name == "privacy/epsilon"]
        [8.0]
    """

    dp_delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0
    adaptive: AdaptiveClipping | None = None
    placement: Literal["server", "clients"] = "server"
    noise: SystemKeys = SystemKeys()
    correlation: Correlation = "none"

    def __post_init__(self) -> None:
        check_delta(self.dp_delta)
        check.positive(clip_norm=self.clip_norm)
        for name in ("epsilon", "noise_multiplier"):
            if (value := getattr(self, name)) is not None:
                check.positive(**{name: value})
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("privacy needs epsilon, a budget, or noise_multiplier, or both")
        if self.adaptive is not None and self.placement == "clients":
            raise ValueError(
                "adaptive clipping needs a count that the server makes private: use "
                "placement='server', or no adaptive clipping"
            )
        if self.correlation != "none" and (self.adaptive or self.placement == "clients"):
            raise ValueError(
                "correlated noise has one size in all rounds, and the server adds it: use "
                "placement='server' and no adaptive clipping"
            )

    def check_deployed(self) -> None:
        """Refuse settings that are safe in a simulation but not if every client is a node.

        Raises:
            ValueError: If the noise of the clients would be drawn in the server's process.
        """
        if self.placement == "clients":
            raise ValueError(
                "noise with placement='clients' is drawn in the server's process, and nodes need "
                "not trust it: use DistributedNoise in a SecureSum, where every node draws its own "
                "and much less of it, or placement='server' if all nodes trust the server"
            )

    def ledger(
        self, cohort: Cohort, num_clients: int, rounds: int, *, kind: CohortKind = "sample"
    ) -> PrivacyLedger:
        """Ledger of a run, with the noise multiplier that was given or found.

        Args:
            cohort: Sampling of the clients.
            num_clients: Number of clients of the federation.
            rounds: Number of rounds.
            kind: Clients for which the method asks; all of them take part if it is ``all``.

        Raises:
            ValueError: If ``dp_delta`` is too large for that many clients.
        """
        if self.dp_delta * num_clients >= 1:
            raise ValueError(
                f"dp_delta must be below one over the number of clients, {1 / num_clients:.2g}, or "
                f"publishing one of them at random would count as private; got {self.dp_delta}"
            )
        once = cohort.sampling in ("once", "cyclic") and kind != "all"
        self._check_correlation(cohort, once=once)
        sampling = self._sampling(cohort, num_clients, once=once, everyone=kind == "all")
        noise = self.noise_multiplier
        if noise is None:
            noise = solve_noise(
                *sampling,
                epsilon=self.epsilon or math.inf,
                dp_delta=self.dp_delta,
                rounds=rounds,
                correlation=self.correlation,
            )
        settings = noise, self.dp_delta, rounds
        return PrivacyLedger(*sampling, *settings, correlation=self.correlation)

    def _check_correlation(self, cohort: Cohort, *, once: bool) -> None:
        """Refuse correlated noise for clients that may take part more often than it covers."""
        if self.correlation == "banded" and not (once and cohort.sampling == "cyclic"):
            raise ValueError(
                "banded noise covers clients that wait for as many rounds as an epoch has: set "
                "cohort.sampling to cyclic"
            )
        if self.correlation == "tree" and not once:
            raise ValueError(
                "noise that is correlated by a tree covers clients that take part once in an "
                "epoch, and here they may take part more often: set cohort.sampling to once"
            )

    def _sampling(
        self, cohort: Cohort, num_clients: int, *, once: bool, everyone: bool
    ) -> tuple[Participation, Neighbours, float]:
        """Participation that is counted, neighbours, and rate."""
        share = cohort.expected_size(num_clients) / num_clients
        if self.placement == "clients":  # the server sees who takes part
            return "everyone", "replace", 1.0
        if once:
            return "once", "add/remove", 1 / cohort.period(num_clients)
        if everyone or share == 1:
            return "everyone", "add/remove", 1.0
        if cohort.sampling == "poisson":
            return "poisson", "add/remove", share
        return "fixed", "replace", share
