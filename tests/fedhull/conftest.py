"""Without python-flint, the extra ``hull``, nothing of FedHull can be imported."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flint") else ["test_*.py"]
