"""Limits and transcript of a site: what its node answers, how often, at which cost."""

import hashlib
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbolic.core.imports import extra
from fedbolic.core.tree_bytes import tree_digest
from fedbolic.core.types import Tree
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.remote.accounts import append_line

with extra("run", "fedbolic.remote"):
    from filelock import FileLock

REQUEST_KINDS = ("handshake", "train", "fine_tuning", "ridge_head", "scores")
"""Kinds of requests."""


class SiteLimitError(ValueError):
    """Refusal by a site's limits, whose text is sent, since it says nothing about data."""


@dataclass(frozen=True)
class Site:
    """Folder of a site, with its limits, its keys and the signed transcript of its node.

    ``limits.json`` is the owner's and may be missing: the largest number of different requests of
    every kind, over all runs, ``{"train": 30, "scores": 0}``; kinds that it does not name are
    refused, except for handshakes. ``0.key`` signs; whoever checks gets ``0.pub`` from the owner,
    not from the server. A line of ``transcript`` holds an entry, the hash of the line before and a
    signature (Ed25519). It is on the disk before a request is answered, and another one before the
    reply is sent, so what an interruption hides is an answer that nobody got. The hash of a line
    about an update names the client state after it, which the server keeps: nobody can leave out
    that line or one before it, or write them anew. A line also names the client state that the
    node has, so a transcript that was begun anew during a run shows. Later lines may be cut off.

    Args:
        folder: The folder.

    Raises:
        ValueError: If the limits are no numbers by kind.

    Example:
        >>> import tempfile
        >>> site = Site.create(Path(tempfile.mkdtemp()), {"train": 1})
        >>> line = site.ask("train", "a", {})
        >>> site.ask("scores", "b", {})
        Traceback (most recent call last):
        ...
        fedbolic.remote.site.SiteLimitError: this site answers no scores
    """

    folder: Path
    limits: dict[str, int] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        file = self.folder / "limits.json"
        found = json.loads(file.read_text()) if file.exists() else None
        _require_limits(found, file)
        object.__setattr__(self, "limits", found)

    @property
    def file(self) -> Path:
        """File of the transcript."""
        return self.folder / "transcript"

    @classmethod
    def create(cls, folder: Path, limits: dict[str, int] | None = None) -> "Site":
        """Create the folder of a site, with new keys.

        Args:
            folder: The folder.
            limits: Content of ``limits.json``; ``None`` for no limits.

        Raises:
            ValueError: If it holds a key already, or the limits are no numbers by kind.
        """
        from fedbolic.federated.secure.keys import write_identities  # needs the extra secure

        _require_limits(limits, "limits")  # before the keys, which no second attempt replaces
        write_identities(folder, 1)
        if limits is not None:
            (folder / "limits.json").write_text(json.dumps(limits))
        return cls(folder)

    def answer(
        self,
        kind: str,
        request: Tree,
        work: Callable[[list[Tree], str], Tree],
        *,
        state: str = "",
    ) -> Tree:
        """Reply to a request; the transcript gets a line before and after the work.

        Args:
            kind: Kind of the request.
            request: The request.
            work: Function of a list, to which it appends its charges, and of the hash of the
                line about the request; it returns the reply.
            state: Name of the node's latest client state; ``""`` if it has none.

        Raises:
            SiteLimitError: If the limits refuse it.
        """
        name, facts = tree_digest(request).hex(), {"state": state} if state else {}
        if "message" in request:
            facts["message"] = tree_digest(request["message"]).hex()
            facts["path"] = str(request["path"])
        line, costs = self.ask(kind, name, facts), list[Tree]()
        reply = work(costs, line)
        self.tell(name, reply, costs)
        return reply

    def ask(self, kind: str, name: str, facts: dict[str, Any]) -> str:
        """Write the line about a request before the work; the same request again is free.

        Args:
            kind: Kind of the request.
            name: Digest of the request.
            facts: Further entries of the line.

        Returns:
            Hash of the line.

        Raises:
            SiteLimitError: If the limits refuse it.
        """
        kind = kind if kind in REQUEST_KINDS else "unknown"
        with FileLock(f"{self.file}.lock", mode=0o600):
            entries = [entry for entry, _, _ in self._lines()]
            asked = {e["request"] for e in entries if e["event"] == "asked" and e["kind"] == kind}
            most = self._most(kind)
            if name not in asked and len(asked) >= most:
                self._append({"event": "refused", "kind": kind, "request": name})
                number = f"at most {most} requests of kind" if most else "no"
                raise SiteLimitError(f"this site answers {number} {kind}")
            return self._append({"event": "asked", "kind": kind, "request": name, **facts})

    def _most(self, kind: str) -> int | float:
        """Largest number of different requests of a kind."""
        if kind not in REQUEST_KINDS:
            return 0
        if self.limits is None:
            return math.inf
        return self.limits.get(kind, math.inf if kind == "handshake" else 0)

    def tell(self, name: str, reply: Tree, costs: list[dict[str, Any]]) -> None:
        """Write the line about a reply before it is sent.

        Args:
            name: Digest of the request.
            reply: The reply.
            costs: Charges to the accounts.
        """
        digest = tree_digest(reply).hex()
        with FileLock(f"{self.file}.lock", mode=0o600):
            self._append({"event": "told", "request": name, "reply": digest, "costs": costs})

    def _append(self, entry: dict[str, Any]) -> str:
        from fedbolic.federated.secure.keys import read_secret, sign  # needs the extra secure

        entry = {**entry, "before": next((digest for *_, digest in reversed(self._lines())), "")}
        signature = sign(read_secret(self.folder, 0), _text(entry)).hex()
        descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, self.file.read_bytes().rfind(b"\n") + 1)  # an interrupted line
        append_line(descriptor, {**entry, "signature": signature})
        return self._lines()[-1][2]

    def _lines(self) -> list[tuple[dict[str, Any], str, str]]:
        """Entries, their signatures and the hashes of the whole lines."""
        lines = self.file.read_bytes().split(b"\n")[:-1] if self.file.exists() else []
        found = [(json.loads(line), hashlib.sha256(line).hexdigest()) for line in lines]
        return [(entry, entry.pop("signature"), digest) for entry, digest in found]

    def _signed(
        self, public: bytes, faults: list[str]
    ) -> Iterator[tuple[int, dict[str, Any], str]]:
        """Numbers, entries and hashes of the lines that the site signed; adds faults of lines."""
        from fedbolic.federated.secure.keys import is_signed

        last = ""
        for number, (entry, signature, digest) in enumerate(self._lines(), 1):
            if entry["before"] != last:
                faults.append(f"a line is missing or was moved before line {number}")
            last = digest
            if is_signed(public, _text(entry), bytes.fromhex(signature)):
                yield number, entry, digest
            else:
                faults.append(f"line {number} is not signed by the site")

    def check(self, received: Collection[str] = ()) -> "SiteReport":
        """Summary of the transcript, with faults in its signatures, hashes and limits.

        Args:
            received: Names of client states that the server of a run received from its clients, one
                of which must be the hash of a line; empty if they are not known.

        Raises:
            FileNotFoundError: If there is no transcript or no public key.
        """
        from fedbolic.federated.secure.keys import read_identity

        public, faults = read_identity(self.folder, 0), list[str]()
        if not self.file.exists():
            raise FileNotFoundError(f"{self.file} is missing")
        asked, messages = defaultdict[str, set[str]](set), defaultdict[str, dict[str, None]](dict)
        costs, requests, told = list[dict[str, Any]](), dict[str, str](), set[str]()
        epsilon = math.nan
        try:
            for number, entry, digest in self._signed(public, faults):
                if entry["event"] == "asked":
                    asked[entry["kind"]].add(entry["request"])
                    if (state := entry.get("state", "")) and state not in requests:
                        faults.append(
                            f"line {number} goes on from a client state that no earlier line names"
                        )
                    requests[digest] = entry["request"]
                    if "path" in entry and entry["kind"] == "train":
                        messages[_exchange(entry["path"])][entry["message"]] = None
                if entry["event"] == "told":
                    told.add(entry["request"])
                    if not any(entry["request"] in names for names in asked.values()):
                        faults.append(f"line {number} replies to nothing that was asked")
                costs += entry.get("costs", ())
            epsilon = _charged(costs)
        except (KeyError, ValueError, TypeError, ArithmeticError, AttributeError, RecursionError):
            faults.append("the transcript is damaged")
        if received and not any(requests.get(name) in told for name in received):
            faults.append(
                "it has no reply that the run's server has: its end was cut off, or it is that of "
                "another run"
            )
        for kind, names in asked.items():
            if len(names) > (most := self._most(kind)):
                faults.append(f"{len(names)} requests of {kind} were answered, not {most}")
        counts = {kind: len(asked[kind]) for kind in REQUEST_KINDS if asked[kind]}
        arrived = {path: tuple(digests) for path, digests in messages.items()}
        return SiteReport(self.folder.name, counts, epsilon, arrived, tuple(faults))


@dataclass(frozen=True)
class SiteReport:
    """Summary of a transcript.

    Args:
        name: Name of the site's folder.
        counts: Number of different requests of every kind.
        epsilon: Epsilon of all that was charged to accounts, plans counted whole; NaN if the
            transcript is damaged.
        messages: Digests of the server's different messages by exchange, in the order of arrival;
            more than one if it asked again.
        faults: Faults, one sentence each.
    """

    name: str
    counts: dict[str, int]
    epsilon: float
    messages: dict[str, tuple[str, ...]]
    faults: tuple[str, ...]

    def __str__(self) -> str:
        asked = ", ".join(f"{n} {kind}" for kind, n in self.counts.items())
        found = "".join(f"FAULT: site {self.name}: {fault}\n" for fault in self.faults)
        return f"site {self.name}: {asked}; charged epsilon {self.epsilon:.4g}\n{found}"


def cost_of(ledger: PrivacyLedger, num_releases: int) -> dict[str, Any]:
    """Entry of a transcript about a charge.

    Args:
        ledger: Ledger of the planned run.
        num_releases: Number of releases that are charged.
    """
    planned = {"rounds": ledger.rounds, "epsilon": ledger.epsilon(ledger.rounds)}
    return {"mechanism": repr(ledger), "releases": num_releases, **planned}


def _charged(costs: list[dict[str, Any]]) -> float:
    """Epsilon of charges, plans counted whole."""
    releases, plans = Counter[str](), dict[str, tuple[float, int]]()
    for cost in costs:
        if min(cost["releases"], cost["epsilon"], cost["rounds"] - 1) < 0:
            raise ValueError("charges are positive, and of one round at least")
        releases[cost["mechanism"]] += cost["releases"]
        plans[cost["mechanism"]] = cost["epsilon"], cost["rounds"]
    whole = (epsilon * -(-releases[m] // rounds) for m, (epsilon, rounds) in plans.items())
    return sum(whole, start=0.0)


def different_messages(reports: list[SiteReport]) -> list[str]:
    """Exchanges in which sites received different messages; so may methods with personal ones.

    Args:
        reports: Reports of the sites of one run.
    """
    found = defaultdict[str, set[tuple[str, ...]]](set)
    for report in reports:
        for path, messages in report.messages.items():
            found[path].add(messages)
    return [path for path, messages in found.items() if len(messages) > 1]


def unshared_exchanges(reports: list[SiteReport]) -> int:
    """Number of exchanges that some sites did not receive, which hide different messages.

    Cohorts have such exchanges, and so has a server that names one exchange differently to sites.

    Args:
        reports: Reports of the sites of one run.
    """
    sites = Counter(path for report in reports for path in report.messages)
    return sum(number < len(reports) for number in sites.values())


def _require_limits(limits: Any, source: Path | str) -> None:
    """Refuse limits that are no numbers by kind."""
    sound = limits is None or (
        isinstance(limits, dict)
        and limits.keys() <= set(REQUEST_KINDS)
        and all(type(n) is int and n >= 0 for n in limits.values())
    )
    if not sound:
        kinds = ", ".join(REQUEST_KINDS)
        raise ValueError(f"{source} must give numbers of requests by kind: {kinds}")


def _exchange(path: str) -> str:
    """One text for all texts of a path, which a server may write with other spaces."""
    try:
        return json.dumps(json.loads(path))
    except (ValueError, RecursionError):
        return path


def _text(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True).encode()
