"""Running and resuming one experiment, from its settings to the folder of its results."""

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fedbolic.core import check
from fedbolic.core.checksums import refuse_edited, text_digest
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData, Partitioned, Source
from fedbolic.federated import (
    Auto,
    Channel,
    ClientPrivacy,
    Cohort,
    Engine,
    Evaluation,
    Method,
    RunStoppedError,
    Sequential,
    Trainer,
    TrainerState,
)
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.engine import Remote
from fedbolic.federated.contract.method import OtherDataError
from fedbolic.federated.contract.server_states import check_server_state
from fedbolic.methods import FedAvg
from fedbolic.run.callbacks import notify
from fedbolic.run.computing import DTYPES, arithmetic, place
from fedbolic.run.configuration import INVISIBLE, SetupError, build, describe, one_line, setting_up
from fedbolic.run.embeddings import save_common_embedding
from fedbolic.run.loaded_data import facts_of, is_private, load_data, shown_data, suited_methods
from fedbolic.run.loggers import LoggerSettings, check_loggers, close_logger, make_loggers
from fedbolic.run.record import RunFolder, refuse_existing, refuse_unclear_name
from fedbolic.run.reproducible import arithmetic_of, environment, reproducible


def run(
    method: Method = FedAvg(), data: Source = Partitioned(), *,
    engine: Engine = Sequential(), cohort: Cohort = Cohort(),
    channels: tuple[Channel, ...] = (), evaluation: Evaluation = Evaluation(),
    privacy: ClientPrivacy | None = None, device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["32-true", "64-true", "bf16-mixed", "tf32"] = "32-true", threads: int = 1,
    loggers: tuple[str | LoggerSettings, ...] = (), seed: int = 0, name: str | None = None,
    runs: Path | str = Path("runs"), overwrite: bool = False,
    callbacks: Sequence[object] = (), nodes: Remote | None = None,
) -> Path:  # fmt: skip
    """Train a federated method and save its configuration, metrics and checkpoints in a folder.

    Args:
        method: Federated method to train.
        data: Source of the clients' data.
        engine: Engine that executes the clients of a round.
        cohort: Sampling of the clients that take part in a round.
        channels: Transformations of client updates on the wire, in the order of sending.
        evaluation: Frequency and kinds of evaluation.
        privacy: Differential privacy of the clients: a budget or a size of noise; null for none.
        device: Device to compute on; auto selects a GPU if one is available.
        precision: Precision in Lightning's terms; 64-true is double precision throughout. With
            tf32 a CUDA device rounds the factors of products to 11 bits: a sum of products is wrong
            by up to 2^-9 of the sum of their absolute values.
        threads: Number of CPU threads per operation, at least 1. More than one rarely speeds up
            small models.
        loggers: Loggers of Lightning: wandb, mlflow, comet, tensorboard, csv, or import paths of
            subclasses of Lightning's Logger, which are created with the run's folder as their first
            argument. For keyword arguments, give a table of logger and arguments.
        seed: Seed of all random numbers, any integer. Runs with equal settings and seed give
            identical results.
        name: Name of the run, which is saved in RUNS/NAME/seedSEED. Defaults to the stem of the
            configuration file, or "run".
        runs: Folder that contains all runs.
        overwrite: Whether to replace a run of the same name and seed.
        callbacks: Objects with any of the methods ``on_run_start``, ``on_round_end`` and
            ``on_run_end``, such as :class:`~fedbolic.run.progress.ProgressBar`.
        nodes: Remote clients to use instead of ``engine``; ``None`` for clients in this process.

    Returns:
        The run's folder, with ``config.yaml``, ``metrics.csv``, ``times.csv``, ``state.pt``,
        ``environment.json``, and ``figures`` and ``embedding.npz`` if the method gives any.

    Raises:
        SetupError: If the run cannot start; nothing has been written then.
        RunStoppedError: If training cannot continue; the last valid state is saved.
    """
    runs = Path(runs)
    settings = {k: v for k, v in locals().items() if k not in INVISIBLE}
    return _run(settings, overwrite=overwrite, callbacks=callbacks, nodes=nodes)


def _run(
    settings: dict[str, Any],
    *,
    overwrite: bool,
    callbacks: Sequence[object],
    nodes: Remote | None,
) -> Path:
    path = _path(settings)
    with contextlib.ExitStack() as held:
        with setting_up():
            _check(settings, path, overwrite=overwrite)
            held.enter_context(reproducible(place(settings)))
            job = _prepare(settings, callbacks, nodes)
            config = describe(run, settings)
            state = _begin(job)
            facts = {"data": facts_of(job.data), "config": text_digest(config.encode())}
            facts |= {"rounds": job.method.rounds}
            made = {**job.environment(), **facts}
            folder = RunFolder.create(path, config=config, environment=made, overwrite=overwrite)
            held.enter_context(folder.alone())
            if job.keeps_secrets:
                folder.restrict()
            state = dataclasses.replace(state, client_states=folder.client_states())
        job = _settle(_with_loggers(job, folder), folder, state)
        state = _train(job, folder, state)
        _finish(job, folder, state)
    return path


def _path(settings: dict[str, Any]) -> Path:
    return Path(settings["runs"]) / (settings["name"] or "run") / f"seed{settings['seed']}"


def _check(settings: dict[str, Any], path: Path, *, overwrite: bool) -> None:
    """Refuse what can be refused before anything is loaded."""
    check.instance(Method, "FedAvg()", method=settings["method"])
    check.instance(Source, "Partitioned(Digits())", data=settings["data"])
    refuse_unclear_name(settings["name"], Path(settings["runs"]))
    if not overwrite:
        refuse_existing(path)


def dry_run(**settings: Any) -> FederatedData | None:
    """Check a run as if it began: its settings, its data, and whether the method can learn from it.

    Args:
        **settings: As for :func:`run`.

    Returns:
        The clients' data; ``None`` for a private run, which shows them to nobody.

    Raises:
        SetupError: If the run could not start.
    """
    call = inspect.signature(run).bind(**settings)
    call.apply_defaults()
    asked = call.arguments
    with setting_up():
        _check(asked, _path(asked), overwrite=asked["overwrite"])
        with reproducible(place(asked)):
            job = _prepare(asked, (), None)
            _begin(job)
    return job.open_data


def resume(
    path: str | Path, *, callbacks: Sequence[object] = (), nodes: Remote | None = None
) -> bool:
    """Resume a stopped run, with results bit for bit equal to those of an uninterrupted run.

    Args:
        path: Folder of the run.
        callbacks: As for :func:`run`.
        nodes: As for :func:`run`.

    Returns:
        True if rounds remained to be run, False if the run was finished.

    Raises:
        SetupError: If there is no run, or this machine or configuration would change its results.
        RunStoppedError: If training cannot continue; the last valid state is saved.
    """
    path = Path(path)
    with contextlib.ExitStack() as held:
        with setting_up():
            folder = RunFolder.open(path)
            if folder.is_complete():
                return False
            held.enter_context(folder.alone())
            made = folder.environment
            refuse_edited(folder.config, made.get("config"))
            settings = build(run, ["--config", str(folder.config)])
            held.enter_context(reproducible(place(settings)))
            job = _prepare(settings, callbacks, nodes)
            _refuse_other_arithmetic(made, job.environment())
            if job.keeps_secrets:
                folder.restrict()
            state = job.trainer.begin(job.method, job.data, job.stream)
            checkpoint = folder.load()
            state = dataclasses.replace(state, client_states=folder.client_states())
            if checkpoint is not None:
                initial, state = state.server_state, TrainerState.restore(checkpoint)
                first = job.data.clients[0].id
                check_server_state(
                    folder.checkpoint, job.method, state.server_state, initial, first
                )
        unfinished = state.round < job.method.rounds
        if unfinished:
            job = _settle(_with_loggers(job, folder), folder, state)
            state = _train(job, folder, state)
        # a finished run may have been killed before it saved its figures
        _finish(job, folder, state, anew=unfinished)
    return unfinished


@dataclass(frozen=True)
class _Job:
    """A run that is ready to start, with all objects built and the data loaded."""

    method: Method
    data: FederatedData
    trainer: Trainer
    device: torch.device
    settings: dict[str, Any]
    callbacks: Sequence[object]
    loggers: Sequence[Any] = ()

    @property
    def stream(self) -> Rng:
        """The random stream of all rounds."""
        return Rng(self.settings["seed"]).at("run")

    @property
    def keeps_secrets(self) -> bool:
        """True if the run's folder holds keys until the last round has ended."""
        return self.trainer.privacy is not None or self.method.traits.keeps_secrets

    @property
    def open_data(self) -> FederatedData | None:
        """The clients' data, if the run is not private and the clients are in this process."""
        is_remote = isinstance(self.trainer.engine, Remote)
        is_closed = self.keeps_secrets or is_private(self.settings) or is_remote
        return None if is_closed else self.data

    def arithmetic(self) -> contextlib.AbstractContextManager[None]:
        """Context for training and evaluating clients in the run's precision."""
        return arithmetic(self.settings["precision"], self.device)

    def environment(self) -> dict[str, Any]:
        """Settings and versions that a resumed run must repeat to be equal bit for bit."""
        remote = isinstance(self.trainer.engine, Remote)
        engine = self.trainer.engine if remote else self.settings["engine"]
        threads, precision = self.settings["threads"], self.settings["precision"]
        same = {"threads": threads, "precision": precision, **arithmetic_of(self.device)}
        deployment = {"deployment": engine.deployment} if isinstance(engine, Remote) else {}
        return environment(engine=type(engine).__name__, **same, **deployment)


def _prepare(settings: dict[str, Any], callbacks: Sequence[object], nodes: Remote | None) -> _Job:
    check_loggers(settings["loggers"])
    device = place(settings)
    data = load_data(settings, nodes)
    engine = settings["engine"] if nodes is None else nodes
    parts = (settings[name] for name in ("cohort", "channels", "evaluation", "privacy"))
    trainer = Trainer(engine, *parts)
    data = data.to(device, DTYPES[settings["precision"]])
    return _Job(settings["method"], data, trainer, device, settings, callbacks)


def _begin(job: _Job) -> TrainerState:
    try:
        return job.trainer.begin(job.method, job.data, job.stream)
    except OtherDataError as error:
        fitting = ", ".join(suited_methods(error.found))
        raise SetupError(f"{error}: take other data, or one of {fitting}") from error


def _with_loggers(job: _Job, folder: RunFolder) -> _Job:
    """The job with its loggers, which may write to the run's folder as soon as they are created."""
    made = make_loggers(job.settings["loggers"], folder.path)
    return dataclasses.replace(job, loggers=made)


def _refuse_other_arithmetic(before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = {
        name: (before.get(name), now.get(name))
        for name in ("engine", "threads", "precision", "device", "gpu", "cuda_flags", "packages")
        if before.get(name) != now.get(name)
    }
    if changed:
        raise SetupError(
            f"the run started with another arithmetic, so its results would differ: {changed} "
            "(before, now)"
        )


def _settle(job: _Job, folder: RunFolder, state: TrainerState) -> _Job:
    """The job with its final engine; ``Auto`` reuses the engine saved in the folder, if any."""
    trainer = job.trainer
    if not isinstance(trainer.engine, Auto):
        return job
    with setting_up():
        chosen = folder.engine
        if chosen is not None:
            trainer = dataclasses.replace(trainer, engine=trainer.engine.named(chosen))
    if chosen is None:
        with job.arithmetic():
            trainer, seconds = trainer.settle(job.method, job.data, job.stream, state)
        with _disk_errors_stop(folder):
            folder.save_engine(repr(trainer.engine), seconds)
    return dataclasses.replace(job, trainer=trainer)


def _train(job: _Job, folder: RunFolder, state: TrainerState) -> TrainerState:
    """Run the remaining rounds, save each one, and return the last state."""
    rounds = job.method.rounds
    exchanges = job.trainer.run(job.method, job.data, job.stream, state)
    told = {"round": state.round, "rounds": rounds, "data": job.open_data}
    notify(job.callbacks, "on_run_start", **told)
    status = "failed"
    try:
        began = time.perf_counter()
        with job.arithmetic(), contextlib.closing(exchanges):
            for state, rows in exchanges:
                with _disk_errors_stop(folder):
                    seconds = time.perf_counter() - began
                    forget = job.keeps_secrets and state.round == rounds
                    folder.save(state.checkpoint(), rows, seconds, forget=forget)
                began = time.perf_counter()
                if state.exchange == 0 and not state.attempt:  # a round has ended
                    common = {row.name: row.value for row in rows if row.client is None}
                    for each in job.loggers:
                        each.log_metrics(metrics=common, step=state.round)
                    told = {"round": state.round, "rounds": rounds, "rows": rows}
                    notify(job.callbacks, "on_round_end", **told)
        status = "success"
    finally:
        for each in job.loggers:
            close_logger(each, status)  # some write only now
        notify(job.callbacks, "on_run_end")
    return state


@contextlib.contextmanager
def _disk_errors_stop(folder: RunFolder) -> Iterator[None]:
    """Stop the run on disk errors, with a message about how to continue."""
    try:
        yield
    except OSError as error:
        raise RunStoppedError(
            f"{folder.path} cannot be written ({one_line(error)}): free disk space, then continue "
            f"from the last checkpoint with `fedbolic resume {folder.path}`"
        ) from error


def _finish(job: _Job, folder: RunFolder, state: TrainerState, *, anew: bool = True) -> None:
    """Save embedding and figures unless they exist, and mark the run as finished."""
    if (not anew and folder.figures()) or _save_figures(job, folder, state):
        with contextlib.suppress(OSError):  # the next resume looks again
            folder.mark_complete()


def _save_figures(job: _Job, folder: RunFolder, state: TrainerState) -> bool:
    """Save figures and embedding; a failure is only a warning because the run is complete."""
    try:
        stream = job.stream.at("figures")
        with torch.no_grad(), stream.as_torch_global(job.device):
            data = shown_data(job.data, job.settings)
            if isinstance(job.method, Reporting):
                save_common_embedding(folder, job.method, state.server_state, data)
                folder.save_figures(job.method.figures(state.server_state, data))
        return True
    except OSError as error:
        logger.warning("the figures of %s cannot be saved: %s", folder.path, one_line(error))
    except Exception:
        logger.warning("the figures of %s cannot be saved", folder.path, exc_info=True)
    return False
