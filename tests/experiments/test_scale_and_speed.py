"""Measurements of time and memory: kills, bytes and rates."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_contract import results_of
from tiny_experiments import TINY

from experiments.scale import Scale, remove_shards, steady_rate
from mocoda import InputError

SCALE: Scale = TINY["scale"]


@pytest.mark.long
def test_rows_killed_twice_are_the_same_bytes(tmp_path: Path) -> None:
    results = results_of(SCALE, tmp_path, workers=2)
    killed, whole = results["runs"]["killed"], results["runs"]["whole"]
    assert results["same_bytes"] and (killed["starts"], whole["starts"]) == (3, 1)
    first, second = killed["shards at kills"]
    assert 4 <= first < 8 <= second < 12 and killed["seconds"] > whole["seconds"]
    assert 100 < whole["memory"] < 4_000 and 18 < whole["bytes per row"] < 25
    assert all(point["steady"] > 0 for point in results["scaling"])
    assert not list(tmp_path.glob("shards-*"))  # nothing is left but numbers
    again = results_of(SCALE, tmp_path, workers=2)  # measures nothing twice
    assert again["runs"] == results["runs"] and again["seconds"] < 30


def test_the_rate_counts_from_when_every_process_has_finished_a_shard(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(5)]
    for file, at in zip(files, (103.0, 100.0, 101.0, 102.0, 104.0), strict=True):
        file.touch()
        os.utime(file, (at, at))
    assert steady_rate(files, 500, 1) == 400 / 4 and steady_rate(files, 500, 2) == 300 / 3
    assert steady_rate(files[:1], 500, 1) == 0.0


def test_only_what_a_run_has_made_is_removed(tmp_path: Path) -> None:
    for name in ("shard-00000.parquet", "manifest.json", "mine.parquet"):
        (tmp_path / name).touch()
    remove_shards(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]
    (tmp_path / "mine.parquet").unlink()
    remove_shards(tmp_path)
    assert not tmp_path.exists()


def test_a_disk_without_room_is_known_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^100,000,000,000,000 rows need 3,000,000,000,000,000 bytes, and "):
        results_of(replace(SCALE, rows=10**14), tmp_path, workers=1)
    assert not list(tmp_path.iterdir())
