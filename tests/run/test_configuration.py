"""Objects to YAML and back; invalid requests are refused in one line."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from fedbolic.cli.help import options_in_full
from fedbolic.cli.parser import command_line
from fedbolic.core.yaml_text import null_for_none
from fedbolic.data import Partitioned, Source
from fedbolic.federated import Cohort, Evaluation, LocalTraining, Method, Sequential
from fedbolic.methods import Ditto, FedAvg, Scaffold
from fedbolic.run import configuration
from fedbolic.run.configuration import (
    INVISIBLE,
    SetupError,
    build,
    describe,
    one_line,
    parser_of,
    setting_up,
)
from fedbolic.run.experiment import run

DEFAULTS = {
    "engine": Sequential(),
    "cohort": Cohort(),
    "channels": (),
    "evaluation": Evaluation(),
    "privacy": None,
    "device": "auto",
    "precision": "32-true",
    "threads": 1,
    "loggers": (),
    "seed": 0,
    "name": None,
    "runs": Path("runs"),
}


def test_defaults_are_those_of_the_function():
    words = ["--method=fedbolic.methods.FedAvg", "--data=fedbolic.data.Partitioned"]
    # without a class on the command line, the function's own default applies
    plain = {name: value for name, value in DEFAULTS.items() if name != "engine"}
    assert build(run, words) == {**plain, "method": FedAvg(), "data": Partitioned()}
    assert build(run, []) == plain


def test_a_class_in_place_of_a_default_inherits_nothing_from_it():
    """FedAvg's defaults must not carry over to settings of the same name in another method."""

    def train(method: Method = FedAvg(lr=0.7, rounds=3), seed: int = 0) -> None:
        """Train."""

    assert build(train, ["--method=fedbolic.methods.Ditto"])["method"] == Ditto()
    assert "method" not in build(train, [])


def test_a_class_in_place_of_the_configurations_keeps_settings_of_the_same_name(tmp_path):
    """A row of a sweep then differs from its base in the method only."""
    file = tmp_path / "c.yaml"
    file.write_text(describe(run, {"method": FedAvg(lr=0.7, proximal=0.5), "data": Partitioned()}))
    built = build(run, ["--config", str(file), "--method=fedbolic.methods.Ditto"])
    assert built["method"] == Ditto(lr=0.7)


def test_flags_go_over_the_file_in_their_order(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(describe(run, {"method": Scaffold(lr=0.7), "data": Partitioned(), "seed": 4}))
    words = ["--config", str(file), "--method.lr=0.1", "--seed=5", "--seed=6"]
    built = build(run, words)
    assert built["method"] == Scaffold(lr=0.1)
    assert built["seed"] == 6


def test_only_a_choice_of_class_is_named(tmp_path):
    text = describe(
        run, {"method": FedAvg(), "cohort": Cohort(0.5), "runs": tmp_path, "loggers": ()}
    )
    assert yaml.safe_load(text)["cohort"] == {"rate": 0.5, "sampling": "fixed"}
    assert yaml.safe_load(text)["method"]["class_path"] == "fedbolic.methods.fedavg.FedAvg"
    assert yaml.safe_load(text)["runs"] == str(tmp_path)
    assert yaml.safe_load(text)["loggers"] == []


def test_what_says_how_to_call_is_never_written_nor_asked():
    assert set(INVISIBLE) == {"overwrite", "callbacks", "nodes"}

    def call(seed: int, *, overwrite: bool = False, callbacks: tuple = ()) -> None:
        """Call."""

    text = describe(call, {"seed": 1, "overwrite": True, "callbacks": [object()]})
    assert yaml.safe_load(text) == {"seed": 1}
    for name in INVISIBLE:
        with pytest.raises(SetupError, match=name):
            build(run, [f"--{name}=1"])


class Open(Source):
    """A class that is no dataclass."""

    def load(self, rng):
        raise NotImplementedError


@dataclass(frozen=True)
class Holder:
    """A dataclass with a field of any type."""

    thing: object = field(default_factory=object)


@pytest.mark.parametrize("value", [object(), Open(), Holder(), {1, 2}, lambda: 0, [Holder()]])
def test_what_cannot_be_written_is_refused_before_anything_runs(value):
    def call(thing: object) -> None:
        """Call."""

    with pytest.raises(SetupError, match="cannot be written to a configuration"):
        describe(call, {"thing": value})


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--nonsense=1"], ["--nonsense"]),
        (["--method=fedbolic.methods.FedAvg", "--method.lr=fast"], ["lr", "fast", "float"]),
        (["--method=fedbolic.methods.FedAvg", "--method.lr=-1"], ["lr must be a positive", "-1"]),
        (["--method=fedbolic.data.Partitioned"], ["Method"]),
        (["--config=nowhere.yaml"], ["nowhere.yaml"]),
        (["--cohort.rate=2"], ["rate must lie in [0, 1]"]),
        (["--seed=1.5"], ["seed", "1.5"]),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_one_line(words, names):
    with pytest.raises(SetupError) as caught:
        build(run, words)
    assert "\n" not in str(caught.value)
    for name in names:
        assert name in str(caught.value)


def test_errors_setting_up_become_one_line_and_others_pass():
    for error in (ValueError("a\n  b"), FileNotFoundError("a\n\tb")):
        with pytest.raises(SetupError, match=r"^a b$"), setting_up():
            raise error
    with pytest.raises(ZeroDivisionError), setting_up():
        raise ZeroDivisionError
    assert one_line(ValueError(" a \n b ")) == "a b"


ROOT = Path(__file__).parents[2]
RANGE = re.compile(r"above|below|[Aa]t (least|most)|or more|positive|any integer|[\[(]-?\d|\d \.\.")


@pytest.mark.parametrize(
    "config", sorted(ROOT.glob("configs/*/quick.yaml")), ids=lambda file: file.parent.name
)
def test_every_number_that_may_be_asked_for_has_its_range_in_the_help(config, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    parser = command_line()
    text = options_in_full(parser, run, ["run", "--config", str(config)])
    options = [" ".join(option.split()) for option in re.split(r"\n(?=  --)", text)]
    numbers = [option for option in options if re.search(r"type: (int|float)\b", option)]
    assert len(numbers) > 3
    assert [option for option in numbers if not RANGE.search(option.partition("(type")[0])] == []


def test_the_help_is_the_docstring():
    text = " ".join(parser_of(run).format_help().split())
    assert "Number of CPU threads per operation" in text
    assert "default: 1" in text
    assert "overwrite" not in text


def test_settings_without_an_own_default_are_passed_on():
    assert configuration.given(run, {"method": None, "seed": 3, "config": ["c"], "name": None}) == {
        "seed": 3,
        "name": None,
    }


OPTION = "--method.local.clip_norm"
FEDAVG = ["--method=fedbolic.methods.FedAvg", f"{OPTION}=3"]


@pytest.mark.parametrize(
    "words",
    [
        [f"{OPTION}=null"],
        [OPTION, "null"],
        [f"{OPTION}=None"],
        ["--method.local={clip_norm: null}"],
    ],
)
def test_null_replaces_a_number_of_a_nested_option(words):
    assert build(run, FEDAVG)["method"].local.clip_norm == 3
    assert build(run, [*FEDAVG, *words])["method"].local.clip_norm is None


def test_null_replaces_a_number_in_a_table_within_a_method_within_a_method():
    words = ["--method=fedbolic.methods.ClosedFormHead", "--method.method=fedbolic.methods.FedAvg"]
    words += ["--method.method.local={clip_norm: 3, epochs: 2}"]
    assert build(run, words)["method"].method.local == LocalTraining(epochs=2, clip_norm=3.0)
    words += ["--method.method.local={clip_norm: null, epochs: 4}"]
    assert build(run, words)["method"].method.local == LocalTraining(epochs=4)


def test_none_is_null_as_a_value_but_not_as_a_key_or_in_quotes():
    text = "a: None\nNone: [None, 'None', Nonesuch]\nb: {c: None}\nd: &e [None]\nf: *e\n"
    found = yaml.safe_load(null_for_none(text))
    assert found == {
        "a": None,
        "None": [None, "None", "Nonesuch"],
        "b": {"c": None},
        "d": [None],
        "f": [None],
    }
