"""The settings of Sphinx for the site; `python -m docs.site` runs it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

from magistrate._version import __version__

project = "Magistrate"
release = version = __version__
html_title = f"Magistrate {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]  # pages of measurements begin their tables one level deeper
smartquotes = False  # `--option` keeps its two dashes
default_role = "code"  # docstrings write code between single backticks

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = [
    name
    for name in ("deepeval", "inspect_ai", "mlflow", "opik", "phoenix", "ragas")
    if find_spec(name) is None
]
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> None:
    """Show files of comma-separated values as they are: Pygments has no lexer for them."""
    app.add_lexer("csv", TextLexer)
