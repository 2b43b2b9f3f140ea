"""The page: one HTML file that shows what was recorded and what was made of it, row by row."""

from mocoda.analysis.page.drops import drop_rows
from mocoda.analysis.page.report import report

__all__ = ["drop_rows", "report"]
