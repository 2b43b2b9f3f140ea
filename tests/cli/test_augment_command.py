"""`mocoda augment`: graph files, rewards, goals, filters, models of other runs, and runs that go on after a kill."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import SLOW, TINY, below, done, kill, rejects, start

from mocoda import Transitions, augment, fit_dynamics, fit_parents, fit_reward, make_task
from mocoda.augmentation import RewardConfig
from mocoda.data.formats import FORMATS
from mocoda.dynamics import DynamicsConfig
from mocoda.engine.checkpoint import load_trained
from mocoda.engine.runs import settings_of
from mocoda.parents import RECIPES

TASK = make_task("navigation")
CONFIG = DynamicsConfig(members=2, hidden=(8,), features=4, epochs=1, batch=64, window=1)
PLAIN = """
state = {"x": 0, "y": 1}
action = {"dx": 0, "dy": 1}
edges = {"x": ["x", "dx"], "y": ["y", "dy"]}
"""
REWARDED = (
    PLAIN
    + """
def local(f):
    both = (f["x"][:, 0] > 0.5) & (f["y"][:, 0] > 0.5)
    return {("y", "x"): both, ("x", "y"): both, ("dy", "x"): both, ("dx", "y"): both}

def reward(state, action, next_state):
    return next_state.sum(1)
"""
)


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with somebody's data and two graph files; rewards are learned in no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mocoda.augmentation.fit_reward", partial(fit_reward, config=RewardConfig((8,), 20, 32)))
    data = TASK.collect(300, seed=0)
    data.save("walks.hdf5")
    arrays = {"observations": data.state, "actions": data.action, "next_observations": data.next_state}
    arrays |= {"rewards": -data.next_state.norm(dim=1), "terminals": data.next_state[:, 1] > 0.8}
    values: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    np.savez("mine.npz", **values)
    Path("plain.py").write_text(PLAIN)
    Path("rewarded.py").write_text(REWARDED)
    yield tmp_path


def words_of(*more: object, graph: str = "rewarded.py") -> list[object]:
    model = [] if {"emp", "coda"} & set(more) else TINY
    return ["augment", "mine.npz", "--graph", graph, "--rows", 120, *model, "--out", "out.hdf5", *more]


def made(*more: object, graph: str = "rewarded.py") -> Transitions:
    done(*words_of(*more, graph=graph))
    return Transitions.load("out.hdf5")


def assert_same_rows(one: Transitions, other: Transitions) -> None:
    for name in ("state", "action", "next_state", "reward", "terminal"):
        assert getattr(one, name).equal(getattr(other, name)), name


# What is written


@pytest.mark.parametrize("recipe", [name for name, kind in RECIPES.items() if not kind.needs_model])
def test_recipes_without_a_model_write_what_augment_returns(recipe: str) -> None:
    printed = done("augment", "walks.hdf5", "--recipe", recipe, "--rows", 1000, "--seed", 5, "--out", "out.hdf5")
    assert printed == f"out.hdf5: 1,300 transitions, 1,000 of them new by recipe {recipe}\n"
    data, out = Transitions.load("walks.hdf5"), Transitions.load("out.hdf5")
    parents = fit_parents(data, TASK.graph, recipe, seed=5, task=TASK)
    assert_same_rows(out, augment(data, parents, rows=1_000, task=TASK, seed=5))
    assert out.source["recorded"] == data.source and out.source["task"] == "navigation"
    settings = settings_of("out.hdf5.run")
    assert settings["recipe"] == recipe and settings["keep_recorded"] is True and "out" not in settings


@pytest.mark.parametrize(("recipe", "architecture"), [("mocoda-u", "local"), ("dyna", "full")])
def test_a_model_is_trained_once_and_serves_other_recipes(recipe: str, architecture: str) -> None:
    words = ["augment", "walks.hdf5", "--rows", 300, "--seed", 1, "--dynamics", architecture, *TINY]
    done(*words, "--recipe", recipe, "--out", "out.hdf5")
    data = Transitions.load("walks.hdf5")
    model = fit_dynamics(data, TASK.graph, architecture, seed=1, config=CONFIG)
    parents = fit_parents(data, TASK.graph, recipe, seed=1, task=TASK, model=model)
    assert_same_rows(Transitions.load("out.hdf5"), augment(data, parents, model, rows=300, task=TASK, seed=1))
    trained = Path("out.hdf5.run/dynamics.safetensors").stat().st_mtime_ns
    Path("out.hdf5").unlink()
    done(*words, "--recipe", recipe, "--out", "out.hdf5")
    assert Path("out.hdf5.run/dynamics.safetensors").stat().st_mtime_ns == trained
    done(*words, "--recipe", "rand", "--out", "alone.hdf5")
    done(*words, "--recipe", "rand", "--model", "out.hdf5.run", "--out", "other.hdf5")
    assert_same_rows(Transitions.load("other.hdf5"), Transitions.load("alone.hdf5"))
    assert not Path("other.hdf5.run/dynamics.safetensors").exists()


def test_no_model_is_trained_where_every_next_state_is_recorded_unless_it_is_asked() -> None:
    make_task("objects:2").collect(400, seed=0).save("objects.hdf5")
    words = ["augment", "objects.hdf5", "--rows", 300, *TINY]
    printed = done(*words, "--out", "copied.hdf5")
    assert "no model was trained" in printed and not Path("copied.hdf5.run/dynamics.safetensors").exists()
    for more in (["--max-disagreement", 5], ["--dynamics", "full"]):
        done(*words, *more, "--overwrite", "--out", "asked.hdf5")
        assert Path("asked.hdf5.run/dynamics.safetensors").exists()
    copied, asked = Transitions.load("copied.hdf5"), Transitions.load("asked.hdf5")
    assert copied.rows.equal(asked.rows) and not copied.next_state.equal(asked.next_state)


def test_rewards_are_the_file_s_or_learned_or_none() -> None:
    by_file = made("--recipe", "coda")
    assert by_file.reward is not None and by_file.reward.equal(by_file.next_state.sum(1))
    assert by_file.source["task"] == "rewarded"
    printed = done(*words_of("--recipe", "emp", "--overwrite", graph="plain.py"))
    assert printed.startswith("Rewards are learned from the data's own: on 38 rows held out, ")
    assert Transitions.load("out.hdf5").source["reward"]["learned"] is True
    assert done(*words_of("--recipe", "emp", "--reward", "none", "--overwrite")).endswith(
        "No row has a reward: --reward none.\n"
    )
    assert Transitions.load("out.hdf5").reward is None


def test_filters_and_strata_are_options() -> None:
    printed = done(*words_of("--min-support", 0.3, "--max-disagreement", 5, "--stratified", "--no-keep-recorded"))
    table = Transitions.load("out.hdf5")
    assert table.provenance["support"].min() >= 0.3 and "neighbourhoods" in table.source
    share = 100 * table.source["filter"]["accepted_share"]
    drawn = table.source["filter"]["drawn_rows"]
    assert printed.endswith(f"The filters accepted {share:.3g}% of {drawn:,} rows drawn.\n")
    assert not made("--recipe", "coda", "--no-provenance", "--overwrite").provenance


def test_other_processes_read_the_graph_file_themselves_and_make_the_same_rows() -> None:
    words = words_of("--stratified")
    done(*words)
    alone = Path("out.hdf5").read_bytes()
    Path("out.hdf5").unlink()
    done(*words, "--workers", 1)
    assert Path("out.hdf5").read_bytes() == alone


COUNTED = """
from pathlib import Path
with Path("runs.txt").open("a") as file:
    file.write("x")
"""


@pytest.mark.parametrize("more", [[], ["--workers", 1], ["--episodes", 3, "--recipe", "coda"], ["--shards", 2]])
def test_the_graph_file_runs_once_and_the_data_is_read_once(
    more: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("counted.py").write_text(COUNTED + REWARDED)
    reads: list[str] = []

    def counting(place: str, **how: Any) -> Any:
        reads.append(place)
        return read(place, **how)

    read = FORMATS["mocoda"].read
    monkeypatch.setitem(FORMATS.data, "mocoda", replace(FORMATS["mocoda"], read=counting))
    words = ["augment", "walks.hdf5", "--graph", "counted.py", *(["--rows", 120, *TINY] if "coda" not in more else [])]
    done(*words, *more, "--out", "folder" if "--shards" in more else "out.hdf5")
    assert (reads, Path("runs.txt").read_text()) == (["walks.hdf5"], "x")


GOALS = """
state = {"p": [0, 1], "t": 2}
action = {"u": [0, 1]}
edges = {"p": ["p", "u"], "t": ["t"]}

def achieved(state):
    return state[:, :2]

def reward(state, action, next_state, goal):
    return (next_state[:, :2] - goal).norm(dim=1)
"""


@pytest.mark.parametrize("source", ["learned", "file"])
def test_goals_come_from_the_data_or_from_hindsight(source: str) -> None:
    state, action = torch.linspace(-1, 1, 600).reshape(200, 3), torch.linspace(-0.5, 0.5, 400).reshape(200, 2)
    next_state = torch.cat([state[:, :2] + action, state[:, 2:]], 1)
    goal = state[:, :2].flip(0)
    Transitions(state, action, next_state, -(next_state[:, :2] - goal).norm(dim=1), goal=goal).save("goals.hdf5")
    Path("goals.py").write_text(GOALS)
    words = ["--recipe", "emp", "--rows", 400, "--hindsight", 0.25, "--reward", source, "--out", "out.hdf5"]
    done("augment", "goals.hdf5", "--graph", "goals.py", *words)
    table = Transitions.load("out.hdf5")
    assert table.goal is not None and table.reward is not None
    own = (table.goal == table.next_state[:, :2]).all(1)
    assert 0.15 < float(own.float().mean()) < 0.35
    assert set(map(tuple, table.goal[~own].tolist())) <= set(map(tuple, goal.tolist()))
    assert table.reward.equal((table.next_state[:, :2] - table.goal).norm(dim=1)) == (source == "file")


def test_augmented_data_is_augmented_again() -> None:
    done("augment", "walks.hdf5", "--recipe", "coda", "--rows", 120, "--out", "one.hdf5")
    done("augment", "one.hdf5", "--recipe", "emp", "--rows", 30, "--out", "two.hdf5")
    assert Transitions.load("two.hdf5").provenance["recipe"].tolist() == [0] * 300 + [2] * 120 + [1] * 30


# What is refused


def test_another_graph_or_other_weights_are_another_run() -> None:
    made()
    Path("rewarded.py").write_text(PLAIN)
    rejects(*words_of())
    common = ["augment", "mine.npz", "--graph", "plain.py", "--rows", 50, "--reward", "none"]
    for seed in (0, 1):
        done(*common, *TINY, "--seed", seed, "--out", f"{seed}.hdf5")
    model = Path("model.safetensors")
    model.write_bytes(Path("0.hdf5.run/dynamics.safetensors").read_bytes())
    done(*common, "--model", model, "--out", "by-model.hdf5")
    model.write_bytes(Path("1.hdf5.run/dynamics.safetensors").read_bytes())
    rejects(*common, "--model", model, "--out", "by-model.hdf5")


def test_what_cannot_be_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mocoda.dynamics.fit_dynamics", lambda *given, **named: pytest.fail("trained"))
    before = below(tmp_path)
    rejects(*words_of("--task", "navigation"))
    rejects(*words_of("--reward", "learnt"))
    rejects(*words_of("--reward", "file", graph="plain.py"))
    rejects(*words_of("--hindsight", 0.5, graph="plain.py"))
    rejects(*words_of("--recipe", "mocoda-p"))
    rejects("augment", "walks.hdf5", "--recipe", "coda", "--max-disagreement", 0.1)
    rejects(*words_of("--min-support", 0.1, "--no-provenance"))
    assert below(tmp_path) == before


# Killed


def run_slowly(pause: float, *words: object, cwd: Path) -> None:
    process = start(pause, "small", *words, cwd=cwd, script=SLOW)
    _, err = process.communicate(timeout=250)
    assert process.returncode == 0, err


def lines_of(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "progress.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_to_the_same_bytes(how: signal.Signals, tmp_path: Path) -> None:
    words = ["augment", "mine.npz", "--graph", "rewarded.py", "--recipe", "coda", "--rows", "2000", "--out"]
    run_slowly(0, *words, "whole.hdf5", cwd=tmp_path)
    process = start(0.1, "small", *words, "killed.hdf5", cwd=tmp_path, script=SLOW)
    note = Path("killed.hdf5.run/unfinished.json")
    kill(process, lambda: note.exists() and json.loads(note.read_text() or '{"pieces": 0}')["pieces"] >= 5, how)
    assert not Path("killed.hdf5").exists()
    finished, before = json.loads(note.read_text())["pieces"], len(lines_of("killed.hdf5.run"))
    assert 5 <= finished < 41
    run_slowly(0, *words, "killed.hdf5", cwd=tmp_path)
    first = lines_of("killed.hdf5.run")[before]
    assert (first["stage"], first["total"]) == ("augment", 2_000) and first["done"] >= (finished - 1) * 50
    assert Path("killed.hdf5").read_bytes() == Path("whole.hdf5").read_bytes()
    assert not list(Path("killed.hdf5.run").glob("unfinished*"))


def test_a_killed_training_of_the_model_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    words = ["augment", "walks.hdf5", "--rows", "500", "--recipe", "rand"]
    words += ["--dynamics.members", "2", "--dynamics.hidden", "16"]
    words += ["--dynamics.features", "8", "--dynamics.epochs", "150", "--dynamics.batch", "512", "--out"]
    process = start(0, "small", *words, "killed.hdf5", cwd=tmp_path, script=SLOW)
    checkpoint = Path("killed.hdf5.run/checkpoint.safetensors")
    kill(process, checkpoint.exists)
    assert not Path("killed.hdf5.run/dynamics.safetensors").exists()
    epochs = load_trained(checkpoint, "checkpoint")[1]["settings"]["done"]
    before = len(lines_of("killed.hdf5.run"))
    for name in ("killed", "whole"):
        run_slowly(0, *words, f"{name}.hdf5", cwd=tmp_path)
    assert 0 < epochs < 150 and lines_of("killed.hdf5.run")[before]["done"] == epochs + 1
    for file in ("hdf5", "hdf5.run/dynamics.safetensors"):
        assert Path(f"killed.{file}").read_bytes() == Path(f"whole.{file}").read_bytes()


def test_rows_of_a_region_are_made_without_a_task_for_it() -> None:
    TASK.collect(2_000, seed=0).save("walks.hdf5")
    words = ["augment", "walks.hdf5", "--recipe", "coda", "--rows", 200, "--no-keep-recorded"]
    printed = done(*words, "--out", "out.hdf5", "--where", "x > 0.6", "y < 0.3")
    assert "Of 2,000 recorded rows, " in printed and "% are in the region.\n" in printed
    out = Transitions.load("out.hdf5")
    assert out.state[:, 0].min() > 0.6 and out.state[:, 1].max() < 0.3
    rejects(*words, "--out", "out.hdf5", "--where", "x > 0.7")  # it would replace other rows
    rejects(*words, "--out", "none.hdf5", "--where", "x > 0.7 and y > 1.5")
    rejects(*words, "--out", "none.hdf5", "--where", "z > 0.7")
    rejects("augment", "missing.hdf5", "--where", "x > > 0")
    rejects("augment", "walks.hdf5", "--episodes", 2, "--where", "x > 0.7")
    assert not Path("none.hdf5.run").exists()
