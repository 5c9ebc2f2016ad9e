"""Typical mistakes on the command line: each answer names the cure."""

import pytest

from tests.command_line import refused

FILES = {
    "round.yaml": "method: {class_path: HyperFed, init_args: {round: 1}}\n",
    "tab.yaml": "method:\n\tclass_path: x\n",
    "table.csv": "a,b,label\n1,2,x\n",
    "evry.yaml": "evaluation: {evry: 2}\n",
}

MISTAKES = {
    "nothing asked": ("run", ["--config fedavg/quick", "--method HyperFed", "fedbolic methods"]),
    "only a seed": ("run --seed 3", ["--config fedavg/quick"]),
    "no such command": ("runn", ["runn", "the nearest are run"]),
    "a configuration for a command": ("fedavg/quick", ["fedbolic run --config fedavg/quick"]),
    "a configuration without its flag": ("run fedavg/quick", ["--config fedavg/quick"]),
    "a typo in a configuration": ("run --config fedavg/quik", ["fedavg/quick", "fedbolic configs"]),
    "half a configuration": ("run --config fedavg", ["the nearest are fedavg/quick"]),
    "a sweep run": ("run --config rivals", ["fedbolic sweep --config"]),
    "a run swept": ("sweep --config fedavg/quick", ["fedbolic run --config"]),
    "a typo in a method": ("run --method HyperFd", ["HyperFd", "the nearest are HyperFed"]),
    "a method in small letters": ("run --method fedavg", ["the nearest are FedAvg"]),
    "a typo in a data set": ("run --data Digit", ["the nearest are Digits"]),
    "a typo in an engine": ("run --engine Batchd", ["engine", "the nearest are Batched"]),
    "a method for an engine": ("run --engine FedAvg", ["engine", "kind of class"]),
    "a path with a typo": ("run --method fedbolic.methods.FedAvgg", ["method", "FedAvgg"]),
    "an option of a method": ("run --lr 1", ["--lr", "the nearest are --method.lr"]),
    "rounds": ("run --rounds 3", ["the nearest are --method.rounds"]),
    "clients": ("run --clients 5", ["--data.partition.num_clients"]),
    "a typo in an option": ("run --evaluation.evry 2", ["--evaluation.every"]),
    "an option that a method lacks": (
        "run --method FedAvg --method.learning_rate 1",
        ["FedAvg has no option learning_rate", "lr, optimizer"],
    ),
    "a typo in an option of a class": (
        "run --method FedAvg --method.backbone MLP --method.backbone.wdths [3]",
        ["method.backbone", "the nearest are widths"],
    ),
    "an option that a partition lacks": (
        "run --data Digits --data.partition IID --data.partition.alpha 1",
        ["IID has no option alpha", "num_clients"],
    ),
    "options of a method that is not named": ("run --method.rounds 3", ["--method=FedAvg"]),
    "options of data that are not named": ("run --data.partition.alpha 1", ["--data=Partitioned"]),
    "an option of a data set": (
        "run --data TableFile --data.path table.csv",
        ["Partitioned has no option path", "begin with --data.dataset"],
    ),
    "a class without a short name": ("run --method Krakatau", ["Krakatau", "import path"]),
    "a number for a list": (
        "run --data Digits --data.dataset ImageFolder --data.dataset.size 8",
        ["size: it must be a list, such as [8,8]"],
    ),
    "a file that is not there": ("view shop.csv", ["shop.csv: No such file"]),
    "a word for a number": ("run --method FedAvg --method.lr fast", ["method.lr", "float", "fast"]),
    "a negative step": ("run --method FedAvg --method.lr -1", ["lr must be a positive number"]),
    "no round": ("run --method FedAvg --method.rounds 0", ["rounds must be at least 1"]),
    "a device of another name": ("run --device gpu", ["device", "'cuda'", "gpu"]),
    "a score of another name": ("run --evaluation.metrics [f1]", ["macro_f1", "but is f1"]),
    "half a budget": ("run --method FedAvg --privacy.epsilon 1", ["privacy", "needs dp_delta"]),
    "a rate above 1": ("run --method FedAvg --cohort.rate 2", ["rate must lie in", "2"]),
    "a method that cannot learn": ("run --method FlatLand --data Digits", ["take other data, or"]),
    "a typo in a file": ("run --config round.yaml", ["HyperFed has no option round", "rounds"]),
    "a table for a configuration": ("run --config table.csv", ["YAML", "a,b,label"]),
    "a tab in a file": ("run --config tab.yaml", ["line 2", "'\\t'"]),
    "a typo in a table of options": ("run --config evry.yaml", ["evry"]),
    "no run to resume": ("resume", ["resume needs run", "fedbolic resume --help"]),
    "nothing to report": ("report", ["report needs runs"]),
    "a run that is not there": ("resume nowhere", ["there is no run in nowhere"]),
    "an export of an unknown kind": ("export nowhere --to x.pt", [".safetensors", ".onnx"]),
}


@pytest.mark.parametrize(("words", "cure"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_with_its_cure(words, cure, fedbolic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert refused(fedbolic(*words.split()), names=cure)
    assert {file.name for file in tmp_path.iterdir()} == {*FILES}
