"""Retrieval in hyperbolic space: a head for any encoder, and encoders of texts."""

import functools
import importlib
import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.layers.to_manifold import ToManifold


class RetrievalHead(nn.Module):
    r"""Points of a hyperbolic space from the features of any encoder, as in MERU.

    .. math:: x = \exp_0(\alpha W z), \quad \alpha \le 1

    ``nn.Sequential(encoder, RetrievalHead(...))`` is an encoder to points, for
    :class:`~fedbolic.nn.EntailmentContrast` in training and for
    :class:`~fedbolic.search.HyperbolicIndex` afterwards. Encoders of images and of texts have a
    head each, with one manifold; where both sides are of one kind, such as a category and a more
    general one, one encoder serves both. The distance from the origin orders points from general to
    specific.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``, the same for all
            heads.
        in_features: Width of the encoder's features, at least 1.
        dim: Dimension of the space, at least 1.

    Shapes:
        Features ``(*, in_features)`` to points ``(*, dim)``, on the hyperboloid ``(*, dim + 1)``.

    Raises:
        ValueError: If a width is below 1, or the space is refused.

    References:
        Desai et al. (2023), Sec. 3, arXiv:2304.09172: the scale starts at :math:`1 / \sqrt{n}`.

    Example:
        >>> head = RetrievalHead(Lorentz(c=1.0), 32, 8)
        >>> head.manifold.contains(head(torch.ones(5, 32))).tolist()
        [True, True, True, True, True]
    """

    def __init__(self, manifold: Lorentz | Poincare, in_features: int, dim: int) -> None:
        super().__init__()
        check.at_least(1, in_features=in_features, dim=dim)
        self.linear = nn.Linear(in_features, dim, bias=False)
        self.log_scale = nn.Parameter(torch.tensor([-math.log(dim) / 2]))
        self.entry = ToManifold(manifold, radius=math.inf)

    @property
    def manifold(self) -> Lorentz | Poincare:
        """The space, with the curvature of now."""
        return self.entry.manifold

    @override
    def forward(self, features: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch ambient"]:
        beyond = self.log_scale.relu()  # the gradient does not see the bound
        return self.entry((self.log_scale - beyond.detach()).exp() * self.linear(features))


class NGramEncoder(nn.Module):
    """Features of texts from their character n-grams, hashed into a table: needs no download.

    Every word, in lower case and between ``<`` and ``>``, gives its n-grams and itself; the
    features are the mean of their rows. The hash is the same on all machines.

    Args:
        dim: Width of the features, at least 1.
        buckets: Rows of the table, at least 1.
        lengths: Shortest and longest n-gram.

    Shapes:
        A sequence of ``n`` texts to features ``(n, dim)``; a text without words to zeros.

    Raises:
        ValueError: If a number is out of range.

    References:
        Bojanowski et al. (2017), arXiv:1607.04606.

    Example:
        >>> NGramEncoder(8)(["dog beds", "cat beds"]).shape
        torch.Size([2, 8])
    """

    def __init__(self, dim: int, buckets: int = 2**14, lengths: tuple[int, int] = (3, 5)) -> None:
        super().__init__()
        check.at_least(1, dim=dim, buckets=buckets, shortest=lengths[0])
        check.at_least(lengths[0], longest=lengths[1])
        self.table = nn.EmbeddingBag(buckets, dim, mode="mean")
        self.lengths = lengths

    @override
    def forward(self, texts: Sequence[str]) -> Float[Tensor, "n dim"]:
        rows = [_hashes(text, self.lengths) for text in texts]
        starts = torch.tensor([0, *map(len, rows)])[:-1].cumsum(0)
        joined = torch.tensor([row for of_text in rows for row in of_text], dtype=torch.int64)
        weight = self.table.weight
        return self.table((joined % len(weight)).to(weight.device), starts.to(weight.device))


@functools.lru_cache(maxsize=2**16)
def _hashes(text: str, lengths: tuple[int, int]) -> tuple[int, ...]:
    """Hashes of the n-grams of every word, and of the words."""
    found = []
    for word in text.lower().split():
        whole = f"<{word}>"
        sizes = range(lengths[0], min(lengths[1], len(whole) - 1) + 1)
        found += [whole, *(whole[i : i + n] for n in sizes for i in range(len(whole) - n + 1))]
    return tuple(zlib.crc32(gram.encode()) for gram in found)


class SentenceEncoder(nn.Module):
    """Features of texts by a model of the package sentence-transformers, with gradients.

    Needs the extra ``sentences``. For images, ``Timm`` of
    :mod:`fedbolic.nn.network.own_network` builds the networks of timm.

    Args:
        model: A ``SentenceTransformer``, or the name or folder of one.

    Shapes:
        A sequence of ``n`` texts to features ``(n, dim)``.

    Raises:
        MissingExtraError: If a name is given and sentence-transformers is not installed.
    """

    def __init__(self, model: nn.Module | str) -> None:
        super().__init__()
        if isinstance(model, str):
            with extra("sentences", "SentenceEncoder", "use NGramEncoder"):
                package = importlib.import_module("sentence_transformers")
            model = package.SentenceTransformer(model)
        self.model: Any = model

    @override
    def forward(self, texts: Sequence[str]) -> Float[Tensor, "n dim"]:
        device = next(self.model.parameters()).device
        # the name since version 5, and the one before
        prepare = getattr(self.model, "preprocess", None) or self.model.tokenize
        batch = prepare(list(texts))
        batch = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}
        return self.model(batch)["sentence_embedding"]
