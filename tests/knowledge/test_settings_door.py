"""Settings of a wrong kind, refused where types are not checked, as for users."""

import pytest

from fedbolic.knowledge import KnowledgeEmbedding


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"score": "TransX"}, "name must be one of .*TransE"),
        ({"bias": "head"}, "bias must be one of"),
        ({"personal": ("tables",)}, "personal must be one of"),
        ({"optimizer_state": "kept"}, "optimizer_state must be one of"),
    ],
)
def test_unknown_names_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        KnowledgeEmbedding(**settings)
