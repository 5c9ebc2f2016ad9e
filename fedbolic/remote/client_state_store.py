"""Client state on the client's own disk, between the exchanges of a run."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedbolic.core.torch_files import load_torch
from fedbolic.core.types import Tree


@dataclass(frozen=True)
class ClientStateStore:
    """Stores client states in one file, each with the reply of the exchange that produced it.

    A client state is named after the request that led to it, or after the line of a transcript
    about that request; the initial state is empty and named ``""``. Every request names the state
    from which the server continues, so a client whose last reply was lost or refused returns to the
    earlier state. A repeated request gets the stored reply, and its work is not done twice.

    Args:
        file: File of the states; its folder is created with the first state.
        secret: Number that :meth:`seed` returns; ``None`` for a random one.
    """

    file: Path
    secret: int | None = None

    def client_state(self, name: str) -> Tree:
        """The client state of this name.

        Raises:
            ValueError: If the file holds no state of this name.
        """
        if not name:
            return {}
        kept = self._load()["replies"]
        if name not in kept:
            raise ValueError(
                f"the client state that the server names is not in {self.file}: it was removed, "
                "or the run was rolled back by more than one exchange"
            )
        return kept[name]["client_state"]

    def last(self) -> Tree:
        """The client state after the last reply."""
        return self.client_state(self.last_name())

    def last_name(self) -> str:
        """Name of the client state after the last reply; ``""`` before the first one."""
        return self._load()["last"]

    def reply(self, request: str) -> Tree | None:
        """The stored reply to the request of this digest; ``None`` if there is none."""
        for name, kept in self._load()["replies"].items():
            if kept.get("request", name) == request:
                return kept["reply"]
        return None

    def keep(
        self, name: str, reply: Tree, client_state: Tree, *, earlier: str, request: str = ""
    ) -> None:
        """Store a reply and its client state, and delete all other states except ``earlier``.

        Args:
            name: Name of the client state.
            reply: Reply as it will be sent.
            client_state: Client state after the reply.
            earlier: Name of the earlier state to keep as well; ``""`` to keep no other state.
            request: Digest of the request; ``""`` if that is the name.

        Raises:
            ValueError: If the reply or state could not be loaded again; the file is unchanged then.
        """
        found = self._load()
        kept = {old: found["replies"][old] for old in (earlier,) if old in found["replies"]}
        kept[name] = {"request": request or name, "reply": reply, "client_state": client_state}
        self._save({**found, "last": name, "replies": kept})

    def scoring(self, round: int) -> Tree | None:
        """Name of the request and reply of a round's scoring; ``None`` if there was none.

        Args:
            round: Number of the round.
        """
        return self._load()["scorings"].get(str(round))

    def keep_scoring(self, round: int, name: str, reply: Tree) -> None:
        """Store the reply to a round's scoring.

        Args:
            round: Number of the round.
            name: Name of the request.
            reply: Reply as it will be sent.
        """
        found = self._load()
        scorings = {**found["scorings"], str(round): {"name": name, "reply": reply}}
        self._save({**found, "scorings": scorings})

    def first(self, text: str) -> str:
        """The text of the first call of this method, which is stored.

        Args:
            text: Text of this call.
        """
        found = self._load()
        if not found["first"]:
            self._save({**found, "first": text})
        return found["first"] or text

    def seed(self) -> int:
        """Secret seed of the node's random streams in this run, drawn in the first call.

        It is 256 bits from the operating system, and stored.
        """
        if self.secret is not None:
            return self.secret
        found = self._load()
        if not found["seed"]:
            found = {**found, "seed": secrets.randbits(256)}
            self._save(found)
        return found["seed"]

    def _save(self, content: Tree) -> None:
        """Replace the file atomically: after a kill it holds the old content or the new one.

        Raises:
            ValueError: If the content could not be loaded again; the file is unchanged then.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:  # readable by its owner only: it may hold secrets
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            _read(draft)
        except Exception as error:
            draft.unlink()
            raise ValueError("the client state cannot be loaded again: it is not saved") from error
        draft.replace(self.file)

    def _load(self) -> dict[str, Any]:
        nothing = {"last": "", "replies": {}, "first": "", "seed": 0, "scorings": {}}
        return {**nothing, **_read(self.file)} if self.file.exists() else nothing


def _read(file: Path) -> dict[str, Any]:
    try:
        found = load_torch(file, device="cpu")
    except ValueError as error:
        raise ValueError(f"{file} holds {error}: restore a copy of it") from error
    kinds = {"last": str, "first": str, "replies": dict, "scorings": dict}
    if not isinstance(found, dict) or any(
        not isinstance(found.get(name, kind()), kind) for name, kind in kinds.items()
    ):
        raise ValueError(f"{file} holds no client states: restore a copy of them")
    return found
