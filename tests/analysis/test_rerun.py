"""Recordings for Rerun's viewer, read by Rerun's own tool."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import done, refused
from page_data import COLUMNS, MADE, RECORDED, table

from mocoda import export_rerun

pytest.importorskip("rerun")


def tool(*words: object) -> str:
    """What Rerun's own command prints about recordings."""
    ended = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", *map(str, words)], capture_output=True, text=True, timeout=250
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def scalars(told: str) -> dict[str, dict[int, float]]:
    """Entity -> row -> value, of what `rerun rrd print -vvv` prints."""
    found: dict[str, dict[int, float]] = {}
    for chunk in told.split("\nChunk(")[1:]:
        entity = re.search(r" - /(\S+) - ", chunk)
        assert entity is not None
        values = re.findall(r"┆ (\d+) +┆ \[(\S+)\] ", chunk)
        if values and "Scalars:scalars" in chunk:
            found.setdefault(entity[1], {}).update((int(row), float(value)) for row, value in values)
    return found


def test_recorded_and_counterfactual_rows_are_in_one_recording_on_one_timeline(tmp_path: Path) -> None:
    data = table()
    data.save(tmp_path / "rows.hdf5")
    done("export", tmp_path / "rows.hdf5", "--to", tmp_path / "rows.rrd")
    told = tool("print", "-vvv", tmp_path / "rows.rrd")
    assert set(re.findall(r"index_name: (\w+)", told)) == {"row"}
    assert len(set(re.findall(r'"mocoda",\s+"(\w+)"', told))) == 1  # one recording
    found = scalars(told)
    for place, column in enumerate(COLUMNS):
        made = {row: float(data.rows[row, place]) for row in range(RECORDED, RECORDED + MADE)}
        assert found[f"counterfactual/{column}"] == made
        # Three of five columns are the hand's row's, so that is the recorded one beside it.
        assert found[f"recorded/{column}"] == {
            row: float(data.rows[(row - RECORDED) % RECORDED, place]) for row in made
        }
    assert found["notes/support"][RECORDED] == 0 and found["notes/support"][RECORDED + MADE - 1] == 1
    for entity in ("above/recorded/hand", "above/counterfactual/box"):
        assert f"/{entity} - " in told
    assert refused("export", tmp_path / "rows.hdf5", "--to", tmp_path / "rows.rrd") == (
        f"there is a file '{tmp_path / 'rows.rrd'}' already. Write to another one, or pass --overwrite."
    )


def test_recorded_rows_alone_are_shown_as_they_come(tmp_path: Path) -> None:
    export_rerun(table()[:RECORDED], tmp_path / "rows.rrd")
    found = scalars(tool("print", "-vvv", tmp_path / "rows.rrd"))
    assert list(found["recorded/push"]) == list(range(RECORDED)) and "counterfactual/push" not in found
