from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mocoda import InputError
from mocoda.engine.files import versions
from mocoda.engine.runs import STAGES, RunFolder, settings_of

SETTINGS = {"rows": 10, "sizes": (1, 2), "out": Path("somewhere")}


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("mocoda.engine.runs.time", SimpleNamespace(monotonic=made.read, time=made.read))
    return made


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def steps(folder: Path) -> list[tuple[str, int, int]]:
    return [(line["stage"], line["done"], line["total"]) for line in log(folder)]


def test_the_folder_and_those_above_it_are_made_and_say_how(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    run = RunFolder(folder, "collect", SETTINGS)
    assert not folder.exists()
    with run as entered:
        assert entered is run and run.path == folder
    config = json.loads((folder / "config.json").read_text())
    assert config == {
        "command": "collect",
        "settings": {"rows": 10, "sizes": [1, 2], "out": "somewhere"},
        "versions": versions(),
    }


def test_progress_is_a_line_with_time_stage_and_steps(tmp_path: Path, clock: Clock) -> None:
    clock.now = 1_234.5678
    with RunFolder(tmp_path, "x", {}) as run:
        run.progress("fit", 1, 3)
    assert log(tmp_path) == [{"time": 1_234.57, "stage": "fit", "done": 1, "total": 3}]


def test_progress_is_written_once_a_second(tmp_path: Path, clock: Clock) -> None:
    with RunFolder(tmp_path, "x", {}) as run:
        for done in range(1, 26):
            run.progress("fit", done, 1_000)
            clock.now += 0.125
    assert steps(tmp_path) == [("fit", done, 1_000) for done in (1, 9, 17, 25)]


def test_the_end_of_a_stage_is_written_at_once(tmp_path: Path, clock: Clock) -> None:
    with RunFolder(tmp_path, "x", {}) as run:
        for stage in ("one", "two"):
            for done in (1, 2, 3):
                run.progress(stage, done, 3)
    assert steps(tmp_path) == [("one", 1, 3), ("one", 3, 3), ("two", 3, 3)]


def test_every_line_is_on_disk_as_soon_as_it_is_due(tmp_path: Path, clock: Clock) -> None:
    with RunFolder(tmp_path, "x", {}) as run:
        run.progress("fit", 1, 2)
        assert len(log(tmp_path)) == 1
        run.progress("fit", 2, 2)
        assert len(log(tmp_path)) == 2


SAVED = (
    *("dynamics.safetensors", "dynamics-full-0.safetensors", "checkpoint.safetensors", "checkpoint-sac.safetensors"),
    *("policy-emp-0.safetensors", "agents-sac/policy-emp-0.safetensors", "agents-sac/agents.json"),
    *("recorded.hdf5", "recording/part-00001-7.npz"),
)
OTHERS = (
    *("notes.txt", "table1.json", "agents.json", "mine.safetensors", "my-dynamics.safetensors", "policy.json"),
    *("below/own.safetensors", "below/policy-emp-0.safetensors", "agents-sac/notes.txt", "agents-sac/mine.safetensors"),
)


def left_behind(folder: Path) -> dict[str, str]:
    """A run with SETTINGS, what it saved, and files of somebody else."""
    with RunFolder(folder, "paper", SETTINGS) as run:
        run.progress("fit", 1, 1)
    contents = {name: f"the old {name}" for name in (*SAVED, *OTHERS)}
    for name, text in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return contents


def test_the_same_command_and_settings_go_on_from_what_is_there(tmp_path: Path) -> None:
    contents = left_behind(tmp_path)
    with RunFolder(tmp_path, "paper", SETTINGS) as run:
        run.progress("more", 2, 2)
    for name, text in contents.items():
        assert (tmp_path / name).read_text() == text
    assert steps(tmp_path) == [("fit", 1, 1), ("more", 2, 2)]


@pytest.mark.parametrize(
    ("command", "settings"),
    [("paper", {**SETTINGS, "rows": 11}), ("demo", SETTINGS), ("paper", {**SETTINGS, "seed": 0}), ("paper", {})],
)
def test_after_a_change_only_what_the_old_run_saved_is_removed(
    tmp_path: Path, command: str, settings: dict[str, Any]
) -> None:
    contents = left_behind(tmp_path)
    with RunFolder(tmp_path, command, settings):
        pass
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"config.json", *OTHERS}
    assert all((tmp_path / name).read_text() == contents[name] for name in OTHERS)
    assert json.loads((tmp_path / "config.json").read_text())["command"] == command


def test_every_kind_of_stage_is_among_those_above() -> None:
    assert all(any(Path(name).match(pattern) for name in SAVED) for pattern in STAGES)


@pytest.mark.parametrize("config", ["", "{", "[]", "3", '{"command": "paper"}', '{"model_type": "llama"}'])
def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "dynamics.safetensors").write_text("theirs")
    with pytest.raises(InputError) as caught, RunFolder(tmp_path, "paper", SETTINGS):
        pass
    assert str(caught.value) == (
        f"the folder {str(tmp_path)!r} holds a config.json of something else. Choose another path."
    )
    assert (tmp_path / "config.json").read_text() == config
    assert (tmp_path / "dynamics.safetensors").read_text() == "theirs"


def test_a_folder_with_models_and_no_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("theirs")
    with pytest.raises(InputError) as caught, RunFolder(tmp_path, "paper", SETTINGS):
        pass
    assert str(caught.value) == f"the folder {str(tmp_path)!r} holds models of something else. Choose another path."
    assert (tmp_path / "model.safetensors").read_text() == "theirs"


def test_after_a_change_the_outputs_of_the_old_run_are_removed(tmp_path: Path) -> None:
    left_behind(tmp_path)
    with RunFolder(tmp_path, "paper", {**SETTINGS, "rows": 11}, outputs=["table1.json", "agents.json", "none.json"]):
        pass
    assert not (tmp_path / "table1.json").exists() and not (tmp_path / "agents.json").exists()
    assert (tmp_path / "notes.txt").exists()


def test_another_version_of_the_libraries_goes_on_and_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind(tmp_path)
    monkeypatch.setattr("mocoda.engine.runs.versions", lambda: {"python": "9"})
    with RunFolder(tmp_path, "paper", SETTINGS):
        pass
    assert (tmp_path / "dynamics.safetensors").exists()
    assert json.loads((tmp_path / "config.json").read_text())["versions"] == {"python": "9"}


def test_a_folder_gives_back_the_settings_it_was_made_with_as_json_has_them(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", "train", SETTINGS):
        pass
    expected = {"rows": 10, "sizes": [1, 2], "out": "somewhere"}
    assert settings_of(tmp_path / "run") == settings_of(str(tmp_path / "run")) == expected


@pytest.mark.parametrize("config", [None, "", "{", "[]", "3", '{"command": "paper"}', '{"model_type": "llama"}'])
def test_a_folder_that_does_not_say_how_it_was_made_is_refused(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError) as caught:
        settings_of(tmp_path)
    assert str(caught.value) == (
        f"the folder {str(tmp_path)!r} does not say how it was made: no config.json of mocoda's."
    )
    with pytest.raises(InputError) as caught:
        settings_of("no/such/folder")
    assert str(caught.value) == "the folder 'no/such/folder' does not say how it was made: no config.json of mocoda's."


def test_an_error_inside_passes_through_and_keeps_the_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^inside$"), RunFolder(tmp_path / "run", "x", {}) as run:
        run.progress("fit", 1, 2)
        raise RuntimeError("inside")
    assert steps(tmp_path / "run") == [("fit", 1, 2)]


def test_bad_input_before_anything_was_begun_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^bad$"), RunFolder(tmp_path / "a" / "b", "x", {}) as run:
        run.progress("fit", 1, 2)
        raise InputError("bad")
    assert list(tmp_path.iterdir()) == []


def test_bad_input_after_a_stage_leaves_a_folder_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^bad$"), RunFolder(tmp_path / "run", "x", {}):
        (tmp_path / "run" / "dynamics.safetensors").write_text("mine")
        raise InputError("bad")
    with RunFolder(tmp_path / "run", "x", {}):
        assert (tmp_path / "run" / "dynamics.safetensors").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused_in_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / "file" / "run"
    message = f"cannot make the folder {str(folder)!r}: Not a directory. Choose another path."
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"), RunFolder(folder, "x", {}):
        pass
    with pytest.raises(InputError, match=r"^cannot make the folder .*: File exists\. Choose another path\.$"):
        RunFolder(tmp_path / "file", "x", {}).__enter__()
    assert (tmp_path / "file").read_text() == "mine"


def test_where_stderr_is_no_terminal_a_run_leaves_nothing_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path, "x", {}) as run:
        run.progress("fit", 1, 1)
    assert capfd.readouterr() == ("", "")
