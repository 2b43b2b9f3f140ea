"""The page: one HTML file that shows recorded and generated data, row by row."""

from mocoda.analysis.page.html_page import report
from mocoda.analysis.page.row_browser import drop_rows

__all__ = ["drop_rows", "report"]
