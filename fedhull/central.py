"""Centralized baselines: the same classifiers, trained on all clients' points."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client, LabelledSplit
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.scores.score import score_labels
from fedhull.boundary import Boundary, HyperbolicBoundary
from fedhull.core import Core
from fedhull.exchanges import points_of
from fedhull.geometry.extreme import extreme_points


@dataclass(frozen=True)
class Central(Method):
    """Centralized training: every client sends its points, and the server trains on all of them.

    These are CP and CE of the paper's tables; with ``hulls``, CH-CP and CH-CE.

    Args:
        boundary: Classifier to train.
        hulls: Train on all points (``none``), on the corners of each class's hull (``once``), or on
            the corners as the authors' code returns them, which repeats the corner farthest from
            the origin (``released``).
        c: Minus the curvature, above 0.
        core: Rule by which the outer points of a class are cut off before its hull is taken;
            ``None`` for the hull of all points.

    Raises:
        ValueError: If a value is outside its range, or there is a core but no hull.

    References:
        Prakash et al. (2024), Sec. 6.1 and Table 2, arXiv:2308.06895.
    """

    boundary: Boundary = HyperbolicBoundary()
    hulls: Literal["none", "once", "released"] = "none"
    c: float = 1.0
    core: Core | None = None

    def __post_init__(self) -> None:
        check.positive(c=self.c)
        check.one_of(("none", "once", "released"), hulls=self.hulls)
        if self.core is not None and self.hulls == "none":
            raise ValueError("a core is that of a hull, and hulls is 'none': set hulls='once'")

    traits = Traits(learns_from=LabelledSplit)

    aggregator = Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        if self.core is not None and len(meta.input_shape) == 1:
            self.core.require_dim(meta.input_shape[0])
        return {"num_classes": meta.num_classes}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        return Update(client.train.all(), float(client.size)), {}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        sent = total.payload.values()
        points = torch.cat([of["x"] for of in sent]).double().cpu().numpy()
        labels = torch.cat([of["y"] for of in sent]).cpu().numpy()
        if self.hulls != "none":
            inside = np.ones(len(points), dtype=bool)
            if self.core is not None:
                inside = self.core.kept(points, labels, c=self.c, boundary=self.boundary)
            masks = [inside & (labels == k) for k in np.unique(labels)]
            kept = np.concatenate([self._corners(points, mask) for mask in masks])
            points, labels = points[kept], labels[kept]
        return {**server_state, "model": self.boundary.fit(points, labels, c=self.c)}

    def _corners(self, points: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        index = np.flatnonzero(chosen)
        index = index[extreme_points(points[index], c=self.c)]
        if self.hulls == "released":
            farthest = index[np.square(points[index]).sum(axis=1).argmax()]
            index = np.append(index, farthest)
        return index

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        if "model" not in message:
            return {}

        def labels(examples: Params) -> Tensor:
            odds = self.boundary.log_odds(message["model"], points_of(examples), c=self.c)
            return torch.from_numpy(odds.argmax(axis=1)).to(examples["y"].device)

        return score_labels(labels, client)
