"""Results of finished runs, loaded as what they are used as."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch

from fedbolic.core import check, tree
from fedbolic.core.checksums import DamagedError, refuse_edited
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data import HOLDOUT, Client, Examples, FederatedData, HierarchySplit, TripleSplit
from fedbolic.federated.contract.capabilities import NodePlaces, Reporting
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.server_states import check_server_state
from fedbolic.federated.contract.wrapping_method import predictor_of
from fedbolic.hierarchies import Embedding
from fedbolic.knowledge import KnowledgeGraph
from fedbolic.run.computing import DTYPES
from fedbolic.run.configuration import SetupError, build, one_line, setting_up
from fedbolic.run.experiment import run
from fedbolic.run.loaded_data import load_data, numbering_of, shown_data
from fedbolic.run.record import RunFolder
from fedbolic.run.trained import TrainedModel

Answer = TypeVar("Answer")
LoadedResult: TypeAlias = TrainedModel | Embedding | KnowledgeGraph


def load(path: str | Path, *, client: int | None = None) -> LoadedResult:
    """Load the result of a run: a module in evaluation mode, an embedding or a knowledge graph.

    The configuration of a run is code, as for ``fedbolic resume``: load no folder that you would
    not run. The global model needs no data. A personal model is loaded with the client's data,
    which it may depend on, and an embedding or graph with the names in the data: its parents or
    triples are those that the client holds, or those of the server's test set; the global result
    of a private run has none.

    Args:
        path: Folder of the run, such as ``runs/fedavg/seed0``.
        client: Id of the client whose personal model or embedding is loaded; ``None`` for the
            global one.

    Raises:
        SetupError: If there is no run, its configuration was edited, the method has no such model
            or embedding, there is no such client, or the model takes anything but one tensor of
            inputs.

    Example:
        >>> import tempfile
        >>> from fedbolic.run import run
        >>> from fedbolic.methods import FedAvg
        >>> folder = run(FedAvg(rounds=1), runs=Path(tempfile.mkdtemp()))
        >>> model = load(folder)
        >>> model(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([3, 10])
    """
    return load_result(path, client=client)[0]


def load_result(
    path: str | Path, *, client: int | None = None
) -> tuple[LoadedResult, dict[str, Any]]:
    """Result of :func:`load`, and its description as plain values.

    Args:
        path: As for :func:`load`.
        client: As for :func:`load`.

    Raises:
        SetupError: As :func:`load`.
    """
    with setting_up():
        found = _Finished.open(Path(path), client)
        kind = found.method.traits.learns_from
        if issubclass(Examples, kind):
            return found.model()
        if issubclass(kind, HierarchySplit):
            return found.embedding()
        if issubclass(kind, TripleSplit):
            return found.knowledge()
        raise SetupError(
            f"{type(found.method).__name__} predicts from {kind.__name__}, not from one tensor of "
            f"inputs, so its model cannot stand alone: {found.values}"
        )


@dataclass(frozen=True)
class _Finished:
    """A run whose result is loaded, for one client or for the server."""

    folder: RunFolder
    settings: dict[str, Any]
    checkpoint: dict[str, Any]
    client: int | None

    @classmethod
    def open(cls, path: Path, client: int | None) -> "_Finished":
        folder = RunFolder.open(path)
        refuse_edited(folder.config, folder.environment.get("config"))
        settings = build(run, ["--config", str(folder.config)])
        found = cls(folder, settings, folder.read_checkpoint(), client)
        if found.checkpoint["round"] < found.method.rounds:
            done = f"{found.checkpoint['round']} of {found.method.rounds} rounds"
            logger.warning("%s has completed %s: its result is that of then", path, done)
        return found

    @property
    def method(self) -> Method:
        return self.settings["method"]

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.settings["precision"]]

    @property
    def values(self) -> str:
        """The way to the trained values, for errors about results that have no other form."""
        path = str(self.folder.path)
        return f"fedbolic.run.RunFolder.open({path!r}).read_checkpoint() has its values"

    def model(self) -> tuple[TrainedModel, dict[str, Any]]:
        """The trained model and its card."""
        party, names = self._party()
        self._check_state(party)
        parts = self._ask(partial(predictor_of, self.method), party)
        if parts is None:
            raise SetupError(self._no_model(party))
        source = self.settings["data"]
        own = {
            "num_classes": party.meta.num_classes,
            "class_names": list(names),
            "input_shape": list(source.raw_shape(party.meta.input_shape)),
        }
        card = self._card(own)
        try:
            return TrainedModel(*parts, source=source, meta=party.meta, card=card), card
        except (LookupError, RuntimeError) as error:
            raise SetupError(
                f"{type(self.method).__name__} cannot predict from one tensor of inputs "
                f"({one_line(error)}), so its model cannot stand alone: {self.values}"
            ) from error

    def embedding(self) -> tuple[Embedding, dict[str, Any]]:
        """The embedded hierarchy and its card; names and parents are those of the data."""
        name, data, party = type(self.method).__name__, *self._named()
        found = self._places(party)
        if found is None and data.clients and self._places(data.clients[0]):
            raise SetupError(f"{name} has no global embedding: give client=0 for a personal one")
        if found is None:
            raise SetupError(f"{name} embeds no nodes: {self.values}")
        nodes, places = found
        split = party.test if self.client is None else party.train
        embedding = Embedding.of(cast(HierarchySplit, split).hierarchy, places, nodes)
        own = {"num_nodes": len(embedding), "places": type(places).__name__, "dim": places.dim}
        return embedding, self._card(own)

    def knowledge(self) -> tuple[KnowledgeGraph, dict[str, Any]]:
        """The trained knowledge graph and its card; names and triples are those of the data."""
        name, party = type(self.method).__name__, self._named()[1]
        found = self._ask(cast(Reporting, self.method).triple_tables, party)
        if found is None:
            raise SetupError(f"{name} has no global tables: give client=0 for personal ones")
        split = party.test if self.client is None else party.train
        graph = KnowledgeGraph.of(cast(TripleSplit, split), found["score"], found["tables"])
        own = {"num_entities": len(graph), "num_relations": len(graph.relations)}
        return graph, self._card({**own, "score": dict(found["score"])})

    def _named(self) -> tuple[FederatedData, Client]:
        """The data, whose names are those of the rows, and the party whose result is loaded."""
        data = self._data()
        shown = shown_data(data, self.settings).holdout
        party = shown if self.client is None else self._client(data)
        facts = self.folder.environment.get("data")
        before = facts.get("numbering") if isinstance(facts, dict) else None
        if before not in (None, numbering_of(data)):
            raise SetupError(
                f"the data of {self.folder.path} have other nodes than when it was trained, so its "
                "places have no names: restore the files"
            )
        if party is None:
            raise SetupError(f"the server of {self.folder.path} knows no names: give client=0")
        self._check_state(party)
        return data, party

    def _places(self, party: Client) -> NodePlaces | None:
        method = self.method
        return self._ask(method.node_places, party) if isinstance(method, Reporting) else None

    def _data(self) -> FederatedData:
        return load_data(self.settings).to("cpu", self.dtype)

    def _client(self, data: FederatedData) -> Client:
        if self.client is None or not 0 <= self.client < len(data.clients):
            last = len(data.clients) - 1
            raise SetupError(f"there is no client {self.client}: the ids are 0 .. {last}")
        return data.clients[self.client]

    def _party(self) -> tuple[Client, tuple[str, ...]]:
        """The client whose model is loaded, or the server's test set without examples."""
        facts = self.folder.environment.get("data")
        if self.client is None and facts is not None:
            meta = _read_facts(facts)
            x = torch.zeros(0, *meta.input_shape, dtype=self.dtype)
            none = Examples({"x": x, "y": torch.zeros(0, dtype=torch.int64)})
            return Client(HOLDOUT, none, none, none, meta), tuple(facts["class_names"])
        data = self._data()
        if self.client is None:
            none = data.clients[0].train.part(torch.arange(0))
            return Client(HOLDOUT, none, none, none, data.meta), data.class_names
        return self._client(data), data.class_names

    def _check_state(self, party: Client) -> None:
        """Refuse a server state that the method cannot have reached."""
        method, stored = self.method, self.checkpoint["server_state"]
        initial = method.init(party.meta, Rng(self.settings["seed"]))
        initial = tree.to(initial, "cpu", self.dtype)
        check_server_state(self.folder.checkpoint, method, stored, initial, party.id)

    def _ask(self, ask: Callable[[Tree, Client, Tree], Answer], party: Client) -> Answer:
        """Result of a function of the method; whatever it raises, the file is damaged."""
        states = self.checkpoint["client_states"]
        message = self.method.broadcast(self.checkpoint["server_state"], party.id)
        try:
            return ask(message, party, states.get(party.id, {}))
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            fault = f"holds no result of {type(self.method).__name__}: {error!r}"
            raise DamagedError(self.folder.checkpoint, fault) from error

    def _no_model(self, party: Client) -> str:
        """The sentence about a model that is not there."""
        name = type(self.method).__name__
        if self.client is None and self._is_personal(party):
            return f"{name} has no global model: give client=0 for a personal one"
        return f"{name} has no network that gives logits: {self.values}"

    def _is_personal(self, party: Client) -> bool:
        """True if the clients have models, even if there is no global one."""
        one = Client(0, party.train, party.validation, party.test, party.meta)
        try:
            return self._ask(partial(predictor_of, self.method), one) is not None
        except ValueError:  # the model depends on the data of the client
            return True

    def _card(self, own: dict[str, Any]) -> dict[str, Any]:
        """Description of the result as plain values, with its own facts among them."""
        made, kind = self.folder.environment, type(self.method)
        return {
            "method": f"{kind.__module__}.{kind.__qualname__}",
            "client": self.client,
            "rounds": self.checkpoint["round"],
            "seed": self.settings["seed"],
            **own,
            "packages": made.get("packages"),
            "commit": made.get("commit"),
        }


def _read_facts(facts: Any) -> Meta:
    """Facts about the data as recorded, checked before a model of that size is made."""
    own: Mapping[str, Any] = facts if isinstance(facts, dict) else {}
    num_classes, num_clients = own.get("num_classes"), own.get("num_clients")
    shape, names = own.get("input_shape"), own.get("class_names")
    if isinstance(shape, list) and isinstance(names, list):
        counts = [x for x in (num_classes, num_clients, *shape) if type(x) is int and x >= 0]
        possible = len(counts) == 2 + len(shape) and counts[0] <= check.MOST_CLASSES
        if possible and math.prod(counts[2:]) <= check.MOST_FEATURES:
            return Meta(counts[0], tuple(counts[2:]), counts[1])
    raise SetupError("environment.json is damaged: its facts about the data are impossible")
