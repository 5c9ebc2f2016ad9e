"""Settings of the documentation site, which ``make docs`` builds in ``build/docs/html``."""

import sys
from pathlib import Path

from fedbolic import __version__

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "extensions"))

project = "fedbolic"
author = "The fedbolic authors"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # the site has its own copy of MathJax
    "myst_nb",
    "repository_links",
    "package_pages",
    "table_rows",
]
html_theme = "furo"
html_title = f"fedbolic {version}"
html_copy_source = False  # most pages include another file

# The address of the repository's files, with a slash at the end, once there is one. Until then
# a link to a file without a page on the site leads to a copy of the file.
repository_url = None

# Markdown: the anchors of code hosts, so that a link works there and here
myst_heading_anchors = 6
highlight_language = "none"

# docstrings
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Shapes"]
autodoc_default_options = {"show-inheritance": True}
autodoc_inherit_docstrings = False  # an override is described where the method was first defined
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
# copied into every page otherwise, a third of the time; the modules are entries anyway
toc_object_entries = False
# packages that few machines have; their modules are imported without them
autodoc_mock_imports = ["triton", "flwr"]

# notebooks: Markdown, and next to it the same with its outputs, of which the pages are made
exclude_patterns = ["notebooks/[0-9]*.md"]
nb_execution_mode = "off"
