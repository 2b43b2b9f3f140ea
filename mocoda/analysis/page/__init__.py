"""The page: one HTML file that shows recorded and generated data, row by row."""

from mocoda.analysis.page.html_page import report

__all__ = ["report"]
