"""Every program in examples/ runs, at its smallest size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(tmp_path / "minari"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(example), "--tiny"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_the_first_page_of_the_documents_names_every_example() -> None:
    page = (Path(__file__).parents[2] / "docs/index.md").read_text("utf-8")
    assert EXAMPLES and [e.name for e in EXAMPLES if f"](../examples/{e.name})" not in page] == []
