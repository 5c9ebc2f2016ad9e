"""Export of trained models to files of other tools, each with a card in JSON."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import torch
from torch.export import Dim

from fedbolic.core.imports import extra
from fedbolic.run.configuration import SetupError, setting_up
from fedbolic.run.loading import load
from fedbolic.run.trained import TrainedModel, values_of

BATCH = "batch"
"""Name of the first axis of the inputs and logits of a graph."""


def export(run: Path | str, to: Path | str, *, client: int | None = None) -> tuple[Path, Path]:
    """Save the trained model of a run in the format of a file's extension, and its card.

    Args:
        run: Folder of the run.
        to: New file: ``.safetensors`` for the values by name, ``.onnx`` or ``.pt2``
            (``torch.export``) for the model with its preprocessing, which takes float32 inputs
            (images in [0, 1]) in batches of any size. The first two need the extra ``export``.
        client: Id of the client whose personal model is saved; ``None`` for the global model.

    Returns:
        The file and its card: a JSON file of the same name with the method, the classes, the
        shape of the inputs, the versions and the commit.

    Raises:
        SetupError: If the format is unknown, its package is missing, a file exists, or the model
            cannot be loaded.
    """
    to = Path(to)
    if to.suffix not in WRITERS:
        raise SetupError(f"{to} has an unknown extension: use one of {', '.join(WRITERS)}")
    card = to.with_suffix(".json")
    for file in (to, card):
        if file.exists():
            raise SetupError(f"{file} exists: remove it, or give another file with --to")
    model = load(run, client=client)
    with setting_up():
        to.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[to.suffix](model, to)
        card.write_text(json.dumps(model.card, indent=2) + "\n")
    return to, card


def _safetensors(model: TrainedModel, file: Path) -> None:
    with extra("export", "a .safetensors file"):
        save_file = import_module("safetensors.torch").save_file
    values = {name: value.contiguous() for name, value in values_of(model).items()}
    save_file(values, file, metadata={"fedbolic": json.dumps(model.card)})


def _onnx(model: TrainedModel, file: Path) -> None:
    with extra("export", "a .onnx file"):
        import_module("onnxscript")  # torch's own error is a long one
    names = {"output_names": ["logits"], "dynamic_shapes": ({0: BATCH},)}
    with _only_errors("torch.onnx"):  # a warning for every operator of packages that are missing
        torch.onnx.export(_graph(model), (), str(file), external_data=False, verbose=False, **names)


@contextlib.contextmanager
def _only_errors(name: str) -> Iterator[None]:
    """Context in which a logger is silent below errors."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _pt2(model: TrainedModel, file: Path) -> None:
    torch.export.save(_graph(model), file)


def _graph(model: TrainedModel) -> torch.export.ExportedProgram:
    """The model as a graph for batches of any size."""
    return torch.export.export(model, (model.example,), dynamic_shapes=({0: Dim(BATCH)},))


WRITERS: dict[str, Callable[[TrainedModel, Path], None]] = {
    ".safetensors": _safetensors,
    ".onnx": _onnx,
    ".pt2": _pt2,
}
"""Functions that write a model, by extension of the file."""
