"""Short names: what is read from files, unexecuted, is what Python finds."""

import importlib
import inspect
import itertools
from abc import ABC

import pytest

from fedbolic.run.configuration import SetupError, build
from fedbolic.run.experiment import run
from fedbolic.run.public_classes import EXPORTING, METHODS, heirs, public_classes


def imported(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_classes_are_those_that_python_imports():
    for name, found in public_classes().items():
        kind = imported(found.path)
        bases = {base.__name__ for base in kind.__mro__}
        assert kind.__name__ == name
        assert bool(found.abstract) == inspect.isabstract(kind), name
        assert bases & {*public_classes(), "Method", "Source"} <= found.bases, name
        assert found.about == (inspect.getdoc(kind) or "").partition("\n")[0]


def test_a_public_name_stands_for_one_class_of_a_kind():
    """A parser that looks for a method by its short name cannot find two."""
    exported = [item for package in EXPORTING for item in public_classes(package).items()]
    for (one, first), (other, second) in itertools.combinations(exported, 2):
        if one == other and imported(first.path) is not imported(second.path):
            kinds = (imported(first.path), imported(second.path))
            common = {base for base in kinds[0].__mro__ if base in kinds[1].__mro__}
            assert common <= {object, ABC}, (first.path, second.path)


def test_a_package_that_nobody_exports_has_no_classes():
    assert public_classes("fedbolic.nowhere") == {}


AROUND = {"ClosedFormHead", "PrivateSteps"}
"""Methods around another one, which must be told which."""


@pytest.mark.parametrize("name", sorted({*heirs("Method", *METHODS)} - AROUND))
def test_every_method_has_a_short_name(name):
    assert type(build(run, [f"--method={name}"])["method"]) is imported(public_classes()[name].path)


@pytest.mark.parametrize("name", sorted(AROUND))
def test_a_method_around_another_one_says_what_it_needs(name):
    with pytest.raises(SetupError, match=f"{name} needs"):
        build(run, [f"--method={name}"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Dataset", "Digits"),
        ("GraphSet", "BlockModel"),
        ("HierarchySet", "Nouns"),
        ("TripleSet", "Families"),
    ],
)
def test_a_data_set_in_the_place_of_a_source_is_shared_out(kind, name):
    for words in ([f"--data={name}"], ["--data", name]):
        data = build(run, words)["data"]
        held = next(value for value in vars(data).values() if type(value).__name__ == name)
        assert kind in {base.__name__ for base in type(held).__mro__}


def test_short_names_in_a_file(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("method: {class_path: HyperFed, init_args: {backbone: {class_path: MLP}}}\n")
    method = build(run, ["--config", str(file)])["method"]
    assert type(method).__module__ == "hyperfed.method"
    assert type(method.backbone).__name__ == "MLP"
