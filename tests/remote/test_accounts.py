"""Accounts: no order of charges, crashes and processes exceeds a budget."""

import json
import math
import multiprocessing
import os
import random

import pytest

from fedbolic.federated.accounting.accountants import ORDERS
from fedbolic.federated.accounting.costs import ConcentratedCost, PureCost
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.remote.accounts import PrivacyAccounts

library = pytest.importorskip("dp_accounting")

GAUSSIAN = library.GaussianDpEvent
RELATION = "add/remove"


def pure(epsilon):
    return PrivacyLedger(
        "everyone", RELATION, 1.0, 1 / epsilon, 0.0, 1, "example", PureCost(epsilon)
    )


LEDGERS = {
    pure(0.1): library.LaplaceDpEvent(10.0),
    pure(0.3): library.LaplaceDpEvent(1 / 0.3),
    PrivacyLedger("everyone", RELATION, 1.0, 30.0, 1e-7, 8, "example"): GAUSSIAN(30.0),
    PrivacyLedger("everyone", RELATION, 1.0, 9.0, 1e-6, 500, "example"): GAUSSIAN(9.0),
    PrivacyLedger("poisson", RELATION, 0.1, 2.0, 1e-7, 20, "example"): (
        library.PoissonSampledDpEvent(0.1, GAUSSIAN(2.0))
    ),
    PrivacyLedger(
        "everyone", RELATION, 1.0, 20.0, 1e-7, 4, "example", ConcentratedCost(1 / 800)
    ): GAUSSIAN(20.0),
}


def exact_epsilon(charged, dp_delta):
    """Composition of all releases by privacy loss distributions, which know of no plans."""
    accountant = library.pld.PLDAccountant(value_discretization_interval=1e-3)
    for ledger, count in charged.items():
        accountant.compose(LEDGERS[ledger], count)
    return accountant.get_epsilon(dp_delta)


def tried(accounts, ledger, count):
    try:
        return accounts.charge(ledger, count)
    except ValueError as error:
        assert "is spent" in str(error)  # noqa: PT017  # most charges are refused
        return None


@pytest.mark.parametrize(
    ("budget", "tries"),
    [(0.25, 500), (1.0, 500), (4.0, 1000), pytest.param(2.0, 10_000, marks=pytest.mark.slow)],
)
def test_no_sequence_of_mechanisms_costs_more_than_the_budget(budget, tries, tmp_path):
    draws = random.Random(str(budget))
    accounts = PrivacyAccounts(tmp_path, "data")
    accounts.create("example", epsilon=budget, dp_delta=1e-5)
    charged, names = {}, set()
    for _ in range(tries):
        ledger, count = draws.choice(list(LEDGERS)), draws.choice((1, 1, 1, 3))
        if (name := tried(accounts, ledger, count)) is not None:
            charged[ledger] = charged.get(ledger, 0) + count
            assert name not in names
            names.add(name)
    assert exact_epsilon(charged, 1e-5) <= budget
    found = accounts.balance("example")
    assert found.epsilon <= budget
    assert found.dp_delta <= 1e-5
    assert found.num_charges == len(names) > 0


def test_a_plan_reserves_its_whole_cost_and_what_comes_later_only_fits_the_rest(tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    plan = PrivacyLedger("everyone", RELATION, 1.0, 20.0, 1e-6, 100, "example")
    whole = plan.epsilon(100)
    accounts.create("example", epsilon=whole + 0.15, dp_delta=1e-5)
    for _ in range(100):
        accounts.charge(plan, 1)
        assert accounts.balance("example").epsilon == whole
        assert accounts.balance("example").dp_delta == 1e-6
    assert tried(accounts, pure(0.3), 1) is None
    assert tried(accounts, pure(0.1), 1)
    assert tried(accounts, pure(0.1), 1) is None


def test_single_releases_cost_their_renyi_divergences_with_a_share_of_delta_for_every_order(
    tmp_path,
):
    accounts = PrivacyAccounts(tmp_path, "data")
    accounts.create("example", epsilon=2.0, dp_delta=1e-5)
    ledger = PrivacyLedger("everyone", RELATION, 1.0, 40.0, 1e-6, 10**6, "example")
    number = 0
    while tried(accounts, ledger, 1):  # the plan does not fit
        number += 1
        share = 1e-5 / 2 / len(ORDERS)
        closed = min(number * a / (2 * 40**2) + math.log(1 / share) / (a - 1) for a in ORDERS)
        assert accounts.balance("example").epsilon == pytest.approx(closed)
        if number == 3:
            break
    assert number == 3


def test_only_pure_mechanisms_fit_a_delta_of_zero(tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    accounts.create("example", epsilon=1e3)
    for ledger in LEDGERS:
        assert (tried(accounts, ledger, 1) is not None) == (ledger.dp_delta == 0)


def test_a_charge_that_was_interrupted_at_some_byte_is_as_if_it_had_not_been(tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    file = accounts.create("example", epsilon=0.35)
    before = file.read_bytes()
    accounts.charge(pure(0.1), 1)
    whole = file.read_bytes()
    for end in {*range(len(before), len(whole), 37), len(whole) - 2, len(whole) - 1}:
        for torn in (whole[:end], whole[:end] + bytes(5)):  # some file systems leave zeros
            file.write_bytes(torn)
            accounts.charge(pure(0.1), 1)
            assert file.read_bytes().count(b"\n") == 2
            assert accounts.balance("example").epsilon == pytest.approx(0.1)


def test_a_charge_is_on_the_disk_before_its_name_is_given(monkeypatch, tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    file = accounts.create("example", epsilon=0.35)
    written = []
    monkeypatch.setattr(os, "fsync", lambda _: written.append(file.read_bytes().count(b"\n")))
    accounts.charge(pure(0.1), 1)
    assert written == [2]

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        accounts.charge(pure(0.1), 1)
    assert accounts.balance("example").num_charges == 2  # nobody knows, so it counts


@pytest.mark.parametrize("spoilt", [b"", b"{}\n", b"[1]\n", b"\xff\n", b"no json\n"])
def test_a_damaged_account_is_a_refusal(spoilt, tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    file = accounts.create("example", epsilon=1.0)
    for content in (spoilt, file.read_bytes() + (spoilt or b"\n")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged, so nothing is released"):
            accounts.charge(pure(0.1), 1)


def test_a_missing_account_is_a_refusal_and_a_second_one_too(tmp_path):
    accounts = PrivacyAccounts(tmp_path / "new", "data")
    with pytest.raises(FileNotFoundError, match=r"fedbolic account create .* data --unit example"):
        accounts.charge(pure(0.1), 1)
    assert not accounts.folder.exists()
    accounts.create("client", epsilon=1.0)
    with pytest.raises(FileNotFoundError, match=r"data\.example\.account"):
        accounts.charge(pure(0.1), 1)
    file = accounts.create("example", epsilon=1.0)
    assert file.stat().st_mode & 0o077 == accounts.folder.stat().st_mode & 0o077 == 0
    accounts.charge(pure(0.1), 1)
    with pytest.raises(FileExistsError, match="there is an account already"):
        accounts.create("example", epsilon=9.0)
    assert accounts.balance("example").num_charges == 1


def test_what_an_account_cannot_count_is_refused(tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    accounts.create("client", epsilon=1e3, dp_delta=0.5)
    with pytest.raises(ValueError, match="counts neighbours by add/remove"):
        accounts.charge(PrivacyLedger("everyone", "replace", 1.0, 9.0, 1e-6, 1), 1)
    with pytest.raises(ValueError, match="cannot count the epochs of a server"):
        accounts.charge(PrivacyLedger("once", RELATION, 0.5, 9.0, 1e-6, 2), 1)
    for name in ("", "a/b", "..", "a.b", "x" * 65):
        with pytest.raises(ValueError, match="a name of data has"):
            PrivacyAccounts(tmp_path, name)


def charge_often(folder, accepted):
    accounts = PrivacyAccounts(folder, "data")
    accepted.put(sum(tried(accounts, pure(2.0**-6), 1) is not None for _ in range(100)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_processes_at_once_share_one_budget(tmp_path):
    accounts = PrivacyAccounts(tmp_path, "data")
    file = accounts.create("example", epsilon=2.0)
    context = multiprocessing.get_context("fork")  # imports of a fresh process take seconds
    accepted = context.Queue()
    running = [context.Process(target=charge_often, args=(tmp_path, accepted)) for _ in range(3)]
    for process in running:
        process.start()
    assert sum(accepted.get(timeout=100) for _ in running) == 128
    for process in running:
        process.join()
    assert accounts.balance("example").epsilon == 2.0
    assert all(json.loads(line) for line in file.read_text().splitlines())
