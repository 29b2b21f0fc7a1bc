"""Configuration of the documentation site: Sphinx, MyST and furo, built with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import _generate  # noqa: E402 - lies beside this file

from chunkstore import __version__  # noqa: E402

project = "chunkstore"
author = "The chunkstore developers"
copyright = "The chunkstore developers, Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
smartquotes = False  # would make one dash of the two before an option, and round quotes around code
highlight_language = "none"  # what names no language is a drawing, a path or a table, no Python
suppress_warnings = ["misc.highlighting_failure"]  # shell sessions hold output of any shape

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["fastai", "lightning"]  # the adapters' own environment has them
autodoc_default_options = {"members": True, "show-inheritance": True}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"chunkstore {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False


def setup(_: object) -> None:
    """Write the pages that are made from the code before anything is read."""
    _generate.write_all(HERE / "reference" / "generated")
