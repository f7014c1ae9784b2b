"""Configuration of the documentation site: Sphinx, MyST and furo. scripts/build_docs builds it."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import command_line  # noqa: E402

import cerebras_tf  # noqa: E402

project = "cerebras_tf"
copyright = "the authors of cerebras_tf"
version = release = cerebras_tf.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "code"
nitpicky = False

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
smartquotes_action = "qe"  # `--` begins an option
# Highlighters of a console stop at an ellipsis; the outputs have those.
suppress_warnings = ["misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype = False

html_theme = "furo"
html_title = "cerebras_tf"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False


def setup(app):
    """Writes the page of the command line before Sphinx reads its sources."""
    app.connect("builder-inited", lambda app: command_line.write_page(DOCS / "reference"))
