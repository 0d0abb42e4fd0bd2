"""Reports as HTML files that stand alone."""

from magistrate.report.html.page import ROWS, document, page

__all__ = ["ROWS", "document", "page"]
