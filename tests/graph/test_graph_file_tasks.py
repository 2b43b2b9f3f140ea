"""Graph files that are tasks too: rewards, goals and hints, in any process, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from approved import refused
from graph_texts import NAMES, PYTHON, ROWS, data, write

from mocoda import augment, fit_parents, load_graph, load_task
from mocoda.augmentation.generation import GoalLabels
from mocoda.graph.columns import ColumnNames
from mocoda.graph.graph_file import FileTask

STATE, ACTION, NEXT = ROWS[:, :7], ROWS[:, 7:], ROWS[:, :7] + 0.1
REWARD = """
def reward(state, action, next_state):
    return -(next_state[:, 3] - 0.5).abs()
"""
GOALS = """
import torch

def achieved(state):
    return state[:, 3:5]

def goals(n, seed, device):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed))

def reward(state, action, next_state, goal):
    return -(achieved(next_state) - goal).norm(dim=1)

def terminal(state, action, next_state, goal):
    return reward(state, action, next_state, goal) > -0.1
"""
HINTS = """
box = ([0.0] * 7 + [-1] * 2, [1.0] * 9)

def features(rows):
    return rows[:, 3:5]

def region(rows):
    return rows[:, 3] > 0.5
"""


def task(folder: Path, text: str, name: str = "my_graph.py") -> FileTask:
    return load_task(write(folder, PYTHON + text, name), NAMES)


def test_a_file_with_a_graph_alone_is_a_task_with_a_graph_alone(tmp_path: Path) -> None:
    loaded = task(tmp_path, "", "pushing.py")
    assert loaded.name == "pushing"
    assert [name for name, value in vars(loaded).items() if value is not None] == ["name", "graph", "fingerprint"]
    assert not isinstance(loaded, GoalLabels)


def test_the_fingerprint_is_the_texts_and_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    one, same, other = task(tmp_path, "", "a.py"), task(tmp_path, "", "b.py"), task(tmp_path, HINTS, "a.py")
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.box is None and other.box is not None


def test_reward_and_terminal_are_the_label(tmp_path: Path) -> None:
    label = task(tmp_path, REWARD).label
    assert label is not None
    reward, terminal = label(STATE, ACTION, NEXT)
    assert torch.equal(reward, -(NEXT[:, 3] - 0.5).abs())
    assert terminal.tolist() == [False] * 300
    ends = task(tmp_path, REWARD + "def terminal(s, a, n):\n    return (n[:, 3] > 0.5).numpy()").label
    assert ends is not None
    assert ends(STATE, ACTION, NEXT)[1].tolist() == (NEXT[:, 3] > 0.5).tolist()


def test_a_file_with_goals_labels_every_row_with_one(tmp_path: Path) -> None:
    loaded: Any = task(tmp_path, GOALS)
    goals: object = loaded
    assert isinstance(goals, GoalLabels)
    parents = fit_parents(data(), loaded.graph, "emp", seed=0)
    made = augment(data(), parents, rows=200, task=loaded, seed=0, hindsight=0.5)
    assert made.goal is not None and made.reward is not None
    own = (made.goal == made.next_state[:, 3:5]).all(1)
    assert 0.4 < own.float().mean() < 0.6
    assert torch.allclose(made.reward, -(made.next_state[:, 3:5] - made.goal).norm(dim=1))
    assert made.terminal[own].all()
    again = augment(data(), parents, rows=200, task=loaded, seed=0, hindsight=0.5)
    assert again.goal is not None and torch.equal(again.goal, made.goal)


def test_a_file_may_say_itself_what_reaches_a_goal(tmp_path: Path) -> None:
    above = "\ndef reached(achieved, goal):\n    return (achieved > goal).all(1)\n"
    loaded: Any = task(tmp_path, GOALS[: GOALS.index("def reward")] + above)
    assert loaded.reached(NEXT, STATE).all() and not loaded.reached(STATE, NEXT).any()
    assert loaded.label(STATE, ACTION, NEXT, STATE[:, 3:5])[1].all()
    with refused():
        task(tmp_path, GOALS + above.replace(".all(1)", "")).reached(STATE, NEXT)  # type: ignore[misc]
    with refused():
        load_task(write(tmp_path, PYTHON + GOALS + above), NAMES, achieved=["box1.x"], tolerance=0.1)


def test_things_move_one_at_a_time_in_the_order_of_the_graph_or_as_the_file_says(tmp_path: Path) -> None:
    file, achieved, goal = write(tmp_path, PYTHON), torch.zeros(4), torch.tensor([1.0, 0.0, 0.5, 0.5])
    boxes = ["box2.x", "box1.y", "box1.x", "box2.y"]
    next_goal: Any = load_task(file, NAMES, achieved=boxes, tolerance=0.6).next_goal
    assert next_goal(achieved, goal).tolist() == [1.0, 0.0, 0.0, 0.5]  # the first box is near enough
    assert next_goal(achieved, 2 * goal).tolist() == [0.0, 0.0, 1.0, 0.0]
    assert next_goal(goal, goal).equal(goal)
    for columns, tolerance in ((boxes, None), (boxes[1:3], 0.6)):  # nothing says when they are there; it is one thing
        assert load_task(file, NAMES, achieved=columns, tolerance=tolerance).next_goal is None
    own = write(tmp_path, PYTHON + "\ndef next_goal(achieved, goal):\n    return goal.numpy()[:4]\n", "own.py")
    next_goal = load_task(own, NAMES, achieved=boxes, tolerance=0.6).next_goal
    assert next_goal(achieved, goal).equal(goal)
    with refused():
        next_goal(torch.zeros(5), torch.zeros(5))


def test_hints_are_handed_to_recipes(tmp_path: Path) -> None:
    loaded: Any = task(tmp_path, HINTS)
    assert loaded.box[0].tolist() == [0.0] * 7 + [-1.0] * 2
    drawn = fit_parents(data(), loaded.graph, "rand", task=loaded, seed=0).sample(500, seed=0)
    assert drawn[:, 7:].min() < -0.9 and drawn[:, :7].min() >= 0
    assert torch.equal(loaded.features(ROWS), ROWS[:, 3:5])
    assert torch.equal(loaded.region(ROWS), ROWS[:, 3] > 0.5)


def _there(path: Path, names: ColumnNames) -> list[Any]:
    label = load_task(path, names).label
    assert label is not None
    return [load_graph(path, names).mask(ROWS).tolist(), label(STATE, ACTION, NEXT)[0].tolist()]


def test_functions_import_modules_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_graph.py").write_text("def step(rows):\n    return rows[:, :7] + 1\n")
    file = write(
        tmp_path, PYTHON + "\ndef step(rows):\n    import beside_the_graph\n    return beside_the_graph.step(rows)\n"
    )
    step = load_task(file, data()).step
    assert step is not None and step(ROWS).equal(STATE + 1)
    (tmp_path / "json.py").write_text("raise AssertionError('hides the module of the standard library')")
    load_task(write(tmp_path, "import json\n" + PYTHON, "other.py"), data())


def test_another_process_loads_the_same_and_nothing_is_left_behind(tmp_path: Path) -> None:
    file, before = write(tmp_path, PYTHON + REWARD), set(sys.modules)
    load_task(file, NAMES)
    assert set(sys.modules) == before
    assert [path.name for path in tmp_path.iterdir()] == ["my_graph.py"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_there, (file, NAMES)) == _there(file, NAMES)


# --- what is refused


@pytest.mark.parametrize(
    "text",
    [
        "def reward(s, a, n):\n    return n[:, :1]",
        "def reward(s, a, n):\n    return 1.0",
        "def reward(s, a, n):\n    return n[:, {}['x']]",
        REWARD + "def terminal(s, a, n):\n    return n[:, 0]",
        GOALS,
    ],
    ids=range(5),
)
def test_a_reward_that_cannot_be_is_refused_when_it_is_called(text: str, tmp_path: Path) -> None:
    label = task(tmp_path, text).label
    assert label is not None
    with refused():
        label(STATE, ACTION, NEXT)


def test_functions_of_rows_and_goals_are_checked_too(tmp_path: Path) -> None:
    text = "def features(rows):\n    return rows[:, 0]\ndef region(rows):\n    return rows[:, 0]"
    loaded: Any = task(tmp_path, text + REWARD)
    few: Any = task(tmp_path, GOALS.replace("torch.rand(n,", "torch.rand(3,"))
    with refused():
        loaded.label(STATE, ACTION, NEXT, NEXT[:, :2])  # its reward is not about goals
    for function in (loaded.features, loaded.region):
        with refused():
            function(ROWS)
    with refused():
        few.goals(5, seed=0, device="cpu")


@pytest.mark.parametrize(
    "text",
    [
        "reward = 3",
        "def reward(state, action):\n    pass",
        "def reached(achieved, goal):\n    pass" + REWARD,
        "def terminal(s, a, n):\n    pass",
        "def next_goal(achieved, goal):\n    pass",
        "def next_goal(achieved):\n    pass",
        "def rewards(s, a, n):\n    pass",
        "box = 3",
        "box = ([1] * 9, [0] * 9)",
    ],
    ids=range(9),
)
def test_a_task_that_cannot_be_is_refused(text: str, tmp_path: Path) -> None:
    file = write(tmp_path, PYTHON + text)
    with refused():
        load_task(file, NAMES)
