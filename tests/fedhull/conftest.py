"""FedHull needs python-flint, the extra ``hull``; without it, its tests are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flint") else ["*test_*.py"]
