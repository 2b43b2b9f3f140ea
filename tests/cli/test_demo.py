"""`mocoda demo`, as a new user runs it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from command_line import start

from mocoda import Transitions

FIRST = {"shown/graph.png", "shown/parents.png"}
FIGURES = FIRST | {"shown/walks.png", "shown/table1/table1.png", "shown/table1/figure3.png"}
FIGURES |= {"shown/table2/table2-curves.png", "shown/table2/table2-policies.png"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_shows_a_figure_within_90_seconds_and_ends_within_eight_minutes(tmp_path: Path) -> None:
    begun = time.monotonic()
    process = start("demo", "--out", "shown", cwd=tmp_path)
    while not all((tmp_path / name).exists() for name in FIRST):
        assert process.poll() is None and time.monotonic() - begun < 90
        time.sleep(0.1)
    printed, err = process.communicate(timeout=590)
    assert process.returncode == 0, err
    assert time.monotonic() - begun < 480
    named = set(re.findall(r"shown/[\w./-]+\.\w+", printed))
    others = {"shown/table1/table1.json", "shown/navigation-mocoda.hdf5", "shown/table2/table2.json"}
    assert named - {"shown/robot.gif"} == FIGURES | others
    filmed = (tmp_path / "shown/robot.gif").exists()
    assert filmed == ("shown/robot.gif" in named) and (filmed or "There is no film of a robot" in printed)
    for name in FIGURES:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((tmp_path / "shown/table1/table1.json").read_text())["preset"] == "quick"
    assert len(Transitions.load(tmp_path / "shown/navigation-mocoda.hdf5")) == 200_000
