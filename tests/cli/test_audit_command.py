"""`mocoda audit` and `export --where`: tasks, graph files, Gymnasium environments, verdicts, and runs after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from command_line import below, done, kill, refused, rejects, start

from mocoda import Transitions, make_task, read
from mocoda.data.transitions import concatenate
from mocoda.engine.files import versions
from mocoda.engine.randomness import Stream

TASK: Any = make_task("navigation")
WRONG = 30  # of 150 generated rows
GRAPH = """
import time
import torch

state = {"x": 0, "y": 1}
action = {"dx": 0, "dy": 1}
edges = {"x": ["x", "dx"], "y": ["y", "dy"]}
"""
STEP = (
    GRAPH
    + """
def step(rows):
    moved = rows[:, :2] + 0.05 * rows[:, 2:]
    both = (rows[:, :2] > 0.5).all(1)
    return torch.where(both[:, None], moved - 0.02 * rows[:, 2:].flip(1), moved).numpy()
"""
)
PENDULUM = """
import numpy as np

state = {"pendulum": [0, 1, 2]}
action = {"torque": 0}
edges = {"pendulum": ["pendulum", "torque"]}

def put(env, state):
    env.state = np.array([np.arctan2(state[1], state[0]), state[2]])
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an augmented table, some of whose rows are wrong, and graph files."""
    monkeypatch.chdir(tmp_path)
    walks = TASK.collect(250, seed=0)
    next_state = walks.next_state.clone()
    next_state[100 : 100 + WRONG, 0] += 0.02
    notes = {
        "recipe": torch.tensor([0] * 100 + [5] * 150),
        "support": torch.linspace(0, 1, 250),
        "disagreement": torch.tensor([0.0] * 100 + [0.9] * WRONG + [0.1] * (150 - WRONG)),
    }
    source = {"task": "navigation"}
    made = Transitions(walks.state, walks.action, next_state, columns=walks.columns, source=source, provenance=notes)
    made.save("made.hdf5")
    Path("step.py").write_text(STEP)
    Path("plain.py").write_text(GRAPH)
    Path("pendulum.py").write_text(PENDULUM)
    yield tmp_path


def found(folder: str = "runs/audit") -> dict[str, Any]:
    result: dict[str, Any] = json.loads(Path(folder, "audit.json").read_text("utf-8"))
    return result


@pytest.mark.parametrize("world", [["--task", "navigation"], ["--graph", "step.py"], []])
def test_a_task_or_a_graph_file_tells_how_many_rows_are_true(world: list[str]) -> None:
    text = done("audit", "made.hdf5", *world, "--tolerance", 0.01)
    assert "80.0% (72.9 to 85.6) of 150 generated rows are true, within a tolerance of x 0.01, y 0.01." in text
    result = found()
    assert result["confirmed"] == 0.8 and result["by"]["recipe"]["recorded"]["share"] == 1.0
    assert result["predictors"]["disagreement"]["auroc"] == 1.0
    assert below(Path("runs/audit")) == ["audit.json", "config.json", "progress.jsonl"]


def test_tolerances_by_factor_columns_and_a_part_of_the_rows() -> None:
    done("audit", "made.hdf5", "--tolerance", "y=0.001", "--out", "one")
    assert found("one")["confirmed"] == 1.0 and found("one")["tolerance"] == {"y": 0.001}
    done("audit", "made.hdf5", "--tolerance", "x=0.03", "y=0.001", "--out", "two")
    assert found("two")["confirmed"] == 1.0
    done("audit", "made.hdf5", "--columns", "y", "--rows", 60, "--out", "three")
    assert found("three")["columns"] == ["y"] and found("three")["confirmed"] == 1.0


def test_verdicts_are_kept_and_rows_are_chosen_by_them() -> None:
    done("audit", "made.hdf5", "--tolerance", 0.01, "--keep", "judged.hdf5")
    judged = read("judged.hdf5")
    assert judged.provenance["confirmed"].bincount().tolist() == [WRONG, 250 - WRONG]
    assert done("export", "judged.hdf5", "--to", "true.hdf5", "--where", "confirmed=1") == (
        "true.hdf5: 220 transitions\n"
    )
    true = read("true.hdf5")
    assert (true.next_state - TASK.step(true.rows)).abs().max() < 1e-6
    done("export", "judged.hdf5", "--to", "some.npz", "--where", "recipe!=0", "support>=0.5", "disagreement < 0.5")
    assert len(read("some.npz")) == 120
    again = done("audit", "true.hdf5", "--tolerance", 0.01, "--out", "again")
    assert "100.0% (96.9 to 100.0) of 120 " in again


def test_files_tell_which_simulator_confirmed_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "minari")
    done("audit", "made.hdf5", "--tolerance", 0.01, "--keep", "judged.hdf5")
    note = dict(read("judged.hdf5").source["audit"])
    assert {name: note[name] for name in note if name != "summary"} == {
        name: value
        for name, value in found().items()
        if name not in ("by", "predictors", "new", "true_and_new", "coverage")
    }
    assert (note["confirmed"], note["rows"], note["tolerance"]) == (0.8, 150, {"x": 0.01, "y": 0.01})
    assert note["simulator"] == {"name": "navigation", "versions": versions()}
    for target in ("robomimic:judged.h5", "lerobot:judged", "lerobot-v2.1:older", "minari:judged-v0", "judged.npz"):
        done("export", "judged.hdf5", "--to", target, "--verify")
        assert "audited by navigation (python " in done("inspect", target)
    with h5py.File("judged.h5") as file:
        assert json.loads(file["data"].attrs["audit"]) == note
    for path in ("judged/meta/info.json", "older/meta/info.json", "minari/judged-v0/data/metadata.json"):
        assert json.loads(Path(path).read_text("utf-8"))["audit"] == note
    done("augment", "judged.hdf5", "--task", "navigation", "--recipe", "emp", "--rows", 9, "--out", "more.hdf5")
    assert "audited" not in done("inspect", "more.hdf5")  # for its rows are others


def test_a_stock_gymnasium_environment_is_put_in_every_state() -> None:
    import gymnasium

    env, rows = gymnasium.make("Pendulum-v1"), []
    state, _ = env.reset(seed=0)
    for torque in Stream(0, "torques").uniform(80, 1, low=-2, high=2).numpy():
        after = env.step(torque)[0]
        rows.append((state, torque, after))
        state = after
    before, actions, after = (np.array(column) for column in zip(*rows, strict=True))
    table = Transitions(before, actions, after)
    wrong = Transitions(table.state, table.action, table.next_state + 0.1)
    concatenate([table, wrong[:20]]).save("swings.hdf5")
    words = ("swings.hdf5", "--graph", "pendulum.py", "--environment", "Pendulum-v1", "--tolerance", 0.001)
    assert "80.0%" in done("audit", *words, "--workers", 0)
    assert found()["simulator"]["name"] == "Pendulum-v1" and "gymnasium" in found()["simulator"]["versions"]
    processes = done("audit", *words, "--workers", 1, "--out", "processes")
    assert "80.0%" in processes and found("processes") == found()


SLOW = (
    STEP.replace("def step", "def _step")
    + """
def step(rows):
    with open("asked.txt", "a") as file:
        file.write("rows\\n")
    time.sleep(0.05)
    return _step(rows)
"""
)
CHECKED = 20  # of these calls replay recorded rows first
OFTEN = """
import mocoda.analysis.replay as replay
import mocoda.cli

replay.CHUNK, replay.INTERVAL = 5, 0.0
mocoda.cli.main()
"""


def test_a_killed_audit_goes_on_to_the_same_bytes(desk: Path) -> None:
    Path("slow.py").write_text(SLOW)
    words = ("audit", "made.hdf5", "--graph", "slow.py", "--tolerance", 0.01, "--keep", "judged.hdf5")
    process = start(*words, cwd=desk, script=OFTEN)
    asked_for = Path("asked.txt")
    kill(process, lambda: asked_for.exists() and len(asked_for.read_text().splitlines()) >= CHECKED + 10)
    assert Path("runs/audit/replayed.safetensors").exists() and not Path("judged.hdf5").exists()
    asked = len(Path("asked.txt").read_text().splitlines())
    finished = start(*words, cwd=desk, script=OFTEN)
    _, err = finished.communicate(timeout=250)  # a slow machine also tells how far it is
    assert finished.returncode == 0, err
    assert len(Path("asked.txt").read_text().splitlines()) <= 2 * CHECKED + 50 + 2 < CHECKED + 50 + asked
    killed = {name: Path(name).read_bytes() for name in ("runs/audit/audit.json", "judged.hdf5")}
    Path("judged.hdf5").unlink()
    done(*words, "--out", "whole")
    assert killed["judged.hdf5"] == Path("judged.hdf5").read_bytes()
    assert killed["runs/audit/audit.json"] == Path("whole/audit.json").read_bytes()


def test_what_cannot_be_audited_is_refused_in_one_sentence(desk: Path) -> None:
    rejects("audit", "made.hdf5", "--graph", "plain.py")
    rejects("audit", "made.hdf5", "--graph", "step.py", "--environment", "Pendulum-v1")
    rejects("audit", "made.hdf5", "--environment", "Pendulum-v1")
    rejects("audit", "made.hdf5", "--tolerance", "x=wide")
    rejects("audit", "made.hdf5", "--tolerance", "z=1")
    rejects("audit", "made.hdf5", "--tolerance", -1)
    Path("bad.py").write_text(GRAPH + "\ndef step(rows):\n    return rows[:, :1]\n")
    rejects("audit", "made.hdf5", "--graph", "bad.py")
    Path("bad.py").write_text(GRAPH + "\ndef step(rows):\n    return rows / [1, 2]\n")
    message = refused("audit", "made.hdf5", "--graph", "bad.py")
    assert message.startswith("'bad.py': step raised TypeError in line 10: ")
    assert message.endswith("It was given (100, 4). That was row 0 of the data.")
    assert below(desk) == ["bad.py", "made.hdf5", "pendulum.py", "plain.py", "step.py"]


def test_nothing_of_the_user_s_is_overwritten() -> None:
    Path("mine.hdf5").write_text("mine")
    rejects("audit", "made.hdf5", "--keep", "mine.hdf5")
    rejects("audit", "made.hdf5", "--keep", "made.hdf5")
    Path("runs/audit").mkdir(parents=True)
    Path("runs/audit/audit.json").write_text("mine")
    rejects("audit", "made.hdf5")
    assert Path("mine.hdf5").read_text() == Path("runs/audit/audit.json").read_text() == "mine"


def test_conditions_that_make_no_sense_are_refused() -> None:
    export = ("export", "made.hdf5", "--to", "some.hdf5", "--where")
    rejects(*export, "support~1")
    rejects(*export, "supports>1")
    rejects(*export, "support>1", "recipe=0")
    TASK.collect(20, seed=0).save("walks.hdf5")
    rejects("export", "walks.hdf5", "--to", "some.hdf5", "--where", "support>1")
    done("export", "walks.hdf5", "--to", "some.hdf5", "--where", "x > 0.3", "next.y < x and step < 5")
    some = read("some.hdf5")
    assert (some.state[:, 0] > 0.3).all() and (some.next_state[:, 1] < some.state[:, 0]).all()
