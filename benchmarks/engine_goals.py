"""Goals of the engines, and the comparison of a run of ``benchmarks.engines`` with them."""

import io
import itertools
from collections.abc import Mapping

import torch

from benchmarks import plain_loop
from benchmarks.engine_candidates import ENGINES, PLAIN, RNG, WORKLOADS, Body, federation, method
from benchmarks.engine_rounds import Found, ask_peak, difference
from benchmarks.plain_loop import Workload
from benchmarks.table import Goal
from fedbolic.core.rng import Rng
from fedbolic.data import Dirichlet
from fedbolic.federated import Auto, Engine, Evaluation, Trainer, TrainerState
from fedbolic.federated.batched.batch_loader import BatchLoader
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.methods import FedAvg

CROWD = Workload("1000 x CNN-S", 1000, 32, channels=(6, 16), widths=(64,))
BUDGETS = (512.0, 950.0)
"""Memory budgets in MiB: the default of Batched, and just below a gigabyte."""
DRAWS = 20
EXAMPLES = 6000


def goals(found: Mapping[str, Found]) -> list[Goal]:
    """All goals."""
    return [*speed_goals(found), *equality_goals(found), *own_goals()]


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


def equality_goals(found: Mapping[str, Found]) -> list[Goal]:
    """Largest differences of a global parameter from the plain loop's."""
    ours = [max(f.differences["Sequential"]) for f in found.values()]
    exact = [gap for f in found.values() for gap in f.exact.values()]
    return [
        Goal("G1", "Sequential, float32, difference", "<=", 0.0, max(ours, default=None)),
        Goal(
            "G10", "engines, float64, 3 rounds, difference", "<=", 1e-10, max(exact, default=None)
        ),
    ]


def own_goals() -> list[Goal]:
    """G7, G8 and G11, which need no other candidate."""
    rows = [
        Goal("G7", f"padded work, Dirichlet {alpha}, most of {DRAWS} draws", "<=", 1.25, work)
        for alpha in (0.1, 0.5, 5.0)
        for work in [max(padded_work(alpha, Rng(seed)) for seed in range(DRAWS))]
    ]
    for budget in BUDGETS:
        what = f"MiB of Batched(memory={budget:g}), {CROWD.name}"
        rows.append(Goal("G8", what, "<=", budget, ask_peak("Batched", CROWD.name, budget)))
    named = [engine for engine in ENGINES.values() if not isinstance(engine, Auto)]
    gap = max(resume_difference(engine) for engine in named)  # a run's folder keeps Auto's choice
    return [*rows, Goal("G11", "difference of a resumed run, named engines", "<=", 0.0, gap)]


def padded_work(alpha: float, rng: Rng) -> float:
    """Examples that Batched computes in a round, padding included, over those that count."""
    labels = torch.randint(10, (EXAMPLES,), generator=rng.at("labels").generator())
    split = Dirichlet(20, alpha=alpha, cap=False, min_size=1).split(labels, rng)
    work = Workload("", len(split), 0, input_shape=(1,))
    data = federation(work, [(torch.zeros(len(part), 1), labels[part]) for part in split])
    trained = FedAvg(Body(work))  # local training by default: 5 epochs in batches of 128
    message = trained.broadcast(trained.init(data.meta, rng), 0)
    tasks = [
        ClientTask.begin(trained, message, c, {}, rng.at("client", c.id)) for c in data.clients
    ]
    loader = BatchLoader(
        sorted(tasks, key=lambda task: -len(task.plan.lengths)), trained.local.repeats
    )
    masks = [
        batch["mask"]
        for step in range(len(loader.num_active))
        for _, batch, _ in loader.batches(step)
    ]
    return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)


def resume_difference(engine: Engine) -> float:
    """Difference at round 3 between a run resumed from a checkpoint of round 2 and one without."""
    work = WORKLOADS["tiny"]
    trainer = Trainer(engine, evaluation=Evaluation(every=10))
    data = federation(work, plain_loop.examples(work))
    trained, file = method(work), io.BytesIO()
    _, (second, _), (third, _) = itertools.islice(trainer.run(trained, data, RNG), 3)
    torch.save(second.checkpoint(), file)
    file.seek(0)
    state = TrainerState.restore(torch.load(file, weights_only=True))
    again, _ = next(trainer.run(trained, data, RNG, state))
    return difference(third.server_state["parameters"], again.server_state["parameters"])
