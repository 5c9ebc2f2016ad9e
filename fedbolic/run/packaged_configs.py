"""Configurations that come with the package, found by name from any folder."""

import difflib
import itertools
import re
from pathlib import Path

FOLDERS = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
"""Folder of the configurations in an installed package, then in a checkout of the repository."""


def config_folder() -> Path:
    """Folder with the configurations of the package.

    Raises:
        FileNotFoundError: If the package was installed without them.
    """
    found = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if found is None:
        raise FileNotFoundError(
            f"this installation has no configurations, neither in {FOLDERS[0]} nor in "
            f"{FOLDERS[1]}: install fedbolic again, or give the path of a file"
        )
    return found


def config_names() -> list[str]:
    """Names of the package's configurations, such as ``fedavg/quick``, sorted."""
    folder = config_folder()
    files = (file.relative_to(folder).with_suffix("") for file in folder.rglob("*.yaml"))
    return sorted(file.as_posix() for file in files)


def description(name: str) -> str:
    """First sentence of the comment at the top of a configuration.

    Args:
        name: One of :func:`config_names`.

    Example:
        >>> description("fedavg/quick").endswith(".")
        True
    """
    lines = (config_folder() / f"{name}.yaml").read_text().splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return re.split(r"(?<=\.) ", " ".join(line.lstrip("# ") for line in comment))[0]


def find_config(given: str) -> str:
    """Path of a configuration file, given as a path or as a name of the package.

    A file at the path takes precedence. Text that is no path, such as YAML, is returned unchanged.

    Args:
        given: Path of a file, or a name from :func:`config_names`, with or without the folder
            ``configs/`` and the ending ``.yaml``.

    Raises:
        FileNotFoundError: If there is neither a file nor a configuration of that name.

    Example:
        >>> Path(find_config("fedavg/quick")).relative_to(config_folder()).as_posix()
        'fedavg/quick.yaml'
    """
    if not re.fullmatch(r"[\w./\\~ +-]*\w", given) or Path(given).is_file():
        return given
    name = Path(given).as_posix().removeprefix("configs/").removesuffix(".yaml")
    names = config_names()
    if name in names:
        return str(config_folder() / f"{name}.yaml")
    near = difflib.get_close_matches(name, names, n=3)
    near = near or [known for known in names if known.startswith(f"{name}/")]
    hint = f" (the nearest are {', '.join(near)})" if near else ""
    state = "is a folder" if Path(given).is_dir() else "does not exist"
    raise FileNotFoundError(
        f"{given} {state}, and no configuration of the package has that name{hint}: "
        "`fedbolic configs` lists all"
    )
