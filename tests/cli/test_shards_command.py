"""`mocoda augment --shards`, `mocoda train --engine ray`: killed, shared among commands, refused."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command_line import ENVIRONMENT, SLOW, TINY, below, done, kill, rejects, start

from mocoda import make_task, read

WORDS = ["augment", "walks.hdf5", *TINY, "--rows", "2000", "--shards"]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_task("navigation").collect(300, seed=0).save("walks.hdf5")


def shards_of(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.parquet")}


def test_a_folder_of_shards_is_written_read_and_said(tmp_path: Path) -> None:
    said = done(*WORDS, 3, "--max-disagreement", 100, "--out", "rows/")
    assert said.startswith(
        "rows/: 2,300 transitions, 2,000 of them new by recipe mocoda\nNext values that are not recorded"
    )
    names = ["config.json", "dynamics.safetensors", "manifest.json", "progress.jsonl"]
    assert below(tmp_path / "rows") == [*names, *(f"shard-0000{number}.parquet" for number in range(3))]
    assert "2,300" in done("inspect", "rows/")
    done("export", "rows", "--to", "rows.hdf5")
    assert read("rows.hdf5").rows.equal(read("rows").rows)
    # Another request is refused, and replaced only on request; of the folder, only what the first has made.
    rejects(*WORDS, 2, "--out", "rows/")
    Path("rows/mine.txt").touch()
    done(*WORDS, 2, "--max-disagreement", 100, "--out", "rows/", "--overwrite")
    assert below(tmp_path / "rows") == [
        *names[:3],
        "mine.txt",
        *names[3:],
        *(f"shard-0000{number}.parquet" for number in range(2)),
    ]


@pytest.mark.long
def test_killed_it_goes_on_to_the_same_bytes_though_commands_share_the_shards(tmp_path: Path) -> None:
    words = [*WORDS, "10", "--out", "killed"]
    kill(start(0.1, *words, cwd=tmp_path, script=SLOW), lambda: len(shards_of("killed")) >= 3)
    assert len(shards_of("killed")) < 10
    several = [start(*words, "--only", *own, cwd=tmp_path) for own in (["0", "1", "8", "9"], list("234567"))]
    for process in several:
        out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
        assert out in ("killed: 4 shards of 10\n", "killed: 6 shards of 10\n")
    done(*WORDS, 10, "--out", "whole")
    assert below(Path("killed")) == below(Path("whole")) and shards_of("killed") == shards_of("whole")


@pytest.mark.long
def test_a_cluster_that_asks_for_a_token_is_reached_by_host_and_port_with_it_and_not_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    words = [*WORDS, "3", "--engine", "ray", "--address", f"127.0.0.1:{port}", "--out", "rayed"]
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp", ignore_cleanup_errors=True
    ) as place:  # short: for sockets
        start_head = ["-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}", "--num-cpus=2"]
        start_head += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={place}"]
        with Path("ray.log").open("w") as log:
            head = subprocess.Popen(
                [sys.executable, *start_head], env={**os.environ, **token}, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + 250
            while "Ray runtime started" not in Path("ray.log").read_text():
                assert head.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            outside = start(*words, cwd=tmp_path)
            _, said = outside.communicate(timeout=250)
            assert outside.returncode == 2 and said.endswith(
                "If it asks for a token, set RAY_AUTH_MODE=token and the token here as on its machines.\n"
            )
            for name, value in token.items():
                monkeypatch.setitem(ENVIRONMENT, name, value)
            inside = start(*words, cwd=tmp_path)
            _, said = inside.communicate(timeout=250)
            assert inside.returncode == 0, said
        finally:
            head.terminate()
            head.wait(60)
    done(*WORDS, 3, "--out", "whole")
    assert shards_of("rayed") == shards_of("whole")


@pytest.mark.long
def test_a_driver_of_ray_that_is_killed_takes_its_workers_along_and_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    words = [*WORDS[:-3], "--rows", "1000000", "--shards", "20", "--no-provenance", "--out"]
    rayed = [*words, "killed", "--engine", "ray", "--workers", "2"]
    kill(start(*rayed, cwd=tmp_path), lambda: shards_of("killed"))
    there = len(shards_of("killed"))
    assert there < 20
    time.sleep(5)
    assert len(shards_of("killed")) <= there + 2  # what was being made, at most
    done(*rayed)
    done(*words, "whole")
    assert below(Path("killed")) == below(Path("whole")) and shards_of("killed") == shards_of("whole")


def test_what_does_not_go_together_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    before = below(tmp_path)
    rejects(*WORDS, 2, "--out", "rows.hdf5")
    rejects(*WORDS, 2, "--only", 2, "--out", "rows")
    rejects("augment", "walks.hdf5", "--only", 1)
    rejects("augment", "walks.hdf5", "--engine", "ray")
    rejects("augment", "walks.hdf5", "--address", "auto")
    rejects("train", "walks.hdf5", "--engine", "slurm")
    rejects("augment", "walks.hdf5", "--episodes", 2, "--shards", 2, "--out", "rows")
    rejects(*WORDS, 3_000, "--out", "rows")
    assert [name for name in below(tmp_path) if name not in before] == []


@pytest.mark.long
def test_agents_and_tables_by_ray_are_those_of_one_program() -> None:
    words = ["train", "walks.hdf5", "--seeds", "2", "--updates", "120", "--hidden", "16", "16", "--batch", "32"]
    done(*words, "--out", "one")
    done(*words, "--engine", "ray", "--workers", "2", "--out", "rayed")
    assert below(Path("one")) == below(Path("rayed"))
    for name in ("agents.json", "policy-walks-0.safetensors", "policy-walks-1.safetensors"):
        assert Path("one", name).read_bytes() == Path("rayed", name).read_bytes()
    lines = [sorted(Path(name, "metrics.csv").read_text().splitlines()) for name in ("one", "rayed")]
    assert lines[0] == lines[1]
