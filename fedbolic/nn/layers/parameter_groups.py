"""Parameter groups for optimisers with weight decay."""

from typing import Any

from torch import nn

from fedbolic.manifolds import Curvature


def parameter_groups(network: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimiser of torch: weight decay for all parameters but learnt curvatures.

    Decay pulls a parameter to 0. The raw number of a ``Curvature`` has no meaning there: with the
    default bounds it stands for a curvature of log 2, whatever the data and the initial value.

    Args:
        network: Network whose parameters are trained; those without a gradient are left out.
        weight_decay: Decay of the first group, 0 or more; that of the second is 0.

    Returns:
        Two groups; the second is empty if no curvature is learnt.

    Example:
        >>> import torch
        >>> from fedbolic.manifolds import Lorentz
        >>> from fedbolic.nn import Linear
        >>> layer = Linear(Lorentz(c=Curvature(5.0)), 3, 2)
        >>> decayed, kept = parameter_groups(layer, weight_decay=0.01)
        >>> len(decayed["params"]), len(kept["params"])
        (2, 1)
        >>> optimiser = torch.optim.AdamW([decayed, kept], lr=0.01)
    """
    curvatures = {id(module.raw) for module in network.modules() if isinstance(module, Curvature)}
    trained = [x for x in network.parameters() if x.requires_grad]
    return [
        {"params": [x for x in trained if id(x) not in curvatures], "weight_decay": weight_decay},
        {"params": [x for x in trained if id(x) in curvatures], "weight_decay": 0.0},
    ]
