"""Recording, labelling, converting and asking about data by the command line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import TINY, below, done, kill, mocoda, rejects, start

from mocoda import (
    Dynamics,
    InputError,
    Transitions,
    fit_reward,
    label,
    load_graph,
    make_task,
    read,
    what_if,
)
from mocoda.augmentation import RewardConfig
from mocoda.cli.options import check_device
from mocoda.data import FORMATS
from mocoda.engine.randomness import Stream

LIFT = """
action = {"drive": "drive", "hoist": "hoist"}
edges = {"cart": ["cart", "drive"], "lift": ["lift", "hoist"]}
"""
COLUMNS = ("cart.place", "lift.height", "drive", "hoist")
NAMES = ("state", "action", "next_state", "reward", "terminal")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with data of one's own and its graph file, and recorded data."""
    monkeypatch.chdir(tmp_path)
    Path("lift.py").write_text(LIFT)
    rows = Stream(0, "own-data").uniform(300, 4)
    rows[:, 2:] = 3 * rows[:, 2:] - 1.5
    state, action = rows[:, :2], rows[:, 2:]
    Transitions(state, action, state + 0.1 * action, columns=COLUMNS).save("mine.hdf5")
    make_task("navigation").collect(400, seed=3).save("walks.hdf5")
    yield tmp_path


def assert_same_rows(one: Transitions, other: Transitions) -> None:
    for name in NAMES:
        assert getattr(one, name).equal(getattr(other, name)), name


def test_data_that_is_there_is_not_replaced_unasked() -> None:
    before = Path("walks.hdf5").read_bytes()
    for words in ("export mine.hdf5 --to", "label walks.hdf5 --out", "graph lift.py --data mine.hdf5 --out"):
        rejects(*words.split(), "walks.hdf5")
    assert Path("walks.hdf5").read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        "augment walks.hdf5 --recipe emp --no-keep-recorded --out walks.hdf5 --overwrite",
        "label walks.hdf5 --out walks.hdf5 --overwrite",
        "label mine.hdf5 --reward-from walks.hdf5 --out walks.hdf5 --overwrite",
        "export walks.hdf5 --to d4rl:walks.hdf5 --overwrite",
        "inspect walks.hdf5 --json walks.hdf5 --overwrite",
    ],
)
def test_an_input_is_never_replaced(words: str) -> None:
    before = Path("walks.hdf5").read_bytes()
    rejects(*words.split())
    assert Path("walks.hdf5").read_bytes() == before and not Path("walks.hdf5.run").exists()


def test_a_terminated_command_removes_what_it_had_begun(tmp_path: Path) -> None:
    process = start("collect", "navigation", "--rows", 2_000_000, "--out", "big.hdf5", cwd=tmp_path)
    kill(process, lambda: list(tmp_path.glob(".big.hdf5.*.part")), signal.SIGTERM)
    assert process.returncode == 143
    assert not [path.name for path in tmp_path.iterdir() if path.is_file() and "big" in path.name]


# Label


def test_label_gives_recorded_rows_the_rewards_of_a_task() -> None:
    task, data = make_task("navigation"), Transitions.load("walks.hdf5")
    bare = Transitions(data.state, data.action, data.next_state)
    bare.save("bare.hdf5")
    assert done("label", "bare.hdf5", "--task", "navigation", "--out", "out.hdf5") == (
        f"out.hdf5: 400 transitions with rewards from -1 to 0, {int(data.terminal.sum())} terminal\n"
    )
    labelled = Transitions.load("out.hdf5")
    assert_same_rows(labelled, data)
    assert labelled.source["task"] == "navigation"
    assert_same_rows(label(bare, task), data)


def test_label_learns_the_reward_of_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(data: Transitions, **options: object) -> object:
        return fit_reward(data, config=RewardConfig((8,), 20, 32), seed=0)

    monkeypatch.setattr("mocoda.augmentation.fit_reward", small)
    walks = Transitions.load("walks.hdf5")
    printed = done("label", "walks.hdf5", "--reward-from", "walks.hdf5", "--out", "out.npz")
    assert printed.startswith("The reward is learned: on 50 rows held out, ")
    reward, _ = fit_reward(walks, config=RewardConfig((8,), 20, 32)).label(walks.state, walks.action, walks.next_state)
    labelled = read("out.npz")
    assert labelled.reward is not None and labelled.reward.equal(reward)
    rejects("label", "walks.hdf5", "--reward-from", "walks.hdf5", "--task", "navigation", "--out", "x.npz")


def test_labelled_rows_keep_their_goals_and_hindsight_replaces_a_share() -> None:
    Path("goals.py").write_text(
        LIFT + "def achieved(state):\n    return state[:, :1]\n"
        "def reward(state, action, next_state, goal):\n    return -(next_state[:, 0] - goal[:, 0]).abs()\n"
    )
    data, goal = Transitions.load("mine.hdf5"), torch.arange(300.0)[:, None]
    replace(data, goal=goal).save("goals.hdf5")
    done("label", "goals.hdf5", "--graph", "goals.py", "--hindsight", 0.25, "--out", "out.hdf5")
    some = Transitions.load("out.hdf5")
    assert_same_rows(
        some, label(replace(data, goal=goal), make_task(graph="goals.py", data=data), hindsight=0.25, seed=0)
    )
    assert some.goal is not None and 0.15 < float((some.goal != goal).float().mean()) < 0.35
    rejects("label", "mine.hdf5", "--graph", "goals.py", "--out", "other.hdf5")
    rejects("label", "walks.hdf5", "--hindsight", 0.5, "--out", "other.hdf5")


# What if


def ask(*words: object) -> str:
    return done("whatif", "mine.hdf5", "--row", 7, "--change", "cart=0.2", "--graph", "lift.py", *TINY, *words)


def test_a_question_about_own_data_is_answered_by_its_graph_file() -> None:
    printed = ask("--seed", 3, "--out", "asked")
    data = Transitions.load("mine.hdf5")
    graph = load_graph("lift.py", data)
    answer = what_if(
        data[7:8],
        {"cart": torch.tensor([0.2])},
        model=Dynamics.load(Path("asked/dynamics.safetensors"), graph),
        graph=graph,
        data=data,
        seed=3,
    )
    assert answer.resampled.tolist() == [[True, False]]  # the lift's next height is kept
    assert cells(printed) == cells(str(answer))


def cells(table: str) -> list[list[str]]:
    """The texts in the rows of a table, however wide it is."""
    return [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if line.startswith("│")]


def test_a_second_question_asks_the_same_model_and_another_graph_needs_another_folder() -> None:
    ask("--least-support", 0, "--out", "asked")
    trained = Path("asked/dynamics.safetensors").stat().st_mtime_ns
    ask("--least-support", 0.001, "--resample", "hoist", "--out", "asked")
    assert Path("asked/dynamics.safetensors").stat().st_mtime_ns == trained
    Path("lift.py").write_text(LIFT.replace('["lift", "hoist"]', '["lift", "hoist", "cart"]'))
    words = ["whatif", "mine.hdf5", "--row", "7", "--change", "cart=0.2", "--graph", "lift.py", *TINY, "--out", "asked"]
    rejects(*words)
    ask("--least-support", 0, "--out", "asked", "--overwrite")
    assert Path("asked/dynamics.safetensors").stat().st_mtime_ns != trained


# Refused

REFUSED = [
    "collect maze",
    "collect [x]",
    "collect navigation --variety plain",
    "collect navigation --workers 2",
    "collect hooksweep2 --rows 0",
    "collect hooksweep2 --variety vary",
    "collect hooksweep2 --workers -1",
    "collect navigation --out FILE/x.hdf5",
    "collect navigation --out a.foo",
    "augment walks.hdf5 --task maze",
    "augment walks.hdf5 --dynamics lokal",
    "augment walks.hdf5 --recipe coda --model FILE",
    "augment walks.hdf5 --model x.hdf5.run --out x.hdf5",
    "augment none.hdf5 --out new/x.hdf5",
    "augment walks.hdf5 --rows -1",
    "whatif walks.hdf5 --row 0 --change z=1",
    "whatif walks.hdf5 --row 0 --change y",
    "whatif walks.hdf5 --row 400 --change y=1",
    "whatif walks.hdf5 --row 0 --change y=1 --task navigation --graph lift.py",
    "whatif mine.hdf5 --row 0 --change y=1",
    "label walks.hdf5 --hindsight 2",
    "label mine.hdf5 --graph lift.py",
    "export walks.hdf5 --to p.onnx --skip-bad-rows",
    "export walks.hdf5 --to p.onnx --verify",
]


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_ends_in_one_line_and_nothing_on_disk(words: str, tmp_path: Path) -> None:
    Path("FILE").write_text("mine")
    before = below(tmp_path)
    rejects(*words.split())
    assert below(tmp_path) == before and Path("FILE").read_text() == "mine"


def test_a_process_with_bad_input_ends_in_one_line_and_exit_code_2(tmp_path: Path) -> None:
    process = start("augment", "[/dim].hdf5", cwd=tmp_path)
    assert process.communicate(timeout=250) == ("", "error: there is no file '[/dim].hdf5'.\n")
    assert process.returncode == 2


@pytest.mark.parametrize("device", ["cuda:1", "cuda:99", "cudas", "cuda:x"])
def test_a_gpu_that_is_not_there_is_refused_where_another_one_is(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for known in ("cpu", "cuda", "cuda:0"):
        check_device(known)
    with pytest.raises(InputError, match=f"^there is no device {device!r} on this machine; there are: cpu, cuda:0"):
        check_device(device)


def test_arrays_and_columns_are_named_from_the_command_line(tmp_path: Path) -> None:
    ones = np.ones((9, 2), np.float32)
    np.savez("short.npz", s=ones, a=ones, s2=ones)
    words = ["--names", "state=s", "action=a", "next_state=s2", "--columns", "cup.x", "cup.y", "dx", "dy"]
    assert "cup.x" in done("inspect", "short.npz", *words)
    assert "9 transitions" in done("export", "short.npz", "--to", "short.hdf5", *words)
    assert Transitions.load("short.hdf5").columns == ("cup.x", "cup.y", "dx", "dy")
    Path("cup.toml").write_text("[edges]\ncup = ['cup', 'action']\n")
    assert "Drawn" in done("graph", "cup.toml", "--data", "short.npz", *words)
    rejects("inspect", "short.npz", "--names", "action")


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[1] / "data/lerobot/v3.0"
    assert done("export", recorded, "--to", "lerobot:again") == (
        "lerobot:again: 7 transitions\nLeft out when it was read, and so in no row: "
        "observation.images.top image (4, 4, 3).\n"
    )
    assert mocoda("export", recorded, "--to", "lerobot:again").code == 2
    assert "7 transitions" in done("export", "again", "--to", "robomimic:again.hdf5")
    assert "arm.x" in done("inspect", "again.hdf5")


def test_what_was_exported_is_read_back_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "400 rows are identical" in done("export", "walks.hdf5", "--to", "walks.csv", "--verify")
    whole = FORMATS["npz"].write
    assert whole is not None
    careless = replace(FORMATS["npz"], write=lambda data, place: whole(replace(data, reward=None), place))
    monkeypatch.setitem(FORMATS.data, "npz", careless)
    ended = mocoda("export", "walks.hdf5", "--to", "walks.npz", "--verify")
    assert (ended.code, ended.err) == (1, "") and "it differs: reward is missing" in ended.out
