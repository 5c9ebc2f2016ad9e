"""Privacy accounts of a data owner, on the owner's own disk."""

import json
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.federated.accounting.gaussian import check_delta
from fedbolic.federated.accounting.ledger import Neighbours, PrivacyLedger, Unit

with extra("run", "fedbolic.remote"):
    from filelock import FileLock

DATA_NAME = re.compile(r"\w[\w-]{0,63}", re.ASCII)
"""Name that an owner gives to data."""

UNITS: tuple[Unit, ...] = ("client", "example", "edge", "leaf")
"""Units of privacy, each with a separate account."""


@dataclass(frozen=True)
class Balance:
    """Budget of an account, and what its releases have cost at most.

    Args:
        budget: Largest epsilon that the account allows.
        budget_delta: Largest delta that the account allows.
        epsilon: Epsilon of all charged releases together.
        dp_delta: Delta at which that epsilon holds.
        num_charges: Number of charges.
    """

    budget: float
    budget_delta: float
    epsilon: float
    dp_delta: float
    num_charges: int


@dataclass(frozen=True)
class PrivacyAccounts:
    r"""Accounts of the private releases from the data of one owner, one for each unit of privacy.

    An account belongs to data under the name that their owner gave them, not to a run, a file or
    its content: new run ids, reloaded data and lost client states change nothing. It is created by
    its owner (:meth:`create`) and never by a run; a missing account is a refusal.

    The first release of a mechanism reserves the cost of the whole planned run, by the mechanism's
    own ledger, and further releases of this mechanism use up what was reserved. If a second plan
    does not fit the rest of the budget, single releases are charged by their Rényi divergences. The
    sum

    .. math::
        \sum_i \varepsilon_i + \min_\alpha \Bigl(\sum_j D_\alpha^j
            + \frac{\log (|A| / \delta_r)}{\alpha - 1}\Bigr), \qquad
            \sum_i \delta_i + \delta_r \le \delta

    over the plans i and the single releases j never exceeds the budget. A is the set of orders, and
    :math:`\delta_r` half of the delta that is left at the first single release. The bound holds
    whatever the server asks, and in whatever order: each order has its own share of delta, so the
    best of them may depend on the answers.

    A charge is one line, appended under a lock and synchronised to the disk before the noise is
    drawn. A line without an end is of a charge that was interrupted, after which nothing was drawn.

    Args:
        folder: Folder of the accounts.
        data: Owner's name of the data: letters, digits, ``_`` and ``-``.

    Raises:
        ValueError: If the name has other characters.

    References:
        Rogers et al. (2016), Theorem 3.4, for plans, arXiv:1605.08294; Lécuyer (2021), Sec. 4, for
        orders, arXiv:2103.01379.

    Example:
        >>> import tempfile
        >>> from fedbolic.federated.accounting.costs import PureCost
        >>> accounts = PrivacyAccounts(Path(tempfile.mkdtemp()), "hospital")
        >>> _ = accounts.create("example", epsilon=1.0)
        >>> cost = PureCost(0.5)
        >>> ledger = PrivacyLedger("everyone", "add/remove", 1.0, 1.0, 0.0, 1, "example", cost)
        >>> _ = accounts.charge(ledger, 1)
        >>> accounts.balance("example").epsilon
        0.5
    """

    folder: Path
    data: str

    def __post_init__(self) -> None:
        if not DATA_NAME.fullmatch(self.data):
            raise ValueError(
                f"a name of data has 1 to 64 letters, digits, _ and -, got {self.data!r:.80}"
            )

    def file(self, unit: Unit) -> Path:
        """File of the account of a unit of privacy.

        Args:
            unit: Unit of privacy.
        """
        return self.folder / f"{self.data}.{unit}.account"

    def create(
        self,
        unit: Unit,
        *,
        epsilon: float,
        dp_delta: float = 0.0,
        neighbours: Neighbours = "add/remove",
    ) -> Path:
        """Create the account of a unit of privacy.

        Args:
            unit: Unit of privacy.
            epsilon: Budget of all releases that these data will ever give, above 0.
            dp_delta: Delta of the same, in [0, 1); 0 admits only mechanisms of pure epsilon.
            neighbours: Neighbouring relation, which the mechanisms must have, too.

        Returns:
            The file of the account.

        Raises:
            FileExistsError: If there is such an account.
            ValueError: If a value is out of range.
        """
        check.one_of(UNITS, unit=unit)
        check.positive(epsilon=epsilon)
        check.one_of(("add/remove", "replace"), neighbours=neighbours)
        if dp_delta:
            check_delta(dp_delta)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        header = {"account": secrets.token_hex(8), "epsilon": epsilon, "dp_delta": dp_delta}
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        file = self.file(unit)
        try:
            descriptor = os.open(file, flags, 0o600)
        except FileExistsError as error:
            raise FileExistsError(f"there is an account already: {file}") from error
        append_line(descriptor, {**header, "neighbours": neighbours})
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return file

    def charge(self, ledger: PrivacyLedger, num_releases: int) -> tuple[str | int, ...]:
        """Book releases of a mechanism, durably, before their noise is drawn.

        Args:
            ledger: Ledger of a run of the mechanism.
            num_releases: Number of releases, at least 1.

        Returns:
            A name that no other charge has.

        Raises:
            FileNotFoundError: If there is no account for the unit of the ledger.
            ValueError: If the releases do not fit the account or the rest of its budget, or the
                file is damaged.
        """
        check.at_least(1, num_releases=num_releases)
        file = self._found(ledger.unit)
        with FileLock(f"{file}.lock", mode=0o600):
            header, entries, length = _read(file)
            if (relation := header["neighbours"]) != ledger.neighbours:
                raise ValueError(
                    f"{file} counts neighbours by {relation}, and the mechanism's guarantee is for "
                    f"{ledger.neighbours}: change the mechanism"
                )
            if ledger.participation == "once":
                raise ValueError("a node cannot count the epochs of a server: use everyone")
            entry = _fitting_entry(header, entries, ledger, num_releases)
            if entry is None:
                raise ValueError(
                    f"the budget of {file} is spent: epsilon {_balance(header, entries).epsilon:g} "
                    f"of {header['epsilon']:g}, and this release is not covered by the rest"
                )
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(descriptor, length)
            append_line(descriptor, entry)
        return "charge", header["account"], len(entries)

    def balance(self, unit: Unit) -> Balance:
        """Budget and cost of the account of a unit of privacy.

        Args:
            unit: Unit of privacy.

        Raises:
            FileNotFoundError: If there is no such account.
            ValueError: If the file is damaged.
        """
        header, entries, _ = _read(self._found(unit))
        return _balance(header, entries)

    def _found(self, unit: Unit) -> Path:
        if not (file := self.file(unit)).is_file():
            raise FileNotFoundError(
                f"there is no account {file}, so nothing is released: its owner creates it with "
                f"`fedbolic account create {self.folder} {self.data} --unit {unit} --epsilon E`"
            )
        return file


def _fitting_entry(
    header: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    ledger: PrivacyLedger,
    num_releases: int,
) -> dict[str, Any] | None:
    """The charge of some releases that fits the budget; ``None`` if there is none."""
    entry = {"mechanism": repr(ledger), "releases": num_releases}
    planned = [each for each in entries if each["mechanism"] == entry["mechanism"]]
    reserved = sum(each["plan"]["releases"] for each in planned if "plan" in each)
    used = sum(each["releases"] for each in planned if "divergences" not in each)
    if num_releases <= reserved - used:
        return entry
    candidates = []
    if num_releases <= ledger.rounds:
        whole = {"epsilon": ledger.epsilon(ledger.rounds), "dp_delta": ledger.dp_delta}
        candidates.append({**entry, "plan": {"releases": ledger.rounds, **whole}})
    now = _balance(header, entries)
    single = [each["dp_delta"] for each in entries if "divergences" in each]
    share = single[0] if single else (now.budget_delta - now.dp_delta) / 2
    if share > 0:
        curve = {str(order): bound for order, bound in ledger.divergences(num_releases).items()}
        candidates.append({**entry, "divergences": curve, "dp_delta": share})
    for candidate in candidates:
        after = _balance(header, [*entries, candidate])
        if after.epsilon <= after.budget and after.dp_delta <= after.budget_delta:
            return candidate
    return None


def _balance(header: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Balance:
    plans = [entry["plan"] for entry in entries if "plan" in entry]
    epsilon = math.fsum(plan["epsilon"] for plan in plans)
    dp_delta = math.fsum(plan["dp_delta"] for plan in plans)
    if single := [entry for entry in entries if "divergences" in entry]:
        share, curves = single[0]["dp_delta"], [entry["divergences"] for entry in single]
        orders = set(curves[0]).intersection(*curves)
        tail = math.log(len(orders) / share)
        epsilon += min(
            math.fsum(curve[order] for curve in curves) + tail / (int(order) - 1)
            for order in orders
        )
        dp_delta += share
    return Balance(header["epsilon"], header["dp_delta"], epsilon, dp_delta, len(entries))


def _read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Header, charges, and the length in bytes without an interrupted last line."""
    lines = file.read_bytes().split(b"\n")[:-1]
    try:
        header, *entries = (json.loads(line) for line in lines)
        _balance(header, entries)
        if not {"account", "neighbours"} <= header.keys() or not all(
            {"mechanism", "releases"} <= entry.keys() for entry in entries
        ):
            raise ValueError("a line lacks an entry")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged, so nothing is released") from error
    return header, entries, sum(len(line) + 1 for line in lines)


def append_line(descriptor: int, content: Mapping[str, Any]) -> None:
    """Append one line of JSON, wait until it is on the disk, and close.

    Args:
        descriptor: Descriptor of a file that is open for appending.
        content: Content of the line.
    """
    with os.fdopen(descriptor, "ab") as file:
        file.write(json.dumps(content, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
