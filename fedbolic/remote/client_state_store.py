"""Client state on the client's own disk, between the exchanges of a run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedbolic.types import Tree


@dataclass(frozen=True)
class ClientStateStore:
    """A client's memory, with the answer that it gave when it became so, in one file.

    A memory is named by the question whose answer made it; the memory of before the first answer
    is empty and named ``""``. The server says in every question with which memory it goes on, so
    that one whose answer was lost or refused goes on from where the server thinks it is; and who
    is asked the same again gives the same answer, without doing the work twice.

    Args:
        file: Where; its folder is made when something is kept.
    """

    file: Path

    def client_state(self, name: str) -> Tree:
        """The memory of this name.

        Raises:
            ValueError: If it is not here.
        """
        if not name:
            return {}
        kept = self._load()["replies"]
        if name not in kept:
            raise ValueError(
                f"the memory that the server goes on with is not in {self.file}: it was removed, "
                "or the run went back by more than one exchange"
            )
        return kept[name]["client_state"]

    def last(self) -> Tree:
        """The memory that the last answer left."""
        return self.client_state(self._load()["last"])

    def reply(self, name: str) -> Tree | None:
        """The answer that was given to the question of this name; ``None`` if there was none."""
        found = self._load()["replies"].get(name)
        return None if found is None else found["reply"]

    def keep(self, name: str, reply: Tree, client_state: Tree, *, beside: str) -> None:
        """Keep an answer and the memory it left; what is older than ``beside`` is dropped.

        Args:
            name: Of the question.
            reply: As it will be sent.
            client_state: What is kept from it.
            beside: The name of the memory that must not be lost yet; ``""`` if there is none.

        Raises:
            ValueError: If they could not be loaded again; nothing is kept then.
        """
        found = self._load()
        kept = {old: found["replies"][old] for old in (beside,) if old in found["replies"]}
        kept[name] = {"reply": reply, "client_state": client_state}
        self._save({**found, "last": name, "replies": kept})

    def first(self, told: str) -> str:
        """The first text that was told here, which is kept from then on.

        Args:
            told: What is told now.
        """
        found = self._load()
        if not found["first"]:
            self._save({**found, "first": told})
        return found["first"] or told

    def _save(self, content: Tree) -> None:
        """Replace the file; a kill leaves what was there before, or all of the new.

        Raises:
            ValueError: If the content could not be loaded again; the file is as before then.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:  # it may hold secrets: nobody else reads it
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            _read(draft)
        except Exception as error:
            draft.unlink()
            raise ValueError("the memory cannot be loaded again, so it is not kept") from error
        draft.replace(self.file)

    def _load(self) -> dict[str, Any]:
        nothing = {"last": "", "replies": {}, "first": ""}
        return {**nothing, **_read(self.file)} if self.file.exists() else nothing


def _read(file: Path) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", weights_only=True)
