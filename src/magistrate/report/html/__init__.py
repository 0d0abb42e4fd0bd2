"""Reports as self-contained HTML files."""

from magistrate.report.html.page import ROWS, document, page

__all__ = ["ROWS", "document", "page"]
