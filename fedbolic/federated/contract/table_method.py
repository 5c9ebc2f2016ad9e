"""Base of methods whose parameters are tables of rows, of which clients train and send some."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Split
from fedbolic.federated.aggregators.aggregator import Aggregator, Mean
from fedbolic.federated.aggregators.row_mean import TableMeans
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, find_outside
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.traits import Traits
from fedbolic.nn.loss.burn_in import BurnInSchedule
from fedbolic.nn.loss.negatives import NegativeSampler
from fedbolic.optim import SGD, Adam


class TableMethod(GradientMethod, Reporting):
    """Base of methods that learn tables of embeddings, of which every client holds some rows.

    With ``sends`` as ``rows``, a payload holds what
    :class:`~fedbolic.federated.aggregators.row_mean.TableMeans` adds; as ``table``, the change of
    whole tables, in which a client without a row counts as a change of 0.
    """

    learns_from: ClassVar[type[Split]]
    """Kind of examples of the clients."""

    # annotations, not fields: a subclass is a dataclass and orders its own
    rounds: int
    lr: float
    optimizer: Adam | SGD
    optimizer_state: Literal["personal", "reset"]
    schedule: BurnInSchedule
    max_weight: int
    sends: Literal["rows", "table"]
    server_lr: float

    def check_settings(self, negatives: NegativeSampler | None) -> None:
        """Refuse common settings that are out of range.

        Args:
            negatives: Draws of negative examples.

        Raises:
            ValueError: If one is.
        """
        check.at_least(1, rounds=self.rounds, max_weight=self.max_weight)
        check.positive(lr=self.lr, server_lr=self.server_lr)
        check.one_of(("personal", "reset"), optimizer_state=self.optimizer_state)
        check.one_of(("rows", "table"), sends=self.sends)
        if negatives is not None and negatives.power:
            raise ValueError(
                f"negatives have a power of {negatives.power}, which needs the counts of all "
                "clients: use 0"
            )

    @property
    @override
    def traits(self) -> Traits:
        own = {"learns_from": self.learns_from, "global_model": not self.kept}
        return dataclasses.replace(super().traits, common_features=False, **own)

    @property
    @override
    def aggregator(self) -> Aggregator:  # type: ignore[override]  # by a setting
        return TableMeans() if self.sends == "rows" else Mean()

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the tables that stay at the clients; by default none."""
        return ()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        parameters, _ = self.model(meta).init(rng.at("model").number())
        return {"parameters": parameters, "round": 0}

    def begun(self, message: Tree, client_state: Tree, tables: Params) -> tuple[Tree, float]:
        """State of the local training of some tables, and its step size.

        Args:
            message: Message to the client.
            client_state: State that the client kept.
            tables: Tables to train.
        """
        optimizer = client_state.get("optimizer") or self.optimizer.init(tables)
        rate = self.lr * self.schedule(message["round"], num_steps=self.rounds)
        return {"parameters": tables, "buffers": {}, "optimizer": optimizer}, rate

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        parameters, optimizer = self.optimizer.step(
            local["parameters"],
            gradients,
            local["optimizer"],
            lr=context["shared"]["rate"],
            donate=True,
        )
        return {**local, "parameters": parameters, "optimizer": optimizer}

    def sent(self, before: Params, after: Params, weights: Params) -> Update:
        """Update of a client.

        Args:
            before: Tables that the client received.
            after: Rows of positive weight after training, by the name of their table.
            weights: Weight of every row.
        """
        payload: Tree = {}
        for name, values in after.items():
            table, rows = before[name], weights[name].nonzero().flatten()
            delta = values - table[rows]
            if self.sends == "table":
                payload[name] = torch.zeros_like(table).index_copy(0, rows, delta)
            else:
                payload[name] = {
                    "num_rows": len(table),
                    "rows": rows.to(torch.int32),
                    "values": delta,
                    "weights": weights[name][rows],
                }
        return Update({"delta": payload} if self.sends == "table" else payload)

    def next_state(self, local: Tree) -> Tree:
        """Client state after local training, without tables."""
        return {"optimizer": local["optimizer"]} if self.optimizer_state == "personal" else {}

    @override
    def template(self, message: Tree) -> Tree:
        tables = {n: x for n, x in message["parameters"].items() if n not in self.kept}
        if self.sends == "table":
            return {"delta": tables}
        return {name: {"values": x, "weights": x[:, 0]} for name, x in tables.items()}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        if self.sends == "table":
            return super().find_fault(message, payload, norm)
        for part in payload.values():
            if fault := find_outside(part, "weights", 0, self.max_weight):
                return fault
        values = {name: part["values"] for name, part in payload.items()}
        return super().find_fault(message, values, norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        parameters, found = dict(server_state["parameters"]), total.payload
        deltas: Mapping[str, Tensor] = (
            found["delta"]
            if self.sends == "table"
            else {name: part["values"] for name, part in found.items()}
        )
        for name, delta in deltas.items():
            parameters[name] = parameters[name] + self.server_lr * delta.to(parameters[name])
        return {"parameters": parameters, "round": server_state["round"] + 1}
