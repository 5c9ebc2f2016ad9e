"""Goals of the engines, and the comparison of a run of ``benchmarks.engines`` with them."""

from collections.abc import Mapping

from benchmarks.engines.candidates import ENGINES, PLAIN
from benchmarks.engines.plain_loop import Workload
from benchmarks.engines.rounds import Found, ask_peak
from benchmarks.table import Goal

CROWD = Workload("1000 x CNN-S", 1000, 32, channels=(6, 16), widths=(64,))
BUDGETS = (512.0, 950.0)
"""Memory budgets in MiB: the default of Batched, and just below a gigabyte."""


def goals(found: Mapping[str, Found]) -> list[Goal]:
    """All goals."""
    ours = [max(of.differences["Sequential"]) for of in found.values()]
    equal = Goal("G1", "Sequential, float32, difference", "<=", 0.0, max(ours, default=None))
    return [*speed_goals(found), equal, *memory_goals()]


def speed_goals(found: Mapping[str, Found]) -> list[Goal]:
    """G1 to G6: medians over rounds of the ratio of two candidates."""

    def faster(id: str, work: str, bound: float, name: str, other: str, kind: str = "cpu") -> Goal:
        figure = found[work].speed(name, other, kind=kind) if work in found else None
        return Goal(id, f"{work}: {name} over {other}, {kind}", ">=", bound, figure)

    ours, flower = "Sequential", ("Flower, 1 actor", "Flower, 2 actors")
    least = {name: f.speed(ours) for name, f in found.items()}
    others = [v for name, v in least.items() if name != "MLP 100x32" and v is not None]
    every = [v for v in least.values() if v is not None]
    workers = "Workers(2)"
    return [
        Goal("G1", "Sequential over plain loop, cpu, least", ">=", 0.95, min(every, default=None)),
        Goal("G1", "the same but for MLP 100x32", ">=", 1.05, min(others, default=None)),
        faster("G1", "MLP 100x32", 1.2, ours, PLAIN),
        faster("G2", "MLP", 1.25, ours, "pfl"),
        faster("G2", "CNN-S", 1.1, ours, "pfl"),
        faster("G2", "MLP 100x32", 1.7, ours, "pfl"),
        *(faster("G3", "MLP", 2.5, ours, other, "wall") for other in flower),
        *(faster("G3", "CNN-S", 1.4, ours, other, "wall") for other in flower),
        *(faster("G3", "MLP 100x32", 12, ours, other, "wall") for other in flower),
        faster("G4", "tiny", 8, "Batched", PLAIN),
        faster("G4", "logistic", 2, "Batched", PLAIN),
        faster("G5b", "CNN-L", 1.6, workers, ours, "critical"),
        faster("G5b", "CNN-L", 1.6, workers, ours, "wall"),
        Goal("G6", "Auto over the best engine, wall, least", ">=", 0.9, auto_speed(found)),
    ]


def auto_speed(found: Mapping[str, Found]) -> float | None:
    """Speed of ``Auto`` over the best of the others, on its worst workload."""
    speeds = [
        min(speed for name in ENGINES if (speed := f.speed("Auto", name, kind="wall")) is not None)
        for f in found.values()
        if "Auto" in f.costs
    ]
    return min(speeds, default=None)


def memory_goals() -> list[Goal]:
    """G8, which needs no other candidate; tests hold padding (G7) and resumed runs (G11)."""
    made = []
    for budget in BUDGETS:
        what = f"MiB of Batched(memory={budget:g}), {CROWD.name}"
        made.append(Goal("G8", what, "<=", budget, ask_peak("Batched", CROWD.name, budget)))
    return made
