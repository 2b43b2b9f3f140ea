"""`mocoda demo`, as a new user runs it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from command_line import start

from mocoda import Transitions

PICTURES = {"graph.png", "rows.png", "paths.png"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_shows_a_figure_early_and_names_all_that_it_makes(tmp_path: Path) -> None:
    begun = time.monotonic()
    process = start("demo", "--out", "shown", cwd=tmp_path)
    while not (tmp_path / "shown/graph.png").exists():
        assert process.poll() is None and time.monotonic() - begun < 90
        time.sleep(0.1)
    printed, err = process.communicate(timeout=800)
    assert process.returncode == 0, err
    for name in PICTURES:
        assert (tmp_path / "shown" / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(Transitions.load(tmp_path / "shown/augmented.hdf5")) == 100_000
    named = set(re.findall(r"shown/[\w./-]+\.(?:png|gif|html|hdf5|json)", printed))
    assert {"shown/page.html", "shown/rows.png", "shown/paths.png"} < named
    filmed = (tmp_path / "shown/robot.gif").exists()
    assert all((tmp_path / name).exists() for name in named - {"shown/robot.gif"})
    assert filmed or "This machine cannot draw the robot" in printed
