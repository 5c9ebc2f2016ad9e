"""Directives of the API: ``package`` and ``public-names``, from the docstrings of modules."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import public_names
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


class PackageDirective(SphinxDirective):
    """``.. package:: NAME`` lists the modules of a package with all their public names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the table and the sections of the modules."""
        package = importlib.import_module(self.arguments[0])
        lines = [f".. automodule:: {package.__name__}", "", *public_names.table(package)]
        for module in module_names(package):
            lines += section(module)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class PublicNamesDirective(SphinxDirective):
    """``.. public-names::`` lists what one imports from ``fedbolic`` and its packages."""

    def run(self) -> list[nodes.Node]:
        """Parse the sections of the packages."""
        lines = "\n".join(public_names.page())
        return self.parse_text_to_nodes(lines, allow_section_headings=True)


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
    """Register the directives, and the choice of methods."""
    app.add_directive("package", PackageDirective)
    app.add_directive("public-names", PublicNamesDirective)
    app.connect("autodoc-skip-member", skip_method)
    return {"parallel_read_safe": True}
