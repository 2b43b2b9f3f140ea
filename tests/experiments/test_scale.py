"""The measurement of shards: kills, bytes, memory and rates."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_contract import by_place, check_experiment

from experiments import run_experiment
from experiments.scale import Scale, digest_of, remove_shards, resident, steady_rate
from mocoda import InputError

QUICK = Scale.presets["quick"]


@pytest.mark.long
def test_rows_killed_twice_are_the_same_bytes(tmp_path: Path) -> None:
    small = replace(QUICK, rows=200_000, counts=(1, 2), timed_rows=50_000)
    measured, _ = run_experiment(small, tmp_path / "scale", workers=2)
    results = measured.results
    assert (
        results["same_bytes"] and results["runs"]["killed"]["starts"] == 3 and results["runs"]["whole"]["starts"] == 1
    )
    first, second = results["runs"]["killed"]["shards at kills"]
    assert 4 <= first < 8 <= second < 12
    cells = by_place(results)
    assert cells["killed", "seconds"]["mean"] > cells["whole", "seconds"]["mean"]
    assert 100 < cells["whole", "memory"]["mean"] < 4_000 and 18 < cells["whole", "bytes per row"]["mean"] < 25
    assert all(cells[f"{count} processes", "rows per second"]["mean"] > 0 for count in (1, 2))
    assert not list((tmp_path / "scale").glob("shards-*"))  # nothing is left but numbers
    said = check_experiment(small, measured, tmp_path / "written")
    assert "killed 2 times: the same bytes as without" in said
    again, _ = run_experiment(small, tmp_path / "scale", workers=2)  # measures nothing twice
    assert again.results["runs"] == results["runs"] and again.results["seconds"] < 30


def test_the_rate_counts_from_when_every_process_has_finished_a_shard(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(5)]
    for file, at in zip(files, (103.0, 100.0, 101.0, 102.0, 104.0), strict=True):
        file.touch()
        os.utime(file, (at, at))
    assert steady_rate(files, 500, 1) == 400 / 4 and steady_rate(files, 500, 2) == 300 / 3
    assert steady_rate(files[:1], 500, 1) == 0.0


def test_memory_is_that_of_a_process_and_its_children() -> None:
    script = "import subprocess, sys; held = bytearray(80 << 20); subprocess.run([sys.executable, '-c', CHILD])"
    child = "held = bytearray(120 << 20); print(flush=True); import time; time.sleep(60)"
    words = [sys.executable, "-c", script.replace("CHILD", repr(child))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        assert 200 < resident(process.pid) < 400
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_digest_is_of_all_bytes_in_order(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text(file.name)
    each = "".join(hashlib.sha256(file.name.encode()).hexdigest() for file in files)
    assert digest_of(files) == hashlib.sha256(each.encode()).hexdigest() != digest_of(files[::-1])


def test_only_what_a_run_has_made_is_removed(tmp_path: Path) -> None:
    for name in ("shard-00000.parquet", "manifest.json", ".shard-00001.parquet.7.part", "mine.parquet"):
        (tmp_path / name).touch()
    remove_shards(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]
    (tmp_path / "mine.parquet").unlink()
    remove_shards(tmp_path)
    assert not tmp_path.exists()


def test_a_disk_without_room_is_known_before_anything_is_made(tmp_path: Path) -> None:
    huge = replace(QUICK, rows=10**14)
    with pytest.raises(InputError, match=r"^100,000,000,000,000 rows need 3,000,000,000,000,000 bytes, and "):
        run_experiment(huge, tmp_path / "scale", workers=1)


def test_more_kills_than_shards_are_refused() -> None:
    with pytest.raises(InputError, match=r"^kills must be a number below that of the shards, 12, got 12\.$"):
        replace(QUICK, kills=12)
