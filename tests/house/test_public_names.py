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
def test_a_package_lists_all_that_it_gives_once(name):
    listed = PACKAGES[name].__all__
    assert len(set(listed)) == len(listed)
    assert [key for key in listed if not hasattr(PACKAGES[name], key)] == []
    own = {
        key
        for key, value in vars(PACKAGES[name]).items()
        if getattr(value, "__module__", "").startswith("fedbolic.") and not key.startswith("_")
    }
    assert own <= set(listed)


@every_package
def test_a_class_or_function_says_what_it_is_in_one_sentence(name):
    given = {key: getattr(PACKAGES[name], key) for key in PACKAGES[name].__all__}
    routines = {k: v for k, v in given.items() if inspect.isclass(v) or inspect.isfunction(v)}
    assert [k for k, value in routines.items() if not names.summary(value).endswith(".")] == []


def test_the_page_lists_every_name_in_the_section_of_its_package():
    assert ".. public-names::" in (SITE.docs / "api/public.rst").read_text()
    sections = re.split(r"^fedbolic\.(\w+)\n-+\n", "\n".join(names.page()), flags=re.M)[1:]
    row = re.compile(r"^   \* - (?::py:obj:`(\w+) <[\w.]+>`|``(\w+)``)$", re.M)
    found = {
        name: [linked or plain for linked, plain in row.findall(text)]
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert found == {name: package.__all__ for name, package in PACKAGES.items()}
