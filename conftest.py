"""Files that are not collected where their extra is not installed."""

from importlib.util import find_spec
from pathlib import Path

FLOWER = [f"fedbolic/remote/{name}.py" for name in ("app", "client", "flower")]

KERNELS = [
    str(file)
    for file in Path(__file__).parent.glob("fedbolic/kernels/*.py")
    if file.name != "__init__.py"
]

collect_ignore = [
    *([] if find_spec("flwr") else FLOWER),
    *([] if find_spec("triton") else KERNELS),
]
