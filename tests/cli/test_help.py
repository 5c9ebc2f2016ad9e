"""Help of the command line: every option, with its range."""

import pytest
import yaml

from tests.command_line import ROOT, refused


@pytest.mark.parametrize("command", [[], ["run"], ["sweep"], ["resume"], ["report"]])
def test_help_names_what_may_be_asked(command, fedbolic):
    code, out, err = fedbolic(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: fedbolic")


def test_the_help_of_a_class_is_its_docstring(fedbolic):
    code, out, _ = fedbolic("run", "--method.help=fedbolic.methods.FedAvg")
    assert code == 0
    assert "Local step size, above 0." in " ".join(out.split())


def flat(settings, prefix=""):
    """Flags of a printed configuration."""
    for name, value in settings.items():
        inner = (
            value.get("init_args", {} if "class_path" in value else value)
            if isinstance(value, dict)
            else {}
        )
        yield f"--{prefix}{name}"
        if name != "sharing":
            yield from flat(inner, f"{prefix}{name}.")


@pytest.mark.parametrize("name", ["fedavg", "hyperfed", "fedhull", "flatland", "flynn"])
def test_help_names_every_option_of_a_configuration(name, fedbolic, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["--config", f"configs/{name}/quick.yaml"]
    _, printed, _ = fedbolic("run", *words, "--print_config")
    code, out, err = fedbolic("run", *words, "--help")
    assert (code, err) == (0, "")
    told = set(out.replace("[", " ").split())
    assert [flag for flag in flat(yaml.safe_load(printed)) if flag not in told] == []


def test_help_is_that_of_the_class_named_by_a_flag(fedbolic):
    ditto = "--method=fedbolic.methods.Ditto"
    for order in (["--help", ditto], [ditto, "-h"]):
        code, out, _ = fedbolic("run", *order)
        assert code == 0
        assert out.startswith("usage: fedbolic")
        assert "--method.personal_proximal PERSONAL_PROXIMAL" in out
        assert "--data.partition.alpha ALPHA" in out  # an option of the default partition
        assert "--evaluation.fine_tuning.epochs EPOCHS" in out
    assert "--method.personal_proximal" not in fedbolic("run", "--help")[1]
    assert "--deployment.timeout" in fedbolic("flower", "--help")[1]
    assert refused(fedbolic("run", "--help", "--config=no.yaml"), names=["no.yaml"])
