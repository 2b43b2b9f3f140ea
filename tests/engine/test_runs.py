"""Run folders: what they say of a run, whose files are whose, locks and ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from approved import refused

from mocoda import InputError
from mocoda.engine.files import versions, whole_file
from mocoda.engine.runs import RunFolder, settings_of

SETTINGS = {"rows": 10, "sizes": (1, 2), "out": Path("somewhere")}
MADE = ("dynamics.safetensors", "agents/policy-emp-0.safetensors", "agents/deep/agents.json", "table1.json")
OUTPUTS = ("dynamics.safetensors", "agents/policy-*-0.safetensors", "agents/deep/agents.json", "table1.json")
OTHERS = ("notes.txt", "mine.safetensors", "policy-emp-9.safetensors", "agents/mine.safetensors", "below/recorded.hdf5")


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def steps(folder: Path) -> list[tuple[str, int, int]]:
    return [(line["stage"], line["done"], line["total"]) for line in log(folder)]


def write(path: Path, text: str = "ours") -> None:
    with whole_file(path) as part:
        part.write_text(text)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".mocoda.lock"]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def left_behind(folder: Path) -> dict[str, str]:
    """A run with SETTINGS in a folder with files of somebody else."""
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(f"theirs: {name}")
    with RunFolder(folder, "paper", SETTINGS, OUTPUTS) as run:
        for name in MADE:
            write(folder / name)
        run.progress("fit", 1, 1)
    return contents(folder)


def assert_refused(folder: Path, *arguments: Any, **options: Any) -> None:
    """The run is refused with the approved message, and nothing is touched."""
    before = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")}
    with refused(), RunFolder(folder, *arguments, **options):
        pass
    assert {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")} == before


# What a folder says


def test_the_folder_and_those_above_it_are_made_and_say_how(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    run = RunFolder(folder, "collect", SETTINGS)
    assert not folder.exists()
    with run as entered:
        assert entered is run and run.path == folder
    settings = {"rows": 10, "sizes": [1, 2], "out": "somewhere"}
    config = json.loads((folder / "config.json").read_text())
    own = {"files": ["progress.jsonl"], "target": {}}
    assert config == {"command": "collect", "settings": settings, "versions": versions(), **own}
    assert settings_of(folder) == settings_of(str(folder)) == settings


def test_progress_is_written_once_a_second_and_at_the_end_of_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1_234.5678)
    times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr("mocoda.engine.runs.time", times)
    with RunFolder(tmp_path, "x", {}) as run:
        for done in range(1, 26):
            run.progress("fit", done, 26)
            clock.now += 0.125
        assert log(tmp_path)[0] == {"time": 1_234.57, "stage": "fit", "done": 1, "total": 26}
        run.progress("fit", 26, 26)
        assert steps(tmp_path) == [("fit", done, 26) for done in (1, 9, 17, 25, 26)]  # on disk at once


# Whose files are whose


def test_the_same_command_and_settings_continue_from_what_is_there(tmp_path: Path) -> None:
    before = left_behind(tmp_path)
    with RunFolder(tmp_path, "paper", SETTINGS, OUTPUTS) as run:
        run.progress("more", 2, 2)
        write(tmp_path / "table1.json", "new")
    after = contents(tmp_path)
    assert after.pop("table1.json") == "new" and after.pop("progress.jsonl").startswith(before["progress.jsonl"])
    assert after.items() <= before.items()
    assert steps(tmp_path) == [("fit", 1, 1), ("more", 2, 2)]


@pytest.mark.parametrize(("command", "settings"), [("paper", {**SETTINGS, "rows": 11, "seed": 0}), ("demo", SETTINGS)])
def test_a_folder_with_other_results_is_refused(tmp_path: Path, command: str, settings: dict[str, Any]) -> None:
    left_behind(tmp_path / "run")
    assert_refused(tmp_path / "run", command, settings)


def test_overwrite_removes_what_the_old_run_made_and_nothing_else(tmp_path: Path) -> None:
    before = left_behind(tmp_path)
    with RunFolder(tmp_path, "demo", SETTINGS, overwrite=True):
        after = contents(tmp_path)
    assert set(after) == {"config.json", *OTHERS}
    assert all(after[name] == before[name] for name in OTHERS)
    assert json.loads(after["config.json"])["command"] == "demo"
    assert not (tmp_path / "agents" / "deep").exists()  # empty now


def test_overwrite_also_removes_what_was_being_written_when_the_old_run_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from mocoda.engine.files import whole_file\n"
        "with whole_file(Path(sys.argv[1]) / 'agents/policy-a-0.safetensors') as part:\n"
        "    os.utime(part, (0, 0)); os.kill(os.getpid(), 9)"
    )
    left_behind(tmp_path)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    own = tmp_path / ".table1.json.notes.part"
    own.touch()
    assert len([*tmp_path.rglob("*.part")]) == 2
    with RunFolder(tmp_path, "demo", {}, overwrite=True):
        pass
    assert [*tmp_path.rglob("*.part")] == [own]


@pytest.mark.parametrize("name", ["/etc/hostname", "below/../../mine.txt", {"a": 1}])
def test_a_list_that_names_files_elsewhere_is_refused(tmp_path: Path, name: Any) -> None:
    left_behind(tmp_path / "run")
    (tmp_path / "mine.txt").write_text("mine")
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "files": [name]}))
    assert_refused(tmp_path / "run", "demo", {}, overwrite=True)


def test_overwrite_follows_no_links_out_of_the_folder(tmp_path: Path) -> None:
    left_behind(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "policy-emp-0.safetensors").write_text("mine")
    shutil.rmtree(tmp_path / "run" / "agents")
    (tmp_path / "run" / "agents").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "table1.json").unlink()
    (tmp_path / "run" / "table1.json").symlink_to(tmp_path / "elsewhere" / "policy-emp-0.safetensors")
    with RunFolder(tmp_path / "run", "demo", {}, overwrite=True):
        pass
    assert (tmp_path / "elsewhere" / "policy-emp-0.safetensors").read_text() == "mine"
    assert (tmp_path / "run" / "agents").is_symlink() and (tmp_path / "run" / "table1.json").is_symlink()
    with pytest.raises(InputError, match="was not made by this run"):
        RunFolder(tmp_path / "run", "demo", {}, ["table1.json"]).__enter__()


def test_only_a_star_has_a_meaning_in_the_names_of_outputs(tmp_path: Path) -> None:
    with RunFolder(tmp_path, "x", {}, ["a[b]?**.json"]):
        for name in ("a[b]?c.json", "ab?c.json", "a[b]dc.json"):
            write(tmp_path / name)
    with RunFolder(tmp_path, "y", {}, overwrite=True):
        assert set(contents(tmp_path)) == {"config.json", "ab?c.json", "a[b]dc.json"}


@pytest.mark.parametrize("name", ["progress.jsonl", "agents/policy-mine-0.safetensors"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_somebody_else_in_the_way_is_refused_before_the_work(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    assert_refused(tmp_path / "run", "paper", SETTINGS, OUTPUTS, overwrite)


@pytest.mark.parametrize("text", ["{", "[]", '{"command": "paper"}'])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with refused():
        settings_of(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(text)
    (tmp_path / "run" / "dynamics.safetensors").write_text("theirs")
    with refused():
        settings_of(tmp_path / "run")
    assert_refused(tmp_path / "run", "paper", SETTINGS, overwrite=True)


def test_a_run_removes_what_it_made_itself_and_no_more(tmp_path: Path) -> None:
    with RunFolder(tmp_path, "collect", {}, ["parts/part-*.npz"]) as run:
        for number in range(3):
            write(tmp_path / "parts" / f"part-{number}.npz")
        (tmp_path / "parts" / "mine.txt").write_text("mine")
        run.discard("parts")
        assert contents(tmp_path / "parts") == {"mine.txt": "mine"}
        (tmp_path / "parts" / "mine.txt").unlink()
        run.discard("parts")
        assert not (tmp_path / "parts").exists()


def test_a_finished_run_is_opened_again_to_add_a_file(tmp_path: Path) -> None:
    left_behind(tmp_path)
    with RunFolder.reopen(tmp_path, ["evaluation.json"]):
        write(tmp_path / "evaluation.json")
    with RunFolder(tmp_path, "demo", {}, overwrite=True):
        assert set(contents(tmp_path)) == {"config.json", *OTHERS}


# The file that a run makes outside its folder


def make(target: Path, settings: dict[str, Any], text: str = "ours", **options: Any) -> None:
    with RunFolder(target.with_name(f"{target.name}.run"), "collect", settings, target=target, **options):
        write(target, text)


def test_the_same_run_replaces_its_own_target_and_another_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "data.hdf5"
    make(target, {"rows": 1})
    make(target, {"rows": 1}, "again")
    with pytest.raises(InputError, match=r"with other settings: rows\. Choose another path"):
        make(target, {"rows": 2})
    assert target.read_text() == "again"
    make(target, {"rows": 2}, "new", overwrite=True)
    assert target.read_text() == "new"


@pytest.mark.parametrize("how", ["never ours", "changed since", "changed after a failure", "run folder gone"])
def test_a_target_that_the_run_did_not_make_is_refused(tmp_path: Path, how: str) -> None:
    target = tmp_path / "data.hdf5"
    if how != "never ours":
        make(target, {})
    if how == "changed after a failure":
        with pytest.raises(OSError, match="no"), RunFolder(tmp_path / "data.hdf5.run", "collect", {}, target=target):
            raise OSError("no")
    if how == "run folder gone":
        shutil.rmtree(tmp_path / "data.hdf5.run")
    else:
        target.write_text("mine, longer")
    before = target.read_text()
    with refused():
        make(target, {})
    assert target.read_text() == before
    make(target, {}, "new", overwrite=True)
    assert target.read_text() == "new"


def test_a_run_killed_between_its_target_and_its_end_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "data.hdf5"
    run = RunFolder(tmp_path / "data.hdf5.run", "collect", {}, target=target)
    run.__enter__()
    write(target)
    run._close()  # as a kill does: nothing more is written
    make(target, {}, "again")
    assert target.read_text() == "again"


# Two processes

HOLDER = """
import sys, time
from mocoda.engine.runs import RunFolder
with RunFolder(sys.argv[1], "x", {}) as run:
    run.progress("fit", 1, 2)
    print("locked", flush=True)
    time.sleep(100)
"""


def test_a_folder_in_use_is_refused_and_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    for overwrite, settings in ((False, {}), (True, {"other": 1})):
        assert_refused(folder, "x", settings, overwrite=overwrite)
    holder.kill()
    holder.communicate()
    with RunFolder(folder, "x", {}):
        assert steps(folder) == [("fit", 1, 2)]


# Ends


@pytest.mark.parametrize("new", [True, False])
def test_bad_input_before_anything_was_saved_leaves_nothing_behind(tmp_path: Path, new: bool) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    folder = tmp_path / "a" / "b" if new else tmp_path
    with pytest.raises(InputError, match=r"^bad$"), RunFolder(folder, "x", {}) as run:
        run.progress("fit", 1, 2)
        raise InputError("bad")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine.txt"]


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "metrics.csv"])
def test_ctrl_c_says_that_the_same_command_continues_where_that_is_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path, "x", {}, [name]):
        write(tmp_path / name)
        raise KeyboardInterrupt
    assert bool(capsys.readouterr().err) == (name == "checkpoint.safetensors")


@pytest.mark.parametrize("folder", ["file/run", "file", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("mine")
    with refused(), RunFolder(tmp_path / folder, "x", {}):
        pass
    assert contents(tmp_path) == {"file": "mine"}
