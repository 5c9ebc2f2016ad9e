"""Classes that form a tree: accuracy and tree distance of errors, with prototypes and flat losses.

The tree is that of CIFAR-100's superclasses, then that of the classes in WordNet. The data folder
holds ``cifar100_subset.npz`` and WordNet's nouns. Images are halved to 16 x 16; the first 9,000 of
the training images train, the last 1,000 are validation. *Centrally* one client holds all of them,
*by superclass* 20 clients hold one each. Every row has four tries with seed 0, of which the one
with the least tree distance of validation predictions runs with five seeds.

Takes 16 minutes of CPU time.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softmax

from benchmarks.class_trees.retrieval import NamesOfImages, retrieve
from benchmarks.class_trees.rows import SUPERCLASSES, Try, WordNetClasses, distances, rows
from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import difference, head, line, spread
from fedbolic.core.rng import Rng
from fedbolic.data import (
    HOLDOUT,
    IID,
    Arrays,
    ByColumn,
    FederatedData,
    InMemory,
    Partition,
    Partitioned,
)
from fedbolic.federated import ClassifierMethod, Evaluation, Trainer

FILE = Path("cifar100_subset.npz")
NUM_VALIDATION = 1_000
SEEDS = range(5)
SETTINGS: dict[str, Partition] = {"centrally": IID(1), "by superclass": ByColumn()}
EXPECTED = "softmax, least expected distance"
"""Row of the same networks as *softmax*, which predicts the class with the least expected tree
distance under its probabilities (Karthik et al. 2021, arXiv:2104.00795)."""

FLAT = 6
"""Number of flat rows, which stand first."""


def load(root: Path | None) -> dict[str, FederatedData]:
    """The images of every setting; the last 1,000 training images begin the test part."""
    parts = Arrays(FILE).read(root, download=False)
    x, y, kept = parts.x_train, parts.y_train, len(parts.x_train) - NUM_VALIDATION
    above = SUPERCLASSES.read(None, download=False).primary_parents
    held = InMemory(
        *(x[:kept], y[:kept]),
        test=(torch.cat((x[kept:], parts.x_test)), torch.cat((y[kept:], parts.y_test))),
        client=above[y[:kept]],
    )
    return {
        name: Partitioned(held, way, test_rate=0.0, pool=2).load(Rng(0))
        for name, way in SETTINGS.items()
    }


def measure(method: ClassifierMethod, data: FederatedData, apart: Tensor, seed: int) -> Figures:
    """Scores of one trained network on validation and test images.

    Args:
        method: What trains it.
        data: Its images.
        apart: Tree distances of the classes.
        seed: Seed of the run.
    """
    trainer = Trainer(evaluation=Evaluation(every=method.rounds))
    *_, (state, _) = trainer.run(method, data, Rng(seed))
    client = data.holdout
    assert client is not None
    local, context = method.start(method.broadcast(state.server_state, HOLDOUT), client, {})
    model = method.model(data.meta)
    tensors = client.test.at(torch.arange(len(client.test)))
    with torch.no_grad():
        logits = torch.cat(
            [method.predict(model, local, {"x": x}, context) for x in tensors["x"].split(500)]
        )
    predictions = {"": logits.argmax(1)}
    if type(method).__name__ == "SoftLabels":
        predictions["expected "] = (softmax(logits, 1).double() @ apart).argmin(1)
    scores = Figures()
    for name, predicted in predictions.items():
        for part, places in {
            "validation": slice(NUM_VALIDATION),
            "test": slice(NUM_VALIDATION, None),
        }.items():
            found = _scores(apart[predicted[places], tensors["y"][places]])
            scores |= {f"{name}{part} {key}": value for key, value in found.items()}
    return scores


def _scores(apart: Tensor) -> Figures:
    """Scores of tree distances between predictions and labels."""
    wrong = apart > 0
    return {
        "accuracy": 100 * float((~wrong).double().mean()),
        "errors": float(apart[wrong].mean()),
        "all": float(apart.mean()),
    }


def table(
    setting: str, data: FederatedData, tries_of: dict[str, Try], apart: Tensor, results: Results
) -> None:
    """Choose the tries of every row, run the other seeds and print the table.

    Args:
        setting: Name of the table.
        data: Images of the setting.
        tries_of: Tries of every row.
        apart: Tree distances of the classes.
        results: File of the figures.
    """

    def of(row: str, settings: str, seed: int) -> Figures:
        return results.add(
            (setting, row, settings, str(seed)), measure, tries_of[row][settings], data, apart, seed
        )

    found: dict[str, tuple[str, dict[str, list[float]]]] = {}
    for row, tries in tries_of.items():
        for shown, prefix in {row: "", EXPECTED: "expected "}.items():
            if shown != row and row != "softmax":
                continue
            tried = {name: of(row, name, 0)[f"{prefix}validation all"] for name in tries}
            chosen = min(tried, key=tried.__getitem__)
            runs = [of(row, chosen, seed) for seed in SEEDS]
            scores = {
                key: [run[f"{prefix}test {key}"] for run in runs]
                for key in ("accuracy", "errors", "all")
            }
            found[shown] = chosen, scores
    flat = min(list(found)[:FLAT], key=lambda row: sum(found[row][1]["all"]))
    print(f"\n**{setting}**\n")
    print(
        head(
            *("row", "accuracy %", "tree distance of errors", "of all predictions"),
            *(f"less {flat!r}", "chosen"),
        )
    )
    for row, (chosen, scores) in found.items():
        gap = "" if row == flat else difference(scores["all"], found[flat][1]["all"], 3)
        cells = spread(scores["accuracy"]), spread(scores["errors"], 3), spread(scores["all"], 3)
        print(line(row, *cells, gap, chosen), flush=True)


def main() -> None:
    """Measure what the file of results lacks, and print the tables."""
    options = parser(__doc__, "class_trees.csv")
    options.add_argument("--root", type=Path, help="folder of the data")
    options.add_argument("--retrieval", action="store_true", help="retrieval by names instead")
    given = options.parse_args()
    results, data = Results(given.results, quiet=True), load(given.root)
    if given.retrieval:
        retrieve(given.root, NamesOfImages(data["centrally"], NUM_VALIDATION), results)
        return
    lengths = {SUPERCLASSES: (0.6, 1.2), WordNetClasses(given.root): (0.13, 0.26)}
    for tree, both in lengths.items():
        name = "" if tree == SUPERCLASSES else ", WordNet"
        for setting, images in data.items():
            table(setting + name, images, rows(tree, both), distances(tree), results)


if __name__ == "__main__":
    main()
