"""A second attempt of an exchange, without the clients whose updates spoilt the first.

No bound on single updates excludes that the server's state becomes infinite. Then the exchange is
attempted once more, without the clients whose updates were suspiciously long: they are not asked
again in this run. Nothing is rewound: clients keep what they kept, the costs of both attempts are
counted, and the attempt's number is part of every random stream, since two results with the same
noise would differ by that noise no more.
"""

from fedbolic.core.log import logger
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.rounds.update_filter import UpdateFilter


def find_outliers(update_filter: UpdateFilter, *, round: int, repeatable: bool) -> list[int]:
    """Ids of the clients without whom an exchange is attempted again, with a warning.

    Args:
        update_filter: Filter through which all updates of the failed attempt have gone.
        round: Number of the round, from 1.
        repeatable: Whether clients may be asked again.

    Raises:
        RunStoppedError: If they may not, or no client or every client is an outlier.
    """
    outliers = update_filter.outliers() if repeatable else []
    if not outliers or len(outliers) == len(update_filter.client_states):
        raise RunStoppedError(
            f"round {round}: the server's state would hold NaN or infinite values although every "
            "update was finite: use a smaller step size"
        )
    logger.warning(
        "round %d is repeated without clients %s, which are not asked again: with their updates, "
        "the server's state would hold NaN or infinite values",
        round,
        outliers,
    )
    return outliers
