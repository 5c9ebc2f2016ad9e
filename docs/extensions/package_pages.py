"""The directive ``package``: the API of one package, from the docstrings of its modules."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from repository_links import PACKAGES
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def module_names(package: ModuleType) -> list[str]:
    """Full names of the public modules of a package, without those of its subpackages."""
    files = sorted(Path(package.__path__[0]).glob("[!_]*.py"))
    return [f"{package.__name__}.{file.stem}" for file in files]


def section(module: str) -> list[str]:
    """Section of the page about one module."""
    return [module, "-" * len(module), "", f".. automodule:: {module}", "   :members:", ""]


def exported_names(package: ModuleType) -> list[str]:
    """Table of the classes and functions that one imports from the package itself."""
    lines = []
    for name in getattr(package, "__all__", ()):
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            summary = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
            full = f"{value.__module__}.{value.__qualname__}"
            lines += [f"   * - :py:obj:`{name} <{full}>`", f"     - {summary}"]
    head = [f"Import from ``{package.__name__}``:", "", ".. list-table::", "   :widths: 1 3", ""]
    return [*head, *lines, ""] if lines else []


class PackageDirective(SphinxDirective):
    """``.. package:: NAME`` lists the modules of a package with all their public names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the table and the sections of the modules."""
        package = importlib.import_module(self.arguments[0])
        lines = [f".. automodule:: {package.__name__}", "", *exported_names(package)]
        for module in module_names(package):
            lines += section(module)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def skip_method(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Choose whether to leave a method out; ``None`` leaves the choice to autodoc.

    Methods that another package puts on our classes, as scikit-learn does, are left out. A
    layer's ``forward`` is listed without a docstring, too: its signature has the shapes.
    """
    if what != "class" or not inspect.isroutine(value):
        return None
    if (getattr(value, "__module__", None) or "").partition(".")[0] not in PACKAGES:
        return True
    return False if name == "forward" else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and the choice of methods."""
    app.add_directive("package", PackageDirective)
    app.connect("autodoc-skip-member", skip_method)
    return {"parallel_read_safe": True}
