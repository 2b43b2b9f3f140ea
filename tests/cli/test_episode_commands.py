"""`mocoda augment --episodes` and `mocoda audit --episodes`: whole episodes, made and replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import TINY, below, done, rejects
from transition_tables import assert_identical

import mocoda
from mocoda import Transitions, augment_episodes, make_task

TASK = make_task("navigation")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    TASK.collect(600, seed=0).save("walks.hdf5")
    yield tmp_path


def test_episodes_of_coda_are_those_of_augment_episodes() -> None:
    words = ["augment", "walks.hdf5", "--recipe", "coda", "--episodes", 20, "--length", 7, "--out", "made.hdf5"]
    printed = done(*words)
    made = Transitions.load("made.hdf5")
    data = Transitions.load("walks.hdf5")
    assert_identical(made, augment_episodes(data, TASK.graph, recipe="coda", episodes=20, length=7, task=TASK))
    assert made.episode is not None and data.episode is not None
    assert int(made.episode.max()) == int(data.episode.max()) + 20
    new = len(made) - 600
    assert f"made.hdf5: {600 + new:,} transitions, {new:,} of them new by recipe coda, in 20 episodes" in printed
    assert "ended where" in printed
    rejects(*words, "--seed", 1)


def test_episodes_of_a_model_are_written_in_any_format_and_alone() -> None:
    words = ["augment", "walks.hdf5", *TINY, "--episodes", 5, "--no-keep-recorded", "--density", "matched"]
    done(*words, "--out", "made.hdf5")
    made = Transitions.load("made.hdf5")
    assert made.source["generated_episodes"] == 5 and made.source["recorded_rows"] == 0
    for out in ("made.npz", "minari:made-v0", "d3rlpy:made.h5"):
        done("export", "made.hdf5", "--to", out)
        back = mocoda.read(out)
        assert back.episode is not None and made.episode is not None and back.episode.equal(made.episode)
    import minari

    assert minari.load_dataset("made-v0").total_episodes == 5


def test_what_makes_no_episodes_is_refused_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mocoda.dynamics.fit_dynamics", lambda *given, **named: pytest.fail("trained"))
    before = below(tmp_path)
    rejects("augment", "walks.hdf5", "--episodes", 5, "--rows", 100, "--min-support", 0.1)
    rejects("augment", "walks.hdf5", "--length", 5)
    rejects("augment", "walks.hdf5", "--turns")
    rejects("augment", "walks.hdf5", "--turns", "--episodes", 5)
    rejects("augment", "walks.hdf5", "--turns", "--episodes", 5, "--recipe", "coda")
    rejects("augment", "walks.hdf5", "--episodes", 0)
    rejects("augment", "walks.hdf5", "--episodes", 5, "--recipe", "emp")
    assert below(tmp_path) == before
    data = Transitions.load("walks.hdf5")
    Transitions(data.state, data.action, data.next_state).save("alone.hdf5")
    rejects("augment", "alone.hdf5", "--task", "navigation", "--episodes", 5)


# --- audit


def test_whole_episodes_are_audited() -> None:
    done("augment", "walks.hdf5", "--recipe", "coda", "--episodes", 20, "--out", "made.hdf5")
    printed = done("audit", "made.hdf5", "--episodes", 8, "--out", "audit", "--keep", "kept.hdf5")
    found = json.loads(Path("audit/audit.json").read_text())
    assert {name: (cell["episodes"], cell["share"]) for name, cell in found["by"]["episode"].items()} == {
        "recorded": (8, 1.0),
        "coda": (8, 1.0),
    }
    assert "Confirmed, by episode" in printed and found["confirmed"] == 1.0
    kept = Transitions.load("kept.hdf5")
    assert kept.episode is not None
    assert len(kept.episode[kept.provenance["confirmed"] == 1].unique()) == 16
    rejects("audit", "made.hdf5", "--episodes", 8, "--rows", 10, "--out", "other")


# --- more objects


def test_objects_are_added_to_a_built_in_world_and_the_file_knows_its_task() -> None:
    small, big = make_task("objects:2"), make_task("objects:3")
    data = small.collect(600, seed=0)
    data.save("two.hdf5")
    names = ("object1", "object2", "object3")
    words = ["add-objects", "two.hdf5", "--bigger", "objects:3", "--alike", *names, "--out", "three.hdf5"]
    said = done(*words, "--seed", 4)
    made, wanted = mocoda.read("three.hdf5"), mocoda.add_objects(data, small.graph, big.graph, names, seed=4)
    assert said.startswith(f"three.hdf5: {len(made):,} transitions with {', '.join(names)}, of 600 recorded, in ")
    assert made.rows.equal(wanted.rows) and made.next_state.equal(wanted.next_state) and made.reward is not None
    done("augment", "three.hdf5", "--recipe", "coda", "--rows", 50, "--out", "more.hdf5")
    rejects(*words)


def test_objects_are_added_to_a_world_of_one_s_own_by_two_graph_files() -> None:
    edges = '[edges]\nhand = ["hand", "action"]\nbox1 = ["box1"]\n'
    near = '[[near]]\nbetween = ["hand", "{}"]\ncolumns = {{ hand = [0], {} = [0] }}\nwithin = 1.0\n'
    Path("one.toml").write_text(edges + near.format("box1", "box1"))
    boxes = near.format("box1", "box1") + near.format("box2", "box2")
    Path("two.toml").write_text(edges + 'box2 = ["box2"]\n' + boxes)
    steps = torch.arange(20.0)
    parts = [
        Transitions(
            torch.stack([steps, torch.full_like(steps, place), steps * 0], 1),
            torch.ones(20, 1),
            torch.stack([steps + 1, torch.full_like(steps, place), steps * 0], 1),
            columns=("hand.x", "box1.x", "box1.turned", "push"),
            episode=torch.full((20,), number),
        )
        for number, place in enumerate((5.5, 40.0, 50.0))
    ]
    mocoda.concatenate(parts).save("mine.hdf5")
    words = ["add-objects", "mine.hdf5", "--graph", "one.toml", "--bigger", "two.toml", "--alike"]
    done(*words, "box1", "box2", "--out", "b.hdf5")
    for alike in (("box1",), ("bax1", "box2")):
        rejects(*words, *alike, "--out", "c.hdf5")
    made = mocoda.read("b.hdf5")
    assert made.columns == ("hand.x", "box1.x", "box1.turned", "box2.x", "box2.turned", "push")
    assert len(made) == 60 and not bool((made.state[:, 1] == made.state[:, 3]).any())
    assert made.next_state[:, [1, 3]].equal(made.state[:, [1, 3]]) and made.reward is None
