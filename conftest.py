"""Files that are not collected where their extra is not installed."""

from importlib.util import find_spec

FLOWER = ["fedbolic/remote/app.py", "fedbolic/remote/flower.py"]

collect_ignore = [] if find_spec("flwr") else FLOWER
