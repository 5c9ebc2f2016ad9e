"""Typical mistakes on the command line: each answer names the cure."""

import pytest

from tests.command_line import refused

FILES = {
    "round.yaml": "method: {class_path: HyperFed, init_args: {round: 1}}\n",
    "tab.yaml": "method:\n\tclass_path: x\n",
    "table.csv": "a,b,label\n1,2,x\n",
    "evry.yaml": "evaluation: {evry: 2}\n",
    "empty.yaml": "",
    "metod.yaml": "metod: FedAvg\n",
    "quote.yaml": "seed: 1\nname: 'north\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "beside.yaml": "method: {class_path: FedAvg, rounds: 2}\n",
    "class.yaml": "method: {class: FedAvg}\n",
    "shops.csv": "a;b;label\n1;2;x\n",
    "wards.csv": "age,label\n1,ill\n2,nan\n3,well\n4,ill\n",
    "alike.csv": "age,label\n1,ill\n2,ill\n3,ill\n4,ill\n",
    "heads.csv": "age,label\n",
    "latin.csv": "age,label\n1,ill\n2,m\udce9decin\n",
    "lone.csv": "laptops\ncomputers\n",
    "pets.npz": "PK",
}
TABLE = "run --data TableFile --data.dataset.target label --data.dataset.path"

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
    "an option of local training": ("run --method FedAvg --method.epochs 3", ["local.epochs"]),
    "a dash for an underscore": ("run --batch-size 8", ["--method.local.batch_size"]),
    "several seeds": ("run --seeds 3", ["--seeds is no option", "--seed,"]),
    "a flag of another library": ("run --gpu 0", ["--gpu", "--help"]),
    "a method that is a setting": ("run --method FedProx", ["--config fedprox/quick"]),
    "clients of a data set": ("run --data Digits --data.num_clients 3", ["--data.partition"]),
    "more clients than examples": (
        "run --data Digits --data.partition IID --data.partition.num_clients 9999",
        ["9999 clients cannot share 1352 examples"],
    ),
    "columns without a column": (
        "run --data Digits --data.partition ByColumn",
        ["set client to the name of the column"],
    ),
    "a module for a method": ("run --method torch.nn.Linear", ["method", "no class of the kind"]),
    "a package for a method": ("run --method fedbolic.methods", ["`fedbolic methods`"]),
    "a folder for data": ("run --data ./data", ["./data is no class", "`fedbolic data`"]),
    "a word for a list": ("run --data GraphFiles --data.paths pets.npz", ["such as [pets.npz]"]),
    "one score": ("run --evaluation.metrics auroc", ["must be a list, such as [auroc]"]),
    "a number for a source of noise": (
        "run --privacy.noise 1 --privacy.clip_norm 1",
        ["privacy", "option noise takes no such value"],
    ),
    "an empty configuration": ("run --config empty.yaml", ["empty.yaml is empty", "class_path"]),
    "a typo in an option of a file": ("run --config metod.yaml", ["metod", "nearest are method"]),
    "an open quotation mark": ("run --config quote.yaml", ["quote.yaml", "line 2"]),
    "an option twice": ("run --config twice.yaml", ["twice.yaml", "'seed'", "line 2"]),
    "options next to a class": ("run --config beside.yaml", ["has rounds", "init_args"]),
    "a class under another word": ("run --config class.yaml", ["class_path: FedAvg", "init_args"]),
    "a folder for a configuration": ("run --config .", [". is a folder", "give a regular file"]),
    "a table that is not there": (f"{TABLE} no.csv", ["no.csv"]),
    "a folder for a table": (f"{TABLE} .", ["."]),
    "a table with semicolons": (f"{TABLE} shops.csv", ["no column label", "not by ';'"]),
    "a label that is missing": (f"{TABLE} wards.csv", ["'label'", "row 2", "leave out the rows"]),
    "one label alone": (f"{TABLE} alike.csv", ["alike.csv", "a single class"]),
    "a table without rows": (f"{TABLE} heads.csv", ["heads.csv has no examples"]),
    "a table in Latin-1": (f"{TABLE} latin.csv", ["line 3", "save it as UTF-8"]),
    "a folder without classes": (
        "run --data ImageFolder --data.dataset.path . --data.dataset.size [8,8]",
        ["has no images", "a folder of .png"],
    ),
    "graphs that are not there": ("run --data GraphFiles --data.paths [ward.npz]", ["ward.npz"]),
    "a damaged graph": ("run --data GraphFiles --data.paths [pets.npz]", ["numpy.savez"]),
    "a taxonomy of one column": ("view lone.csv --to x.html", ["no column 1", "commas"]),
    "arrays for an embedding": ("view pets.npz --to x.html", ["no embedding", "pets.npz"]),
    "a name outside": ("run --data Digits --name ../x", ["name must stay inside runs"]),
    "an export of an unknown kind": ("export nowhere --to x.pt", [".safetensors", ".onnx"]),
}


@pytest.mark.parametrize(("words", "cure"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_with_its_cure(words, cure, fedbolic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert refused(fedbolic(*words.split()), names=cure)
    assert {file.name for file in tmp_path.iterdir()} == {*FILES}
