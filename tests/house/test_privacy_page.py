"""Every promise on the page about privacy names the tests that hold it."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "fedbolic/federated/PRIVACY.md").read_text()


def test_every_promise_has_tests_that_exist():
    with (ROOT / "docs/privacy/promises.csv").open() as rows:
        promises = [cells for cells in list(csv.reader(rows))[1:] if not cells[0].startswith("*")]
    assert len(promises) > 20
    for promise, tests in promises:
        found = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert found, promise
        for path, name in found:
            assert f"\ndef {name}(" in (ROOT / path).read_text(), (promise, path, name)


def test_the_page_says_what_is_not_promised_before_anything_in_detail():
    assert "\n**Not promised**" in PAGE.partition("\n## ")[0]
