"""Scores of triples as a layer with its own tables."""

from jaxtyping import Float, Int64
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.knowledge.triple_scores import TripleScore


class TripleScorer(nn.Module):
    """Tables of entities and relations, and the scores of their triples.

    Args:
        score: Kind and dimensions of the score.
        num_entities: Number of entities, at least 2.
        num_relations: Number of relations, at least 1; twice that of a graph whose heads are
            ranked as the tails of inverse relations.

    Shapes:
        Heads, relations and tails ``(*, 3)`` to scores ``(*)``.

    Raises:
        ValueError: If a number is too small.

    Example:
        >>> import torch
        >>> scorer = TripleScorer(TripleScore("RotH", dim=4), num_entities=5, num_relations=2)
        >>> scorer(torch.tensor([[0, 1, 2], [3, 0, 4]])).shape
        torch.Size([2])
    """

    def __init__(self, score: TripleScore, num_entities: int, num_relations: int) -> None:
        super().__init__()
        check.at_least(2, num_entities=num_entities)
        check.at_least(1, num_relations=num_relations)
        self.score = score
        for name, table in score.initial(num_entities, num_relations).items():
            self.register_parameter(name, nn.Parameter(table))

    @override
    def forward(self, triples: Int64[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
        """Scores of triples by number."""
        heads, relations, tails = triples.unbind(-1)
        query = self.score.query_of(dict(self.named_parameters()), heads, relations)
        entity = self.get_parameter("entity")
        return self.score.scores(query, entity[tails].unsqueeze(-2)).squeeze(-1)

    def tail_scores(
        self, heads: Int64[Tensor, "*batch"], relations: Int64[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch entities"]:
        """Scores of all entities as tails.

        Args:
            heads: Numbers of the heads.
            relations: Numbers of the relations.
        """
        query = self.score.query_of(dict(self.named_parameters()), heads, relations)
        return self.score.scores(query, self.get_parameter("entity"))

    @override
    def extra_repr(self) -> str:
        return repr(self.score)
