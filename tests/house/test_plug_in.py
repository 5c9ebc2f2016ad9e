"""The examples of the layers' page run unchanged, and the models they train beat chance."""

import pickle
import shutil

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import fedbolic.nn
from tests.house.test_readme import ROOT, blocks

PAGE = ROOT / "fedbolic" / "nn" / "README.md"
EXAMPLES = {code.strip(): line for line, code in blocks(PAGE.read_text(), "python")}
NUM_NODES, NUM_TRAIN, NUM_TEST, NUM_CLASSES = 700, 30, 100, 3


def example(word):
    """The only example that contains a word."""
    (code,) = [code for code in EXAMPLES if word in code]
    return code


def run(code):
    names = {"__name__": "example"}
    exec(compile(code, f"{PAGE.name}:{EXAMPLES[code]}", "exec"), names)
    return names


def planetoid(folder):
    """A graph of three groups in Planetoid's files: most edges stay within a group.

    A node has three words, each from the ten of its group with probability 0.6.
    """
    rng = np.random.default_rng(0)
    label = np.arange(NUM_NODES) % NUM_CLASSES
    words = np.zeros((NUM_NODES, 10 * NUM_CLASSES), dtype=np.float32)
    graph = {i: [] for i in range(NUM_NODES)}
    for i in range(NUM_NODES):
        for _ in range(3):
            own = rng.random() < 0.6
            words[i, 10 * label[i] + rng.integers(10) if own else rng.integers(30)] = 1
            j = rng.integers(NUM_NODES)
            if label[i] == label[j] or rng.random() < 0.1:
                graph[i].append(int(j))
                graph[int(j)].append(i)
    known = NUM_NODES - NUM_TEST
    hot = np.eye(NUM_CLASSES, dtype=np.int32)[label]
    folder.mkdir(parents=True)
    for name, part in (("x", slice(NUM_TRAIN)), ("tx", slice(known, None)), ("allx", slice(known))):
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(csr_matrix(words[part])))
        labels = name.replace("x", "y")
        (folder / f"ind.cora.{labels}").write_bytes(pickle.dumps(hot[part]))
    (folder / "ind.cora.graph").write_bytes(pickle.dumps(graph))
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(known, NUM_NODES))))


def test_the_page_has_the_examples_that_are_tested_here():
    words = ["load_digits()\nx = torch.tensor(digits.images", "Planetoid("]
    words += ["Curvature(1.0, bounds", "torch.compile", "HGCN(HGCNConv("]
    words += ["Adapted(", "Conv2d(space", "body.decode("]
    assert {example(word) for word in words} == set(EXAMPLES)


def test_the_page_names_every_layer():
    layers = {name for name in fedbolic.nn.__all__ if name[0].isupper()}
    missing = {name for name in layers if f"`{name}`" not in PAGE.read_text()}
    assert missing == set()


def test_a_hyperbolic_head_trains():
    assert run(example("digits.images"))["accuracy"] > 0.8


def test_a_lorentz_gcn_trains(tmp_path, monkeypatch):
    planetoid(tmp_path / "planetoid" / "Cora" / "raw")
    monkeypatch.chdir(tmp_path)
    assert run(example("Planetoid("))["accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.data
def test_a_lorentz_gcn_trains_on_cora(tmp_path, monkeypatch, data_root):
    raw = tmp_path / "planetoid" / "Cora" / "raw"
    shutil.copytree(data_root / "planetoid" / "Cora" / "raw", raw)
    monkeypatch.chdir(tmp_path)
    assert run(example("Planetoid("))["accuracy"] > 0.7  # the largest class has 0.32


def test_a_language_model_learns_to_continue_a_text():
    names = run(example("body.decode("))
    assert names["written"] == names["text"][2:12].tolist()


@pytest.mark.parametrize(
    "word",
    [
        *("Curvature(1.0, bounds", "torch.compile", "HGCN(HGCNConv("),
        *("Adapted(", "Conv2d(space"),
    ],
)
def test_a_short_example_runs(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(example(word))
