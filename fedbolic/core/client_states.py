"""Client state on disk, in an append-only log from which single clients are read.

With one file per client, every exchange would need a sync per client, and a million clients would
need a million files. A database would add a second commit next to the checkpoint's, and has no
checksums. Appending records costs one sync for a whole cohort, and the records are committed by the
checkpoint that counts their bytes, in the same way as lines of metrics.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from typing_extensions import override

from fedbolic.core.checksums import DamagedError, open_as_folder
from fedbolic.core.tree_bytes import tree_from_bytes, tree_to_bytes
from fedbolic.core.types import Tree

RECORD_HEAD = struct.Struct("<IqQ")
"""Header of a record: CRC-32 of the rest of the record, client id, length of the state in bytes."""

WASTE = 2
"""Maximum size of a log relative to the newest states; a larger log is rewritten without outdated
records. Every byte is thus copied about once more on average, and while a log is rewritten, both
copies together take at most three times the size of the states."""

LARGEST_ID = 2**26
"""Largest id of a client in a log that is read: a table of places has an entry for every id."""

SLACK = 2**20
"""Bytes that a log may have in addition, so that small logs are not rewritten."""


class ClientStateLog(Mapping[int, Tree]):
    """Client state by id, stored in one append-only file.

    A record is a header (see :data:`RECORD_HEAD`) and a state; the last record of a client is
    valid. Records that the checkpoint does not include are cut off when the store is opened, and
    the checksum of every record is verified when it is read.

    Args:
        folder: Folder of the file.
        generation: Number of the file, increased whenever the log is rewritten.

    Example:
        >>> import tempfile, torch
        >>> store = ClientStateLog(Path(tempfile.mkdtemp()))
        >>> store.append({7: {"turns": 1, "own": torch.ones(2)}, 3: {"turns": 2}})
        >>> store.append({7: {"turns": 5}})
        >>> list(store), store[7], store.file.name
        ([3, 7], {'turns': 5}, 'clients-0.log')
    """

    def __init__(self, folder: Path, generation: int = 0) -> None:
        self.folder, self.generation = folder, generation
        self.size = self.checksum = self.appended = 0
        self._places = _Places()

    @classmethod
    def open(cls, folder: Path, commit: Mapping[str, int]) -> "ClientStateLog":
        """Restore the store to a commit and remove files of other generations.

        Args:
            folder: Folder of the file.
            commit: Value of :attr:`commit` in the checkpoint.

        Raises:
            DamagedError: If the file is shorter than at the commit, or was altered.
        """
        store = cls.read(folder, commit)
        if commit["size"]:
            os.truncate(store.file, commit["size"])
        store.tidy()
        return store

    @classmethod
    def read(cls, folder: Path, commit: Mapping[str, int]) -> "ClientStateLog":
        """Read the store at a commit, without changes to any file.

        Args:
            folder: Folder of the file.
            commit: Value of :attr:`commit` in the checkpoint.

        Raises:
            DamagedError: If the file is shorter than at the commit, or was altered.
        """
        store = cls(folder, commit["generation"])
        if commit["size"]:
            store._read_heads(commit["size"])
        if store.checksum != commit["checksum"]:
            raise DamagedError(store.file)
        return store

    @property
    def file(self) -> Path:
        """The log of this generation."""
        return self.folder / f"clients-{self.generation}.log"

    @property
    def commit(self) -> dict[str, int]:
        """Reference to the current content of the store, to be saved in a checkpoint."""
        return {"generation": self.generation, "size": self.size, "checksum": self.checksum}

    @override
    def __getitem__(self, client_id: int) -> Tree:
        place = self._places.get(client_id)
        if place is None:
            raise KeyError(client_id)
        with self.file.open("rb") as file:
            record = _read_record(file, *place)
        if record is None or _client_of(record) != client_id:
            raise DamagedError(self.file)
        try:
            return tree_from_bytes(record[RECORD_HEAD.size :])
        except ValueError as error:
            raise DamagedError(self.file, f"is damaged: {error}") from error

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._places.ids())

    @override
    def __len__(self) -> int:
        return len(self._places.ids())

    @override
    def __contains__(self, client_id: object) -> bool:
        return isinstance(client_id, int) and self._places.get(client_id) is not None

    def append(self, changed: Mapping[int, Tree], *, anew: bool = False) -> None:
        """Append new states, which become permanent with the next checkpoint.

        Args:
            changed: New states by client id. An empty state is skipped if the client has no record.
            anew: Whether to write a new log, so that no outdated record remains.

        Raises:
            ValueError: If a state holds anything but tensors, numbers and strings.
        """
        self.appended += 1
        records = {
            i: _record(i, client_state)
            for i, client_state in changed.items()
            if client_state or i in self
        }
        if not records:
            return
        added = sum(map(len, records.values()))
        kept = self._places.num_bytes - self._places.bytes_of(records)
        if self.size and (anew or self.size + added > WASTE * (kept + added) + SLACK):
            self._begin_anew(records)
        else:
            with open_as_folder(self.file, "r+b" if self.size else "wb") as file:
                file.seek(self.size)
                self._write(file, records)

    def tidy(self) -> None:
        """Remove logs of other generations; call after a checkpoint refers to this generation."""
        others = self.folder.glob("clients-*.log")
        if stale := [file for file in others if file != self.file or not self.size]:
            _sync(self.folder)  # else a power loss might undo the checkpoint but not the removal
        for file in stale:
            file.unlink()

    def _begin_anew(self, records: Mapping[int, bytes]) -> None:
        """Write a log of the next generation with all current records and the new ``records``.

        The old log stays until :meth:`tidy`, because the last checkpoint refers to it.
        """
        old, places = self.file, self._places
        self.generation += 1
        self.size, self.checksum, self._places = 0, 0, _Places()
        with open_as_folder(self.file, "wb") as file, old.open("rb") as source:
            for client_id in places.ids():
                if client_id in records:
                    continue
                start, length = places.at(client_id)
                record = _read_record(source, start, length)
                if record is None:
                    raise DamagedError(old)
                self._add(client_id, record)
                file.write(record)
            self._write(file, records)

    def _write(self, file: BinaryIO, records: Mapping[int, bytes]) -> None:
        for client_id, record in records.items():
            self._add(client_id, record)
            file.write(record)
        file.flush()
        os.fsync(file.fileno())

    def _add(self, client_id: int, record: bytes) -> None:
        self._places.put(client_id, self.size, len(record))
        self.size += len(record)
        self.checksum = zlib.crc32(record, self.checksum)

    def _read_heads(self, size: int) -> None:
        """Index the records in the first ``size`` bytes and verify their checksums."""
        if not self.file.exists() or self.file.stat().st_size < size:
            raise DamagedError.of_size(self.file, size)
        with self.file.open("rb", buffering=2**20) as file:
            while self.size < size:
                head = file.read(RECORD_HEAD.size)
                length = RECORD_HEAD.unpack(head)[2] if len(head) == RECORD_HEAD.size else size
                whole = self.size + RECORD_HEAD.size + length <= size
                record = head + file.read(length) if whole else b""
                if not _is_whole(record) or not 0 <= (i := _client_of(record)) <= LARGEST_ID:
                    raise DamagedError(self.file)
                self._add(i, record)


class ClientStates(Mapping[int, Tree]):
    """Client state by id at one point of a run: changed states in RAM, all others in a store.

    Saving appends the changed states to the store and releases them.

    Args:
        store: Store of the unchanged states.
        changed: States newer than those in the store, by client id.
    """

    def __init__(self, store: ClientStateLog, changed: Mapping[int, Tree] | None = None) -> None:
        self.store, self.changed = store, dict(changed or {})
        self._appended = store.appended

    def __or__(self, changed: Mapping[int, Tree]) -> "ClientStates":
        self._refuse_old()
        return ClientStates(self.store, {**self.changed, **changed})

    @override
    def __getitem__(self, client_id: int) -> Tree:
        self._refuse_old()
        if client_id in self.changed:
            return self.changed[client_id]
        return self.store[client_id]

    @override
    def __iter__(self) -> Iterator[int]:
        self._refuse_old()
        return iter(sorted(self.changed.keys() | set(self.store)))

    @override
    def __len__(self) -> int:
        self._refuse_old()
        return len(self.store) + sum(client_id not in self.store for client_id in self.changed)

    @override
    def __contains__(self, client_id: object) -> bool:
        self._refuse_old()
        return client_id in self.changed or client_id in self.store

    def save(self, *, anew: bool = False) -> None:
        """Append the changed states to the store.

        Args:
            anew: Whether to rewrite the store, so that no outdated state remains in it.
        """
        self._refuse_old()
        self.store.append(self.changed, anew=anew)
        self.changed, self._appended = {}, self.store.appended

    def _refuse_old(self) -> None:
        if self._appended != self.store.appended:
            raise RuntimeError(
                "these client states are of an earlier exchange and were overwritten since: use "
                "those of the latest trainer state"
            )


class _Places:
    """Positions of every client's last record, in an array because there may be millions."""

    def __init__(self) -> None:
        self.table = np.zeros((0, 2), dtype=np.int64)
        self.num_bytes = 0

    def get(self, client_id: int) -> tuple[int, int] | None:
        """Offset and length of a client's record; ``None`` if it has no record."""
        if not 0 <= client_id < len(self.table) or not self.table[client_id, 1]:
            return None
        return self.at(client_id)

    def at(self, client_id: int) -> tuple[int, int]:
        """Offset and length of the record of a client that has one."""
        start, length = self.table[client_id].tolist()
        return start, length

    def put(self, client_id: int, start: int, length: int) -> None:
        """Set the position of a client's last record."""
        if client_id >= len(self.table):
            more = np.zeros((max(client_id + 1, 2 * len(self.table)), 2), dtype=np.int64)
            more[: len(self.table)] = self.table
            self.table = more
        self.num_bytes += length - int(self.table[client_id, 1])
        self.table[client_id] = start, length

    def ids(self) -> list[int]:
        """Ids of the clients that have a record, ascending."""
        return np.flatnonzero(self.table[:, 1]).tolist()

    def bytes_of(self, client_ids: Mapping[int, Any]) -> int:
        """Total length of the last records of some clients, in bytes."""
        return sum(place[1] for i in client_ids if (place := self.get(i)))


def _record(client_id: int, client_state: Tree) -> bytes:
    body = tree_to_bytes(client_state)
    rest = RECORD_HEAD.pack(0, client_id, len(body))[4:] + body
    return struct.pack("<I", zlib.crc32(rest)) + rest


def _client_of(record: bytes) -> int:
    return RECORD_HEAD.unpack_from(record)[1]


def _is_whole(record: bytes) -> bool:
    return len(record) >= RECORD_HEAD.size and RECORD_HEAD.unpack_from(record)[0] == zlib.crc32(
        record[4:]
    )


def _read_record(file: BinaryIO, start: int, length: int) -> bytes | None:
    """The record at an offset; ``None`` if its checksum is wrong."""
    file.seek(start)
    record = file.read(length)
    return record if _is_whole(record) else None


def _sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that they survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
