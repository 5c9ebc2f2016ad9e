"""Layouts of hierarchies by slots, which take no round of training.

Google's product categories of 10 and of 100 holders with two common levels, and the strict task
of Google and of WordNet's mammals, where nobody holds the pairs that count. The places are those of
both modes; here they are published, so that all of them can be scored.
"""

import dataclasses
from pathlib import Path

import torch

from benchmarks.results import Figures, Key, Results
from benchmarks.script import FOLDER
from benchmarks.table import head, line
from fedbolic.core.rng import Rng
from fedbolic.data import (
    HOLDOUT,
    CommonLevels,
    GoogleProducts,
    HierarchySplit,
    Mammals,
    PartitionedHierarchy,
    SubtreesAndAuthority,
)
from fedbolic.federated import Evaluation, Trainer
from fedbolic.hierarchies import SlotLayout

SLOT_FIGURES = FOLDER / "measured" / "slots.csv"
"""The file of the figures on the page."""

STRICT = SubtreesAndAuthority(21)
SETTINGS = {
    "Google, 10 holders": PartitionedHierarchy(GoogleProducts(), CommonLevels(10, 2)),
    "Google, 100 holders": PartitionedHierarchy(GoogleProducts(), CommonLevels(100, 2)),
    "Google, strict": PartitionedHierarchy(GoogleProducts(), STRICT),
    "mammals, strict": PartitionedHierarchy(Mammals(), STRICT),
}
ROWS = {
    "equal slots": SlotLayout("published"),
    "counted, epsilon .1": SlotLayout("published", slots="counted"),
    "counted, epsilon 1": SlotLayout("published", slots="counted", epsilon=1.0),
    "one place for one name": SlotLayout("published", same_names="one_place"),
    "parents first": SlotLayout("published", objective="both"),
}
TOO_DEEP = {("mammals, strict", "parents first")}
"""Hierarchies that are refused, since 64 bits of an angle do not hold them."""

COLUMNS = {"map": "MAP %", "direct": "direct %", "inferred": "strict %", "radius": "radius"}


def measure_layout(method: SlotLayout, source: PartitionedHierarchy) -> Figures:
    """Scores of published places in %, and the largest radius.

    Args:
        method: The layout.
        source: The federation.
    """
    data = source.load(Rng(0))
    own = dataclasses.replace(data, holdout=None)
    *_, (state, _) = Trainer(evaluation=Evaluation(per_client=False)).run(method, own, Rng(0))
    holdout, message = data.holdout, method.broadcast(state.server_state, HOLDOUT)
    assert holdout is not None
    assert isinstance(holdout.test, HierarchySplit)
    whole = holdout.test.hierarchy
    nodes = (whole.primary_parents >= 0).nonzero().flatten()
    parents = torch.stack((nodes, whole.primary_parents[nodes]), dim=1)
    pairs = dataclasses.replace(whole, pairs=parents)
    direct = dataclasses.replace(holdout, test=HierarchySplit(pairs))
    scores = method.evaluate(message, holdout, {}, Rng(0))
    found = {"map": 100 * scores["test/map"]}
    found["direct"] = 100 * method.evaluate(message, direct, {}, Rng(0))["test/map"]
    if "test/inferred/map" in scores:
        found["inferred"] = 100 * scores["test/inferred/map"]
    return {**found, "radius": float(message["table"]["radii"].max())}


def slots_table(known: dict[Key, Figures]) -> str:
    """The table of all figures.

    Args:
        known: Figures by setting and row.
    """
    lines = [head("", "row", *COLUMNS.values())]
    for (setting, row), found in known.items():
        cells = [f"{found[name]:.2f}" if name in found else "" for name in COLUMNS]
        lines.append(line(setting, row, *cells))
    return "\n".join(lines)


def measure_slots(results: Results, root: Path | None) -> None:
    """Measure what the file of figures lacks.

    Args:
        results: The file.
        root: Data folder; ``None`` to download.
    """
    for setting, source in SETTINGS.items():
        for row, method in ROWS.items():
            if (setting, row) not in TOO_DEEP:
                own = dataclasses.replace(source, root=root)
                results.add((setting, row), measure_layout, method, own)
