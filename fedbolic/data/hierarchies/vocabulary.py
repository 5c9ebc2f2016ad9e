"""Numbers of nodes on which several holders agree, by their names or by keyed hashes of them."""

import functools
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbolic.core.reading import read_text
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import read_hierarchy
from fedbolic.data.hierarchies.named_pairs import PairColumns

ENDING = ".names"
"""Ending of the files of a :class:`Vocabulary`."""

SHORTEST_KEY = 16
"""Minimum number of bytes of a key."""

KEY_SIZE = 2**12
"""Maximum size of a key's file in bytes."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Entries of all nodes, which are numbered in ascending order.

    Args:
        entries: Names, or keyed hashes of them; different and ascending.
        hashed: Whether the entries are keyed hashes.

    Example:
        >>> animals = Vocabulary.of(["mammal", "cat"])
        >>> animals.numbers(["cat", "mammal", "cat"])
        [0, 1, 0]
    """

    entries: tuple[str, ...]
    hashed: bool = False

    @classmethod
    def of(cls, names: Iterable[str], key: bytes | None = None) -> "Vocabulary":
        """The vocabulary of some names.

        Args:
            names: Names, which may be repeated.
            key: Key of the hashes; ``None`` for the names themselves.
        """
        return cls(tuple(sorted({_entry(name, key) for name in names})), key is not None)

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read a file of :meth:`write`.

        Raises:
            OSError: If the file is missing.
            ValueError: If it is no such file.
        """
        try:
            found = json.loads(read_text(path))
            entries, hashed = tuple(found["names"]), found["hashed"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is no file of names: write it with agree_names") from error
        texts = all(isinstance(entry, str) for entry in entries)
        if not (texts and isinstance(hashed, bool) and list(entries) == sorted(set(entries))):
            raise ValueError(f"{path} is damaged: its names must be different and ascending")
        return cls(entries, hashed)

    def write(self, path: Path) -> None:
        """Write a file in JSON that :meth:`read` reads."""
        path.write_text(json.dumps({"hashed": self.hashed, "names": self.entries}, indent=0))

    def named(
        self, known: Sequence[str], key: bytes | None = None
    ) -> tuple[tuple[str, ...], dict[str, int]]:
        """All entries, in which known names replace their hashes, and the numbers of these names.

        Args:
            known: Names that are known here.
            key: Key of the hashes; ``None`` for the names themselves.

        Raises:
            ValueError: As for :meth:`numbers`.
        """
        names, numbers = list(self.entries), self.numbers(known, key)
        for name, number in zip(known, numbers, strict=True):
            names[number] = name
        return tuple(names), dict(zip(known, numbers, strict=True))

    def numbers(self, names: Sequence[str], key: bytes | None = None) -> list[int]:
        """The number of every name.

        Args:
            names: Names.
            key: Key of the hashes; ``None`` for the names themselves.

        Raises:
            ValueError: If a key is given for names, or none for hashes; if names are unknown.
        """
        if names and self.hashed != (key is not None):
            raise ValueError(
                "the agreed names are hashed: give the key of the holders"
                if self.hashed
                else "the agreed names are not hashed: leave the key out"
            )
        number = {entry: i for i, entry in enumerate(self.entries)}
        found = [number.get(_entry(name, key), -1) for name in names]
        if unknown := [name for name, i in zip(names, found, strict=True) if i < 0]:
            raise ValueError(
                f"{len(unknown)} names are not among the agreed ones, the first {unknown[0]!r:.80}"
                "; agree on the names again"
            )
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of the entries: those who number by it number alike."""
        return digest_of(self.entries)


def digest_of(entries: Sequence[str]) -> str:
    """SHA-256 of names in their order, in hexadecimal.

    Args:
        entries: The names.
    """
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def agree_names(
    paths: Sequence[Path],
    to: Path,
    *,
    key: Path | None = None,
    columns: PairColumns = (0, 1),
    header: bool | None = None,
) -> Vocabulary:
    """Write the file of all names in some files: one of each holder, then one of all holders.

    A holder writes the names in its hierarchy, and somebody, such as the server, unites the files
    of all holders. With a ``key`` that only the holders have, the files hold HMAC-SHA-256 of the
    names, shortened to 128 bits: whoever lacks the key sees how many names a holder has, and how
    many of them others have as well. Whoever has the key can test whether a guessed name is in a
    file.

    Args:
        paths: Hierarchies as for :func:`~fedbolic.data.read_hierarchy`, or files that this function
            wrote, which end in ``.names``; at least one.
        to: File to write, which ends in ``.names``.
        key: File of the key, at least 32 hexadecimal digits; ``None`` for the names themselves, or
            to unite files.
        columns: As for :func:`~fedbolic.data.read_hierarchy`.
        header: As for :func:`~fedbolic.data.read_hierarchy`.

    Raises:
        OSError: If a file is missing.
        ValueError: If a file is damaged, or some have hashed names and others do not.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as name:
        ...     folder = Path(name)
        ...     for shop, line in (("a", "MacBook,laptops"), ("b", "ThinkPad,laptops")):
        ...         _ = (folder / f"{shop}.csv").write_text(line)
        ...         _ = agree_names([folder / f"{shop}.csv"], folder / f"{shop}.names")
        ...     files = [folder / "a.names", folder / "b.names"]
        ...     print(agree_names(files, folder / "all.names").entries)
        ('MacBook', 'ThinkPad', 'laptops')
    """
    if not paths or to.suffix != ENDING:
        raise ValueError(
            f"give at least one file to read, and one that ends in {ENDING} to write, got "
            f"{len(paths)} and {to}"
        )
    secret = None if key is None else read_key(key)
    read = functools.partial(read_hierarchy, columns=columns, header=header)
    whole = _united([_names_in(path, read, secret) for path in paths], paths)
    whole.write(to)
    return whole


def _names_in(path: Path, read: Callable[[Path], Hierarchy], secret: bytes | None) -> Vocabulary:
    if path.suffix == ENDING:
        return Vocabulary.read(path)
    return Vocabulary.of(read(path).names, secret)


def _united(found: Sequence[Vocabulary], paths: Sequence[Path]) -> Vocabulary:
    """The names of all files; hashed ones and others do not mix."""
    for path, one in zip(paths, found, strict=True):
        if one.hashed != found[0].hashed:
            raise ValueError(
                f"the names of {path} are {'' if one.hashed else 'not '}hashed, unlike those of "
                f"{paths[0]}: hash all of them with one key, or none"
            )
    entries = sorted({entry for one in found for entry in one.entries})
    return Vocabulary(tuple(entries), found[0].hashed)


def read_key(path: Path) -> bytes:
    """Read the key that the holders share, written as hexadecimal digits.

    Args:
        path: A file that ``openssl rand -hex 32`` can write.

    Raises:
        OSError: If the file is missing.
        ValueError: If it holds anything else, or fewer than 32 digits.
    """
    text = read_text(path, KEY_SIZE).strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < SHORTEST_KEY:
        raise ValueError(
            f"{path} must hold at least {2 * SHORTEST_KEY} hexadecimal digits: write it with "
            "openssl rand -hex 32"
        )
    return key


def _entry(name: str, key: bytes | None) -> str:
    return name if key is None else hmac.digest(key, name.encode(), "sha256")[:16].hex()
