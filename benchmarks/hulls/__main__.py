"""FedHull's accuracy, bytes and leaks: corners, cores, reference points, rivals, more dimensions.

    FEDBOLIC_DATA=DATA python -m benchmarks.hulls [--tables NAME ...] [--results hulls.csv]
    python -m benchmarks.hulls --sweeps RUNS [--plot FILE]

*olsson*: all methods on 60 splits of Olsson's cells; the paper's intervals are over partitions of
one split with 48 test cells. *pairs*: candidates for the reference point. *hulls*: corners without
quantiser or protocol, one hull for each class and one for each class at each client. *protocol*:
every row through the whole protocol, with the errors of the grouping and what the hulls reveal.
*leakage*: cores together with a least count of points in a bin. *peeling*: CPU seconds for a
million points. *rivals*: other summaries of a client's classes. *times*: sizes of hulls, time by
stage and bytes, a minute. *dimensions*: 2, 3 and 5 dimensions, on
embeddings in ``--folder``, which are computed if it lacks them. *distortion*: hulls and accuracy
over the width of the bins on Olsson's cells, a minute, drawn into the file ``--plot``. Every figure
but times is kept in the file of results as it is computed; a run that was interrupted goes on from
there. With ``--sweeps``, accuracy over a parameter, as in Figure 5, in seconds.

Takes hours in all; a table takes 10 minutes and more.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.hulls import tables as hull_tables
from benchmarks.hulls.dimensions import dimensions_table
from benchmarks.hulls.distortion import distortion_table
from benchmarks.hulls.figure5 import draw_sweeps
from benchmarks.hulls.rivals import rivals_table
from benchmarks.hulls.times import times_table
from benchmarks.results import Results
from benchmarks.script import parser

TABLES: dict[str, Callable[[Results, int], None]] = {
    "olsson": hull_tables.olsson_table,
    "pairs": hull_tables.pairs_table,
    "hulls": hull_tables.hulls_table,
    "protocol": hull_tables.protocol_table,
    "leakage": hull_tables.leakage_table,
    "peeling": hull_tables.peeling_table,
    "rivals": rivals_table,
    "times": times_table,
}


def main() -> None:
    """Compute and print the tables."""
    args, names = parser(__doc__, "hulls.csv"), [*TABLES, "dimensions", "distortion"]
    args.add_argument("--tables", nargs="+", choices=names, default=names)
    args.add_argument("--seeds", type=int, default=10, help="draws of every set")
    args.add_argument("--folder", type=Path, default=Path("embeddings"), help="embeddings")
    args.add_argument("--plot", type=Path, help="file of the figure of distortion or of sweeps")
    args.add_argument("--sweeps", type=Path, nargs="+", help="show these sweeps instead")
    args.add_argument("--clients", action="store_true", help="accuracy of sweeps at the clients")
    given = args.parse_args()
    if given.sweeps:
        draw_sweeps(given.sweeps, given.plot or Path("figure5.png"), clients=given.clients)
        return
    tables = {**TABLES, "dimensions": partial(dimensions_table, folder=given.folder)}
    tables["distortion"] = partial(distortion_table, plot=given.plot)
    for table in given.tables:
        tables[table](Results(given.results), given.seeds)


if __name__ == "__main__":
    main()
