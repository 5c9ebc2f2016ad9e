"""State of a run between two exchanges."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbolic.core.client_states import ClientStates
from fedbolic.core.types import Tree
from fedbolic.federated.rounds.update_filter import UpdateFilter


@dataclass(frozen=True, eq=False)
class TrainerState:
    """State of a run between two exchanges: everything that a checkpoint holds.

    Args:
        server_state: State of the server.
        client_states: Client states by id, in memory or on disk.
        round: Number of completed rounds.
        exchange: Number of completed exchanges in the current round.
        answered: Ids of the clients that delivered an update in the latest of these exchanges.
        counters: Counts of the current round so far, such as bytes.
        privacy: State of the run's privacy, which includes the key of its noise: whoever has it can
            subtract the noise.
        attempt: Number of failed attempts of the next exchange; it is part of all its streams.
        quarantined: Ids of the clients that are no longer asked: see
            :meth:`~fedbolic.federated.rounds.update_filter.UpdateFilter.find_outliers`.
    """

    server_state: Tree
    client_states: dict[int, Tree] | ClientStates = field(default_factory=dict)
    round: int = 0
    exchange: int = 0
    answered: tuple[int, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    privacy: Tree = field(default_factory=dict)
    attempt: int = 0
    quarantined: tuple[int, ...] = ()

    def checkpoint(self) -> dict[str, Any]:
        """The state as nested dicts and lists, ready to be saved."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {name: list(fields[name]) for name in ("answered", "quarantined")}

    @classmethod
    def restore(cls, checkpoint: dict[str, Any]) -> "TrainerState":
        """State that a checkpoint holds."""
        ids = {n: tuple(checkpoint.get(n, ())) for n in ("answered", "quarantined")}
        return cls(**{**checkpoint, **ids})

    def path(self) -> tuple[str | int, ...]:
        """Names of the random stream of the next exchange, by which attempts differ, too."""
        again = ("attempt", self.attempt) if self.attempt else ()
        return "round", self.round + 1, "exchange", self.exchange, *again

    def counted(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Counters of the round after one more exchange."""
        return {name: self.counters.get(name, 0) + count for name, count in counts.items()}

    def without_outliers(self, update_filter: UpdateFilter, *, repeatable: bool) -> "TrainerState":
        """State for another attempt at an exchange, without outliers among the clients.

        Args:
            update_filter: Filter through which all updates of the failed attempt have gone.
            repeatable: Whether the clients may be asked again.

        Raises:
            RunStoppedError: If they may not, this was the second attempt, or no other is of use.
        """
        may = repeatable and not self.attempt
        outliers = update_filter.find_outliers(round=self.round + 1, repeatable=may)
        return dataclasses.replace(
            self,
            client_states=self.client_states | update_filter.client_states,
            counters=self.counted(update_filter.counts()),
            attempt=self.attempt + 1,
            quarantined=tuple(sorted({*self.quarantined, *outliers})),
        )

    def without_secrets(self) -> "TrainerState":
        """The state after the last round, without the keys of noise and of secure sums."""
        kept = {i: _without_keys(own) for i, own in self.client_states.items()}
        states = self.client_states | kept
        return dataclasses.replace(self, client_states=states, privacy=_without_keys(self.privacy))


def _without_keys(x: Tree) -> Tree:
    """A tree without entries named as keys are, at any depth, and without the noise of a tree."""
    kept = {name: value for name, value in x.items() if name not in ("key", "secure", "nodes")}
    return {n: _without_keys(v) if isinstance(v, dict) else v for n, v in kept.items()}
