"""Detection of images of a foreign data set, by confidence and by lengths of features.

FEDBOLIC_DATA=FOLDER python -m benchmarks.foreign_images [--dims 2 8] [--results twins.csv]

Networks of ``benchmarks.twins`` learn Fashion-MNIST with the step sizes chosen there; images of
MNIST are foreign. Each score is the area under the ROC curve of the official test sets, in percent:
50 is chance, and below it a foreign image seems the more familiar one.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from benchmarks.script import parser
from benchmarks.twins import SEEDS, Fashion, Results, spread, train, tuned
from fedbolic.data import MNIST
from fedbolic.nn import ToManifold

NETWORKS = ("Linear", "LorentzMLR, not clipped", "LorentzMLR", "PoincareMLR", "PrototypeHead")
DIMS = (2, 8, 32)


def scores(model: nn.Module, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Familiarity of images by name of the score: the larger, the less foreign.

    Short features are foreign ones: a network answers an unknown input with weak features, whose
    point lies near the origin.
    """
    body, *rest = model.children()
    features = torch.cat([body(part) for part in images.split(500)])
    yield "confidence", nn.Sequential(*rest)(features).softmax(-1).amax(-1)
    yield "length", features.norm(dim=-1)
    for entry in rest:
        if isinstance(entry, ToManifold):
            yield "distance of the point", entry.manifold.dist0(entry(features))


def areas(model: nn.Module, familiar: Tensor, foreign: Tensor) -> dict[str, float]:
    """Area under the ROC curve in percent, by name of the score."""
    truth = np.repeat([1, 0], [len(familiar), len(foreign)])
    both = torch.cat([familiar, foreign])
    return {name: 100 * float(roc_auc_score(truth, s)) for name, s in scores(model, both)}


def report(problem: Fashion, foreign: Tensor, results: Results, dims: Iterable[int] = DIMS) -> None:
    """Print one table, each row as soon as it is computed."""
    familiar, _ = problem.parts["test"]
    print(f"\n{problem.title}; {len(familiar):,} images of it, {len(foreign):,} of MNIST.\n")
    print("| dimensions | network | accuracy % | confidence | length | distance of the point |")
    print("|---|---|---|---|---|---|", flush=True)
    for dim in dims:
        for network in NETWORKS:
            lr, accuracies = tuned(problem, network, dim, results)
            models = (train(problem, network, dim, lr, seed) for seed in SEEDS)
            found = [areas(model, familiar, foreign) for model in models]
            cells = [
                spread([area[name] for area in found]) if name in found[0] else ""
                for name in ("confidence", "length", "distance of the point")
            ]
            print(f"| {dim} | {network} | {spread(accuracies)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Train the networks and print the table."""
    args = parser(__doc__, "twins.csv")
    args.add_argument("--dims", type=int, nargs="+", default=DIMS)
    given = args.parse_args()
    foreign = avg_pool2d(MNIST().read(None, download=True).x_test.float() / 255, 2)
    report(Fashion(), foreign, Results(given.results), given.dims)


if __name__ == "__main__":
    main()
