"""Options of a configuration by name."""

from fedbolic.core.yaml_text import flat_settings


def test_settings_are_named_as_on_the_command_line():
    settings = {
        "method": {
            "class_path": "m.A",
            "init_args": {"lr": 0.1, "sharing": {"head.*": "personal"}},
        },
        "evaluation": {"every": 3, "metrics": []},
        "engine": {"class_path": "e.E"},
        "name": None,
    }
    assert flat_settings(settings) == {
        "method": "m.A",
        "method.lr": 0.1,
        "method.sharing": {"head.*": "personal"},  # its keys are patterns, not options
        "evaluation.every": 3,
        "evaluation.metrics": [],
        "engine": "e.E",
        "name": None,
    }
