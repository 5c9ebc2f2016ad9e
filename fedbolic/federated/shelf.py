"""What a client keeps on its own disk between the exchanges of a run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedbolic.types import Tree


@dataclass(frozen=True)
class Shelf:
    """A client's memory, with the answer that it gave when it became so, in one file.

    A memory is named by the question whose answer made it; the memory of before the first answer
    is empty and named ``""``. The server says in every question with which memory it goes on, so
    that one whose answer was lost or refused goes on from where the server thinks it is; and who
    is asked the same again gives the same answer, without doing the work twice.

    Args:
        file: Where; its folder is made when something is kept.
    """

    file: Path

    def memory(self, name: str) -> Tree:
        """The memory of this name.

        Raises:
            ValueError: If it is not here.
        """
        if not name:
            return {}
        kept = self._load()["answers"]
        if name not in kept:
            raise ValueError(
                f"the memory that the server goes on with is not in {self.file}: it was removed, "
                "or the run went back by more than one exchange"
            )
        return kept[name]["memory"]

    def last(self) -> Tree:
        """The memory that the last answer left."""
        return self.memory(self._load()["last"])

    def answer(self, name: str) -> Tree | None:
        """The answer that was given to the question of this name; none if there was none."""
        found = self._load()["answers"].get(name)
        return None if found is None else found["answer"]

    def keep(self, name: str, answer: Tree, memory: Tree, *, beside: str) -> None:
        """Keep an answer and the memory it left; what is older than ``beside`` is dropped.

        A kill leaves what was there before, or all of the new.

        Args:
            name: Of the question.
            answer: As it will be sent.
            memory: What is kept from it.
            beside: The name of the memory that must not be lost yet; ``""`` if there is none.
        """
        kept = self._load()["answers"]
        kept = {old: kept[old] for old in (beside,) if old in kept}
        kept[name] = {"answer": answer, "memory": memory}
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:  # it may hold secrets: nobody else reads it
            torch.save({"last": name, "answers": kept}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.file)

    def _load(self) -> dict[str, Any]:
        if not self.file.exists():
            return {"last": "", "answers": {}}
        return torch.load(self.file, map_location="cpu", weights_only=True)
