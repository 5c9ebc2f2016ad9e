"""Backbone of saved weights with adapters, for federations that send adapters alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from torch import nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.torch_files import load_torch
from fedbolic.core.types import Meta
from fedbolic.nn.layers.adapters import AdapterKind, add_adapters
from fedbolic.nn.network.backbone import Backbone


@dataclass(frozen=True)
class Adapted(Backbone):
    """Another backbone with saved weights, and adapters on its linear layers.

    Every party reads the same file, so the weights in it need not be sent. The sharing table
    ``{"*adapter.*": shared, "head.*": shared, "*": fixed}`` of ``FedAvg`` sends the adapters and
    the head alone.

    Args:
        backbone: The network without adapters.
        weights: File of its ``state_dict``, as ``torch.save`` writes it.
        layers: Shell patterns over the names of the linear layers to adapt; all by default.
        rank: Rank of the adapters, at least 1.
        alpha: Factor of the adapters, above 0.
        kind: ``lora`` or ``hyplora``.

    Raises:
        TypeError: If ``layers`` is no tuple.
        ValueError: If a value is out of range; when built, if a pattern matches no layer, or the
            file is damaged or holds the weights of another network.
        FileNotFoundError: When built, if there is no such file.

    Example:
        >>> from fedbolic.nn.network.backbone import MLP
        >>> Adapted(MLP((32, 16)), Path("weights.pt"), rank=2).num_features
        16
    """

    backbone: Backbone
    weights: Path
    layers: tuple[str, ...] = ("*",)
    rank: int = 4
    alpha: float = 8.0
    kind: AdapterKind = "hyplora"

    def __post_init__(self) -> None:
        check.instance(tuple, "('*',)", layers=self.layers)
        check.at_least(1, rank=self.rank)
        check.positive(alpha=self.alpha)
        check.one_of(get_args(AdapterKind), kind=self.kind)

    @property
    @override
    def num_features(self) -> int:
        return self.backbone.num_features

    @override
    def build(self, meta: Meta) -> nn.Module:
        network = self.backbone.build(meta)
        try:
            network.load_state_dict(load_torch(Path(self.weights)))
        except (ValueError, RuntimeError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{self.weights} holds no weights of this network: {reason}"
            ) from error
        add_adapters(network, self.layers, rank=self.rank, alpha=self.alpha, kind=self.kind)
        return network
