"""Client state on disk: a log of what changed, from which one client's is read at a time.

One file per client would cost an exchange a sync per client, and a million clients a million
files; a database would bring a second place of commit beside the checkpoint, and no checksums. An
appended record costs one sync for a whole cohort, and is committed by the checkpoint that counts
its bytes, as lines of metrics are.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from typing_extensions import override

from fedbolic.checksums import DamagedError
from fedbolic.tree_bytes import tree_from_bytes, tree_to_bytes
from fedbolic.types import Tree

RECORD_HEAD = struct.Struct("<IqQ")
"""Before every state: the CRC-32 of all that follows, the client's id, the bytes of the state."""

WASTE = 2
"""Times the bytes of the newest states that a log may have: then it is written anew without the
others. So every byte is copied once more on average, and a log takes three times the states' size
at most, while it is being copied."""

SLACK = 2**20
"""Bytes that a log may have in any case."""


class ClientStateLog(Mapping[int, Tree]):
    """Client state by id, in one append-only file of a folder.

    A record is a head, as :data:`RECORD_HEAD` says, and a state; the last record of a client
    counts. What a checkpoint does not know of is cut off when the store is opened, and every record
    is checked when it is read.

    Args:
        folder: Where the file is.
        generation: Which file: its number grows when the log is written anew.

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
        """The store as it was when ``commit`` was taken; files of other generations are removed.

        Args:
            folder: Where the file is.
            commit: What :attr:`commit` was.

        Raises:
            DamagedError: If the file is shorter than it was, or has been altered.
        """
        store = cls(folder, commit["generation"])
        if commit["size"]:
            store._read_heads(commit["size"])
        if store.checksum != commit["checksum"]:
            raise DamagedError(store.file)
        if commit["size"]:
            os.truncate(store.file, commit["size"])
        store.tidy()
        return store

    @property
    def file(self) -> Path:
        """The log of this generation."""
        return self.folder / f"clients-{self.generation}.log"

    @property
    def commit(self) -> dict[str, int]:
        """By what a checkpoint names the store as it is now."""
        return {"generation": self.generation, "size": self.size, "checksum": self.checksum}

    @override
    def __getitem__(self, client_id: int) -> Tree:
        place = self._places.get(client_id)
        if place is None:
            raise KeyError(client_id)
        with self.file.open("rb") as file:
            record = _read_record(file, *place)
        if record is None or RECORD_HEAD.unpack_from(record)[1] != client_id:
            raise DamagedError(self.file)
        return tree_from_bytes(record[RECORD_HEAD.size :])

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._places.ids())

    @override
    def __len__(self) -> int:
        return len(self._places.ids())

    @override
    def __contains__(self, client_id: object) -> bool:
        return isinstance(client_id, int) and self._places.get(client_id) is not None

    def append(self, changed: Mapping[int, Tree]) -> None:
        """Write new states; they count from the next commit on.

        Args:
            changed: By client id. Empty ones of clients that have none are not written.

        Raises:
            ValueError: If a state holds something else than tensors, numbers and strings.
        """
        self.appended += 1
        records = {
            i: _record(i, server_state)
            for i, server_state in changed.items()
            if server_state or i in self
        }
        if not records:
            return
        added = sum(map(len, records.values()))
        kept = self._places.num_bytes - self._places.bytes_of(records)
        if self.size + added > WASTE * (kept + added) + SLACK:
            self._begin_anew(records)
        else:
            with self.file.open("r+b" if self.size else "wb") as file:
                file.seek(self.size)
                self._write(file, records)

    def tidy(self) -> None:
        """Remove the logs of other generations; to be called when a checkpoint has this one's."""
        others = self.folder.glob("clients-*.log")
        if stale := [file for file in others if file != self.file or not self.size]:
            _sync(self.folder)  # or a loss of power might undo the checkpoint, and not this
        for file in stale:
            file.unlink()

    def _begin_anew(self, records: Mapping[int, bytes]) -> None:
        """Copy what is not replaced by ``records`` to a log of the next generation, and add them.

        The log of before stays until :meth:`tidy`: the last checkpoint is about it.
        """
        old, places = self.file, self._places
        self.generation += 1
        self.size, self.checksum, self._places = 0, 0, _Places()
        with self.file.open("wb") as file, old.open("rb") as source:
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
        """Find every client's last record among the first ``size`` bytes, and check them all."""
        if not self.file.exists() or self.file.stat().st_size < size:
            raise DamagedError.of_size(self.file, size)
        with self.file.open("rb", buffering=2**20) as file:
            while self.size < size:
                head = file.read(RECORD_HEAD.size)
                length = RECORD_HEAD.unpack(head)[2] if len(head) == RECORD_HEAD.size else size
                whole = self.size + RECORD_HEAD.size + length <= size
                record = head + file.read(length) if whole else b""
                if not _is_whole(record):
                    raise DamagedError(self.file)
                self._add(RECORD_HEAD.unpack_from(record)[1], record)


class ClientStates(Mapping[int, Tree]):
    """Client state by id at one point of a run: what has changed in memory, the rest in a store.

    Whoever saves it writes what has changed to the store and holds it no longer.

    Args:
        store: Where the rest is.
        changed: What is newer than the store, by id.
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

    def save(self) -> None:
        """Write what has changed to the store."""
        self._refuse_old()
        self.store.append(self.changed)
        self.changed, self._appended = {}, self.store.appended

    def _refuse_old(self) -> None:
        if self._appended != self.store.appended:
            raise RuntimeError(
                "these client states are of an earlier exchange, and others were saved over them: "
                "use those of the last position"
            )


class _Places:
    """Positions of the last record of every client: two numbers a client, not objects."""

    def __init__(self) -> None:
        self.table = np.zeros((0, 2), dtype=np.int64)
        self.num_bytes = 0

    def get(self, client_id: int) -> tuple[int, int] | None:
        """The first byte and the length; ``None`` if there is no such record."""
        if not 0 <= client_id < len(self.table) or not self.table[client_id, 1]:
            return None
        return self.at(client_id)

    def at(self, client_id: int) -> tuple[int, int]:
        """The first byte and the length of a record that is there."""
        start, length = self.table[client_id].tolist()
        return start, length

    def put(self, client_id: int, start: int, length: int) -> None:
        """Note the last record of a client."""
        if client_id >= len(self.table):
            more = np.zeros((max(client_id + 1, 2 * len(self.table)), 2), dtype=np.int64)
            more[: len(self.table)] = self.table
            self.table = more
        self.num_bytes += length - int(self.table[client_id, 1])
        self.table[client_id] = start, length

    def ids(self) -> list[int]:
        """Ids of clients with a record, ascending."""
        return np.flatnonzero(self.table[:, 1]).tolist()

    def bytes_of(self, client_ids: Mapping[int, Any]) -> int:
        """The bytes of the last records of some clients."""
        return sum(place[1] for i in client_ids if (place := self.get(i)))


def _record(client_id: int, server_state: Tree) -> bytes:
    body = tree_to_bytes(server_state)
    rest = RECORD_HEAD.pack(0, client_id, len(body))[4:] + body
    return struct.pack("<I", zlib.crc32(rest)) + rest


def _is_whole(record: bytes) -> bool:
    return len(record) >= RECORD_HEAD.size and RECORD_HEAD.unpack_from(record)[0] == zlib.crc32(
        record[4:]
    )


def _read_record(file: BinaryIO, start: int, length: int) -> bytes | None:
    """The record there; ``None`` if it is not what was written."""
    file.seek(start)
    record = file.read(length)
    return record if _is_whole(record) else None


def _sync(folder: Path) -> None:
    """See to it that the names in a folder outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
