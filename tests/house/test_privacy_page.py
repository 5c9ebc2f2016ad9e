"""Every promise on the page about privacy names the tests that hold it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "fedbolic/federated/PRIVACY.md").read_text()


def test_every_promise_has_tests_that_exist():
    table = PAGE.partition("## Promises")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("|")][2:]
    promises = [cells for cells in rows if not cells[0].strip().startswith("*")]
    assert len(promises) > 20
    for promise, tests in promises:
        found = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert found, promise
        for path, name in found:
            assert f"\ndef {name}(" in (ROOT / path).read_text(), (promise, path, name)


def test_the_page_begins_with_what_is_not_promised():
    first = PAGE.splitlines()[:4]
    assert any(line.startswith("**Not promised**") for line in first)
