"""Size and shape of the code: lines, rooms, functions and files that one has to know.

Takes 20 seconds.
"""

import ast
import contextlib
import inspect
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import torch

import fedbolic.hierarchies
import fedbolic.methods
import fedhull
import flatland
import flynn
import hyperfed
from benchmarks.script import parser, scripts
from benchmarks.table import head, line
from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import Method, Trainer
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.manifolds import Lorentz
from fedbolic.methods import FedAvg

ROOT = Path(__file__).parents[1]
PRODUCT = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
LONG = 50


def files(*folders: str, kind: str = "py") -> list[Path]:
    """All files of a kind below some folders."""
    return [file for folder in folders for file in sorted((ROOT / folder).rglob(f"*.{kind}"))]


def num_lines(*folders: str) -> int:
    """Number of lines of Python below some folders."""
    return sum(len(file.read_text().splitlines()) for file in files(*folders))


def arrows() -> set[tuple[str, str]]:
    """Pairs of folders of which the first imports from the second, in the product."""
    found = set()
    for file in files(*PRODUCT):
        here = file.parent.relative_to(ROOT)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRODUCT):
                there = Path(*(node.module or "").split("."))
                there = there if (ROOT / there).is_dir() else there.parent
                found.add((str(here), str(there)))
    return {(here, there) for here, there in found if here != there}


def long_functions() -> list[str]:
    """Names of the product's functions that have more than :data:`LONG` lines."""
    return [
        node.name
        for file in files(*PRODUCT)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONG
    ]


def methods() -> Iterator[type[Method]]:
    """All public classes of methods."""
    for package in (fedbolic.methods, fedbolic.hierarchies, flatland, hyperfed, fedhull, flynn):
        for found in vars(package).values():
            if inspect.isclass(found) and issubclass(found, Method):
                yield found


def in_view(kind: type[Method]) -> int:
    """Number of public members of a class, inherited ones included."""
    return sum(not name.startswith("_") for name in dir(kind))


def arrows_to_method(kind: type[Method]) -> int:
    """Length of the longest chain of bases from a class to ``Method``."""
    bases = [base for base in kind.__bases__ if issubclass(base, Method)]
    return 1 + max(map(arrows_to_method, bases)) if kind is not Method else 0


def written(kind: type[Method]) -> int:
    """Number of functions and properties that a class writes itself, without special ones."""
    own = vars(kind).items()
    return sum(
        not name.startswith("__") and (inspect.isfunction(x) or isinstance(x, property))
        for name, x in own
    )


def files_run(work: Callable[[], object], below: Path) -> set[str]:
    """Files below a folder in which a function runs during some work, which may end early."""
    found = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    with contextlib.suppress(StopIteration, KernelReachedError):
        work()
    sys.setprofile(None)
    return {file for file in found if Path(file).is_relative_to(below)}


def files_of_an_exchange() -> set[str]:
    """Files of ``fedbolic/federated`` in which a function runs during a round of FedAvg."""
    data = Partitioned(Digits(), IID(3)).load(Rng(0))
    rounds = Trainer().run(FedAvg(rounds=2), data, Rng(0))
    next(rounds)
    return files_run(lambda: next(rounds), ROOT / "fedbolic" / "federated")


class KernelReachedError(Exception):
    """Raised in place of the launch of a kernel."""


def files_to_a_kernel(operation: str) -> set[str]:
    """Files of ``fedbolic`` in which a function runs before an operation launches its kernel."""
    space, x = Lorentz(torch.tensor(1.0)), torch.ones(2, 3)
    with (
        patch("fedbolic.kernels.run_on", return_value=True),
        patch("fedbolic.formulas.registrar._launcher", side_effect=KernelReachedError),
    ):
        return files_run(lambda: getattr(space, operation)(x, x), ROOT / "fedbolic")


def rows() -> Iterator[tuple[str, object]]:
    """Every figure, with its name."""
    yield "lines of the product", f"{num_lines(*PRODUCT):,}"
    yield "lines of benchmarks", f"{num_lines('benchmarks'):,}"
    yield "lines of tests", f"{num_lines('tests'):,}"
    pages = [*files(*PRODUCT, "docs", kind="md"), *ROOT.glob("*.md")]
    yield "words of pages", f"{sum(len(page.read_text().split()) for page in pages):,}"
    flat = {file.name for file in (ROOT / "fedbolic").glob("*.py")}
    yield "files flat in fedbolic", ", ".join(sorted(flat))
    held = Counter(file.parent for file in files(*PRODUCT))
    yield "rooms, and arrows between them", f"{len(held)}, {len(arrows())}"
    largest = [n for folder, n in held.items() if folder.name != "kernels"]
    yield "most modules of a room but kernels", max(largest)
    yield "benchmarks that run, and their files", f"{len([*scripts()])}, {len(files('benchmarks'))}"
    for kind in (Method, GradientMethod, ClassifierMethod):
        yield f"members in view of {kind.__name__}", in_view(kind)
    counts = {kind.__name__: written(kind) for kind in methods()}
    most = max(counts, key=counts.__getitem__)
    middle = statistics.median(counts.values())
    yield "functions to write a method, median and most", f"{middle:g}, {counts[most]} ({most})"
    steps = {kind.__name__: arrows_to_method(kind) for kind in methods()}
    yield "most classes up to Method", f"{max(steps.values())} ({max(steps, key=steps.get)})"  # type: ignore[arg-type]
    yield "files of federated/ in an exchange of FedAvg", len(files_of_an_exchange())
    roads = [len(files_to_a_kernel(name)) for name in ("dist", "cdist")]
    yield "files from dist, and from cdist, to a kernel's launch", ", ".join(map(str, roads))
    yield f"functions above {LONG} lines", ", ".join(long_functions()) or "none"


def main() -> None:
    """Print the table."""
    parser(__doc__).parse_args()
    print(head("figure", "now"))
    for row in rows():
        print(line(*row))


if __name__ == "__main__":
    main()
