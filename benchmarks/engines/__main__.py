"""Time and memory of engines, a plain PyTorch loop and other frameworks, on the same work.

    python -m benchmarks.engines [--workloads NAME ...] [--rounds N] [--peers PYTHON [NAME ...]]

Takes 5 minutes, 15 with peers.
"""

import argparse

from benchmarks.engines import papers
from benchmarks.engines.candidates import ENGINES, PEERED, PLAIN, WORKLOADS
from benchmarks.engines.goals import CROWD, goals
from benchmarks.engines.peers import PEERS
from benchmarks.engines.plain_loop import Workload
from benchmarks.engines.rounds import Found, measure, peak
from benchmarks.script import parser
from benchmarks.table import goal_table, head, line, middle

COLUMNS = (
    *("CPU ms", "wall ms", "CPU, times the plain loop", "wall, times the plain loop", "peak MiB"),
    "difference, 1 round",
)


def row(name: str, found: Found) -> str:
    """One line of a workload's table."""
    costs = found.costs.get(name)
    if not costs:
        return line(name, found.failed.get(name, "not installed"), *[""] * (len(COLUMNS) - 1))
    return line(
        name,
        middle([1000 * cost.cpu for cost in costs], 0),
        middle([1000 * cost.wall for cost in costs], 0),
        middle(found.speeds(name)),
        middle(found.speeds(name, kind="wall")),
        f"{found.peaks[name]:.0f}" if name in found.peaks else "",
        "" if name == PLAIN else f"{found.differences[name][0]:.0e}",
    )


def title(work: Workload) -> str:
    """One-line description of a workload."""
    layers = [f"conv{n}" for n in work.channels] + [str(n) for n in work.widths]
    network = "-".join([*layers, str(work.num_classes)])
    shape = "x".join(map(str, work.input_shape))
    return (
        f"**{work.name}**: {work.num_clients} clients x {work.size} examples of {shape}, batch "
        f"{work.batch_size}, network {network}"
    )


def report(names: list[str], rounds: int, interpreters: dict[str, str]) -> None:
    """Print a table for every workload, then the table of goals."""
    found: dict[str, Found] = {}
    for name in names:
        if name in papers.PAPERS:
            of_paper = papers.measure(name, rounds)
            print(f"\n**{name}**, by hand and by engines\n\n{head('', *COLUMNS)}")
            for candidate in of_paper.costs:
                print(row(candidate, of_paper), flush=True)
            continue
        peers = interpreters if name in PEERED else {}
        found[name] = measure(WORKLOADS[name], rounds, peers)
        print(f"\n{title(WORKLOADS[name])}\n\n{head('', *COLUMNS)}")
        for candidate in (PLAIN, *ENGINES, *peers):
            print(row(candidate, found[name]), flush=True)
    print(f"\n{goal_table(goals(found))}")


def main() -> None:
    """Measure here and in the peers' environment."""
    args = parser(__doc__)
    args.add_argument(
        "--workloads", nargs="+", default=[*WORKLOADS, *papers.PAPERS], metavar="NAME"
    )
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument(
        "--peers",
        nargs="+",
        default=[None],
        metavar=("PYTHON", "NAME"),
        help="with pfl, flwr[simulation], blazefl; and names, by default of all",
    )
    args.add_argument("--peak", metavar="CANDIDATE", help=argparse.SUPPRESS)
    args.add_argument("--memory", type=float, help=argparse.SUPPRESS)
    given = args.parse_args()
    if given.peak:
        work = {**WORKLOADS, CROWD.name: CROWD}[given.workloads[0]]
        print(peak(given.peak, work, given.memory))
        return
    python, *names = given.peers
    interpreters = {name: python for name in names or PEERS if python}
    if not interpreters:
        print(f"{'; '.join(PEERS)}: skipped, no interpreter given (--peers PYTHON)")
    report(given.workloads, given.rounds, interpreters)


if __name__ == "__main__":
    main()
