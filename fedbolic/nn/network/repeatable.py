"""Replacement of torch's dropout layers by reproducible ones."""

from collections.abc import Callable

from torch import nn

from fedbolic.nn.layers.dropout import AlphaDropout, ChannelDropout, Dropout

REPLACED: dict[type[nn.Module], Callable[[float], nn.Module]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: lambda p: ChannelDropout(p, num_axes=1),
    nn.Dropout2d: lambda p: ChannelDropout(p, num_axes=2),
    nn.Dropout3d: lambda p: ChannelDropout(p, num_axes=3),
    nn.AlphaDropout: AlphaDropout,
}
"""Replacements by exact class of torch; a subclass may behave differently and is not replaced."""


def with_own_dropout(network: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Replace dropout layers that draw from torch's global random stream, in place.

    A layer used in several places is replaced by one shared layer. Layers with a rate of 0 or 1
    draw no random numbers and are kept.

    Args:
        network: Network whose dropout layers are replaced.

    Returns:
        The same network, or a new module if the network itself is a dropout layer, and the names of
        the replaced layers.

    Example:
        >>> with_own_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))[1]
        ('1',)
    """
    replaced: dict[nn.Module, nn.Module] = {}

    def own(module: nn.Module) -> nn.Module:
        make, p = REPLACED.get(type(module)), getattr(module, "p", 0.0)
        if make is None or p in (0, 1):
            return module
        if module not in replaced:
            replaced[module] = make(p).train(module.training)
        return replaced[module]

    names = []
    for path, parent in list(network.named_modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and own(child) is not child:
                setattr(parent, name, own(child))
                names.append(f"{path}.{name}" if path else name)
    new = own(network)
    return new, ("",) if new is not network else tuple(names)
