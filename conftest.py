"""Files that are not collected where their extra is not installed."""

from importlib.util import find_spec
from pathlib import Path

FLOWER = [f"fedbolic/remote/{name}.py" for name in ("app", "client", "flower")]

KERNELS = [
    str(file)
    for file in Path(__file__).parent.glob("fedbolic/kernels/*.py")
    if file.name != "__init__.py"
]


def pytest_ignore_collect(collection_path, config):
    """Leave out files without a test for a GPU under ``-m gpu``: others need more packages."""
    if config.option.markexpr == "gpu" and collection_path.suffix == ".py":
        return "mark.gpu" not in collection_path.read_text() or None
    return None


collect_ignore = [
    *([] if find_spec("flwr") else FLOWER),
    *([] if find_spec("triton") else KERNELS),
]
