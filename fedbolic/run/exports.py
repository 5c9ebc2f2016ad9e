"""Export of results to files of other tools, each with a card in JSON."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from fedbolic.core.imports import extra
from fedbolic.hierarchies import Embedding
from fedbolic.knowledge import KnowledgeGraph
from fedbolic.run.configuration import SetupError, setting_up
from fedbolic.run.loading import load_result
from fedbolic.run.trained import TrainedModel, values_of

BATCH = "batch"
"""Name of the first axis of the inputs and logits of a graph."""


def export(run: Path | str, to: Path | str, *, client: int | None = None) -> tuple[Path, Path]:
    """Save the result of a run in the format of a file's extension, and its card.

    Args:
        run: Folder of the run.
        to: New file. For a trained model: ``.safetensors`` for the values by name, ``.onnx`` or
            ``.pt2`` (``torch.export``) for the model with its preprocessing, which takes float32
            inputs (images in [0, 1]) in batches of any size. For an embedded hierarchy: ``.csv`` or
            ``.parquet`` for a table, ``.npz`` or ``.safetensors`` for
            :meth:`~fedbolic.hierarchies.Embedding.load`. For a knowledge graph: ``.npz``.
            ``.safetensors`` and ``.onnx`` need the extra ``export``, ``.parquet`` the extra of that
            name.
        client: Id of the client whose personal result is saved; ``None`` for the global one.

    Returns:
        The file and its card: a JSON file of the same name with the method, the classes and the
        shape of the inputs, or the number of nodes and their space, the versions and the commit.

    Raises:
        SetupError: If the format is unknown or that of another kind of result, its package is
            missing, a file exists, or the result cannot be loaded.
    """
    to = Path(to)
    if to.suffix not in WRITERS:
        raise SetupError(f"{to} has an unknown extension: use one of {', '.join(WRITERS)}")
    card = to.with_suffix(".json")
    for file in (to, card):
        if file.exists():
            raise SetupError(f"{file} exists: remove it, or give another name")
    result, facts = load_result(run, client=client)
    kind, fitting = RESULT_KINDS[type(result)]
    if to.suffix not in fitting:
        raise SetupError(f"{to.suffix} cannot hold {kind}: use {', '.join(fitting)}")
    with setting_up():
        to.parent.mkdir(parents=True, exist_ok=True)
        fitting[to.suffix](result, to, facts)
        card.write_text(json.dumps(facts, indent=2) + "\n")
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


MODEL_WRITERS: dict[str, Callable[[TrainedModel, Path, dict[str, Any]], None]] = {
    ".safetensors": lambda model, file, _: _safetensors(model, file),
    ".onnx": lambda model, file, _: _onnx(model, file),
    ".pt2": lambda model, file, _: _pt2(model, file),
}
EMBEDDING_WRITERS: dict[str, Callable[[Embedding, Path, dict[str, Any]], None]] = {
    ".csv": lambda embedding, file, _: embedding.to_csv(file),
    ".parquet": lambda embedding, file, _: embedding.to_parquet(file),
    ".safetensors": Embedding.save,
    ".npz": Embedding.save,
}
RESULT_KINDS: dict[type, tuple[str, dict[str, Callable[[Any, Path, dict[str, Any]], None]]]] = {
    TrainedModel: ("a trained model", MODEL_WRITERS),
    Embedding: ("an embedding of nodes", EMBEDDING_WRITERS),
    KnowledgeGraph: ("a knowledge graph", {".npz": KnowledgeGraph.save}),
}
"""Kinds of results in words, and the functions that write each by the extension of the file."""

WRITERS = tuple(dict.fromkeys(ending for _, writers in RESULT_KINDS.values() for ending in writers))
"""Extensions of all files."""
