"""Contract tests for methods, aggregators, engines and manifolds of other packages."""

from fedbolic.testing.aggregators import AGGREGATOR_LAWS, check_aggregator
from fedbolic.testing.compare import assert_near, assert_same, flat, saved_and_loaded
from fedbolic.testing.engines import check_engine
from fedbolic.testing.manifolds import (
    MANIFOLD_LAWS,
    ManifoldSample,
    check_manifold,
    sample_manifold,
)
from fedbolic.testing.methods import METHOD_LAWS, check_method
from fedbolic.testing.recording import MethodRun, RecordedExchange

__all__ = [
    "AGGREGATOR_LAWS",
    "MANIFOLD_LAWS",
    "METHOD_LAWS",
    "ManifoldSample",
    "MethodRun",
    "RecordedExchange",
    "assert_near",
    "assert_same",
    "check_aggregator",
    "check_engine",
    "check_manifold",
    "check_method",
    "flat",
    "sample_manifold",
    "saved_and_loaded",
]
