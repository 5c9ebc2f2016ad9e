"""Files that are not collected where their extra is not installed."""

from importlib.util import find_spec

FLOWER = ["fedbolic/deploy/app.py", "fedbolic/federated/flower.py"]

collect_ignore = [] if find_spec("flwr") else FLOWER
