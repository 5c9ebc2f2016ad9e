"""Graphs in files: refused settings, and imports."""

from pathlib import Path

import pytest

from fedbolic.data import GraphClassification, GraphFiles, Graphs
from flatland import GraphReadout


@pytest.mark.parametrize("source", [Graphs, lambda **given: GraphFiles([Path("a.npz")], **given)])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"split": "public"}, "split must be one of random, masks, got 'public'"),
        ({"train_rate": 0.0}, "train_rate must be above 0"),
        ({"scale": "l3"}, "scale must be one of none, l1, l2, standardised, got 'l3'"),
        ({"train_rate": 0.7}, r"at most 1 with test_rate, got 0\.7 and 0\.4"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(source, given, words):
    with pytest.raises(ValueError, match=words):
        source(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"families": ()}, "families is empty"),
        ({"features": "colours"}, "features must be one of given, degrees, got 'colours'"),
        ({"scale": "l3"}, "scale must be one of"),
        ({"most_degree": 0}, "most_degree must be at least 1"),
        ({"train_rate": 0.9}, r"at most 1 with test_rate, got 0\.9 and 0\.2"),
    ],
)
def test_a_setting_of_graph_classification_that_cannot_be_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        GraphClassification(**given)


def test_an_unknown_readout_is_refused():
    with pytest.raises(ValueError, match="pooling must be one of mean, sum, centroid, got 'max'"):
        GraphReadout(pooling="max")
