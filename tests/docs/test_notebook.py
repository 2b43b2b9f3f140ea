"""The example notebook runs from top to bottom, and shows what it showed when its results were saved.

`make notebook` saves them again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient", reason="`pip install nbclient ipykernel` runs notebooks")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"
MOST_BYTES = 200_000


def shown(notebook: Any) -> list[list[list[str]]]:
    """For each cell, the kinds of its outputs."""
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[sorted(output.get("data", [output.output_type])) for output in cell.outputs] for cell in codes]


def test_the_notebook_runs_and_shows_tables_figures_and_the_page(tmp_path: Path) -> None:
    saved = nbformat.read(NOTEBOOK, as_version=4)
    run = nbformat.from_dict(saved)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(run, timeout=240, resources=resources, record_timing=False).execute()
    assert (tmp_path / "page.html").stat().st_size > 10_000
    if os.environ.get("SAVE_NOTEBOOK") == "1":
        run.metadata.language_info = {"name": "python"}
        nbformat.write(run, NOTEBOOK)
        saved = run
    assert shown(run) == shown(saved) and NOTEBOOK.stat().st_size < MOST_BYTES
    html = ["".join(output.data["text/html"]) for cell in run.cells for output in cell.get("outputs", ())]
    assert len(html) == 6 and html[-1].count("<iframe") == 1 and "<img alt=" in html[2]
    assert not any("<script" in one for one in html)
