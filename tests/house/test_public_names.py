"""The public API: names of ``dir(fedbolic)`` and its packages, and the page that lists them."""

import inspect
import re

import pytest

import fedbolic
from tests.house.test_site import SITE, extension

names = extension("public_names")
PACKAGES = {package.__name__.removeprefix("fedbolic."): package for package in names.packages()}
every_package = pytest.mark.parametrize("name", PACKAGES)


def test_the_package_names_packages_a_function_and_its_version():
    assert dir(fedbolic) == sorted({"__version__", "load", *PACKAGES})
    assert fedbolic.load is fedbolic.run.load


@every_package
def test_a_package_lists_what_it_gives_once_and_in_order(name):
    listed = PACKAGES[name].__all__
    assert len(set(listed)) == len(listed)
    assert set(listed) == {
        key
        for key, value in vars(PACKAGES[name]).items()
        if not (key.startswith("_") or inspect.ismodule(value))
    }


@every_package
def test_a_class_or_function_says_what_it_is_in_one_sentence(name):
    given = {key: getattr(PACKAGES[name], key) for key in PACKAGES[name].__all__}
    routines = {k: v for k, v in given.items() if inspect.isclass(v) or inspect.isfunction(v)}
    assert [k for k, value in routines.items() if not names.summary(value).endswith(".")] == []


def test_the_page_lists_every_name_in_the_section_of_its_package():
    assert ".. public-names::" in (SITE.docs / "api/public.rst").read_text()
    found = {}
    for line in names.page():
        if line.startswith("fedbolic."):
            section = found.setdefault(line.removeprefix("fedbolic."), [])
        elif match := re.fullmatch(r"   \* - (?::py:obj:`(\w+) <[\w.]+>`|``(\w+)``)", line):
            section.append(match[1] or match[2])
    assert found == {name: package.__all__ for name, package in PACKAGES.items()}
