"""`mocoda collect hooksweep2` and `mocoda watch` as a user runs them, killed, refused and with a full disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import ENVIRONMENT, Ended, below, kill, mocoda, rejects, start

from mocoda import Policy, Task, Transitions, make_agent, make_task, train_agents
from mocoda.data.transitions import ARRAYS
from mocoda.engine.runs import RunFolder
from mocoda.tasks import hooksweep

ROWS = 5_000  # of four parts at least
WORDS = ("collect", "hooksweep2", "--rows", str(ROWS), "--workers", "2", "--out", "data.hdf5")
draws = pytest.mark.skipif(os.environ.get("MUJOCO_GL") != "egl", reason="there is no EGL to draw with")


def here(*words: str, cwd: Path) -> Ended:
    """A command in this process, in another folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        return mocoda(*words)


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "data.hdf5.run" / "parts").glob("part-*.npz"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a collection that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    said, err = start(*WORDS, cwd=folder).communicate(timeout=250)
    assert said == f"data.hdf5: {Transitions.load(folder / 'data.hdf5')!r}\n", err
    return folder


# Collect


def test_collect_writes_the_task_s_rows_and_leaves_no_parts(undisturbed: Path) -> None:
    data, expected = Transitions.load(undisturbed / "data.hdf5"), make_task("hooksweep2").collect(ROWS, seed=0)
    for name in ARRAYS:
        assert getattr(data, name).equal(getattr(expected, name)), name
    assert data.source == expected.source
    own = ["config.json", "progress.jsonl"]
    run = ["data.hdf5.run", *(f"data.hdf5.run/{name}" for name in own)]
    assert below(undisturbed) == ["data.hdf5", *run]
    config = json.loads((undisturbed / "data.hdf5.run" / "config.json").read_text())
    assert config["settings"] == {"task": "hooksweep2", "rows": ROWS, "seed": 0}
    assert {"mujoco", "gymnasium-robotics"} <= set(config["versions"])


def test_a_killed_collection_goes_on_and_ends_with_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    kill(start(*WORDS, cwd=tmp_path), lambda: parts(tmp_path))
    assert parts(tmp_path) and not (tmp_path / "data.hdf5").exists()
    with pytest.MonkeyPatch.context() as patch:  # parts that are there are not recorded again
        patch.setattr(RunFolder, "discard", lambda self, name: None)
        before = {part: part.stat().st_mtime_ns for part in parts(tmp_path)}
        assert here(*WORDS, cwd=tmp_path).code == 0
    assert {part: part.stat().st_mtime_ns for part in parts(tmp_path)}.items() >= before.items()
    assert (tmp_path / "data.hdf5").read_bytes() == (undisturbed / "data.hdf5").read_bytes()


def test_a_full_disk_is_told_and_the_same_command_goes_on(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = np.savez, iter(range(2))

    def fills_up(*given: Any, **arrays: Any) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*given, **arrays)

    full = "error: the disk is full. Make room and run the same command again: it goes on from what is finished.\n"
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", fills_up)
        code, said, told = here(*WORDS, cwd=tmp_path)
        assert (code, said) == (2, "") and told.endswith(full)  # a slow machine also tells how far it is
    assert len(parts(tmp_path)) == 2 and not (tmp_path / "data.hdf5").exists()

    with monkeypatch.context() as patch:  # and now for the file itself
        patch.setattr(Transitions, "save", lambda self, path: fills_up())
        code, said, told = here(*WORDS, cwd=tmp_path)
        assert (code, said) == (2, "") and told.endswith(full)  # a slow machine also tells how far it is
    kept = parts(tmp_path)
    assert len(kept) >= 4 and not any(path.name.endswith(".part") for path in tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(hooksweep, "record", lambda job: pytest.fail("recorded again"))
        assert here(*WORDS, cwd=tmp_path)[0] == 0
    assert (tmp_path / "data.hdf5").read_bytes() == (undisturbed / "data.hdf5").read_bytes()
    assert parts(tmp_path) == []


# Watch


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of four agents that have learned nothing."""
    folder = tmp_path_factory.mktemp("agents")
    still = torch.zeros(4, 16)
    data = Transitions(still, torch.zeros(4, 4), still, torch.zeros(4), goal=torch.ones(4, 6))
    agent = make_agent("td3-bc", hidden=(8,), batch=2)
    train_agents({"emp": data, "mocoda": data}, agent, seeds=[0, 1], updates=1).save(folder)
    return folder


@draws
def test_watch_films_the_expert_without_a_screen_and_without_being_told_how(tmp_path: Path) -> None:
    environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "mocoda.cli", "watch", "expert", "--episodes", "1", "--seed", "1", "--out", "sweep.mp4"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sweep.mp4: expert, 1 of 1 episode successful\n", "")
    assert below(tmp_path) == ["sweep.mp4"]
    assert (tmp_path / "sweep.mp4").read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("", "a trained agent"),
        ("trained", "a trained agent"),
        ("FOLDER", "emp, seed 0"),
        ("FOLDER --data mocoda", "mocoda, seed 0"),
        ("FOLDER --agent-seed 1", "emp, seed 1"),
        ("FOLDER --data mocoda --agent-seed 1", "mocoda, seed 1"),
        ("FOLDER/policy-mocoda-1.safetensors", "FOLDER/policy-mocoda-1.safetensors"),
    ],
)
def test_watch_chooses_an_agent(
    words: str, chosen: str, agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filmed = []

    def film(path: Path, task: Task, policy: Policy, **options: int) -> int:
        filmed.append((policy, options))
        return 2

    monkeypatch.setattr("mocoda.cli.agents.film", film)
    code, said, _ = here("watch", *words.replace("FOLDER", str(agents)).split(), cwd=tmp_path)
    assert (code, said) == (0, f"sweep.mp4: {chosen.replace('FOLDER', str(agents))}, 2 of 3 episodes successful\n")
    ((policy, options),) = filmed
    assert policy.state_width == 22 and options == {"episodes": 3, "seed": 0}


@pytest.mark.parametrize(
    "words",
    [
        "none",
        "trained --task navigation",
        "expert --task maze",
        "expert --out sweep.avi",
        "expert --episodes 0",
        "expert --task navigation",
        "expert --data emp",
        "FOLDER --data coda",
        "FOLDER --task navigation",
        "EMPTY",
        "expert --out FILE/x.mp4",
    ],
)
def test_what_cannot_be_watched_is_refused(
    words: str, agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("mine")
    Path("FOLDER").symlink_to(agents)
    Path("EMPTY").mkdir()
    rejects("watch", *words.split())
    assert below(tmp_path) == ["EMPTY", "FILE", "FOLDER"]
