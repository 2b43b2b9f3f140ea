"""The command line as a user runs it: a process, its exit code, what it says and what it leaves on disk."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

import mocoda.cli
import mocoda.cli.console
import mocoda.cli.data
import mocoda.cli.verbs
import mocoda.dynamics.fit
from mocoda import DynamicsConfig, InputError, Transitions, fit_dynamics, fit_parents, make_task
from mocoda.augmentation.generation import augment
from mocoda.engine.checkpoint import load_trained

VERBS = {
    "demo": {"--out", "--device"},
    "collect": {"--rows", "--seed", "--variety", "--workers", "--out"},
    "inspect": {"--episode-steps", "--json"},
    "graph": {"--data", "--out"},
    "check": {"--device", "--graph", "--out", "--seed", "--task"},
    "augment": {
        *(
            "--graph",
            "--task",
            "--recipe",
            "--architecture",
            "--model",
            "--rows",
            "--seed",
            "--device",
            "--keep-recorded",
        ),
        *("--stratified", "--reward", "--hindsight", "--provenance", "--max-disagreement", "--min-support"),
        *("--workers", "--out"),
    },
    "export": {"--to", "--episode-steps", "--skip-bad-rows"},
    "train": {
        *("--task", "--actions", "--agent", "--seeds", "--updates", "--evaluate-every", "--hidden", "--batch"),
        *("--standardise", "--workers", "--tensorboard", "--device", "--out"),
    },
    "evaluate": {"--episodes", "--seed", "--device"},
    "whatif": {
        *("--row", "--change", "--resample", "--graph", "--task", "--architecture", "--model"),
        *("--stratified", "--least-support"),
        *("--seed", "--device", "--out"),
    },
    "watch": {"--task", "--episodes", "--seed", "--data", "--agent-seed", "--out"},
    "paper": {
        *("--preset", "--seeds", "--device", "--predict-change", "--standardise", "--out"),
        *("--columns", "--published-code", "--stratified", "--workers"),
    },
    "bench": {"--device", "--out"},
}
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
TINY = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=2, batch=64, window=1)
ARRAYS = ("state", "action", "next_state", "reward", "terminal")


def cli(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocoda.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=250)


def succeed(*words: str | Path, cwd: Path) -> str:
    done = cli(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "error" not in done.stderr
    return done.stdout


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_same_rows(one: Transitions, other: Transitions) -> None:
    for name in ARRAYS:
        assert getattr(one, name).numpy().tobytes() == getattr(other, name).numpy().tobytes(), name
    assert one.columns == other.columns


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 400 recorded transitions, made by `mocoda collect`."""
    folder = tmp_path_factory.mktemp("recorded")
    succeed("collect", "navigation", "--rows", "400", "--seed", "3", "--out", "data.hdf5", cwd=folder)
    return folder / "data.hdf5"


@pytest.fixture(scope="module")
def files(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for a file in the commands below: a file of data, another of its name, and one without rewards."""
    folder = tmp_path_factory.mktemp("files")
    data = Transitions.load(recorded)
    data.save(folder / recorded.name)
    Transitions(data.state, data.action, data.next_state).save(folder / "bare.hdf5")
    return {"DATA": str(recorded), "TWIN": str(folder / recorded.name), "BARE": str(folder / "bare.hdf5")}


# Help


def test_help_lists_all_verbs_in_under_a_second(tmp_path: Path) -> None:
    taken = []
    for _ in range(3):
        start = time.monotonic()
        said = succeed("--help", cwd=tmp_path)
        taken.append(time.monotonic() - start)
    assert re.search(r"\{([a-z,]+)\}", said).group(1).split(",") == list(VERBS)  # type: ignore[union-attr]
    assert min(taken) < 1.0
    assert below(tmp_path) == []


def test_the_command_line_is_there_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    script = "import sys, mocoda.cli; print({'torch', 'matplotlib', 'h5py', 'sklearn', 'mujoco'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "set()\n")


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_names_its_options(verb: str, tmp_path: Path) -> None:
    said = succeed(verb, "--help", cwd=tmp_path)
    assert set(re.findall(r"--[a-z-]+", said)) - {"--help"} >= VERBS[verb]
    assert {flag.replace("--no-", "--") for flag in re.findall(r"--[a-z-]+", said)} == VERBS[verb] | {"--help"}


# Collect


def test_collect_writes_the_task_s_rows_and_how_they_were_made(recorded: Path) -> None:
    data = Transitions.load(recorded)
    assert_same_rows(data, make_task("navigation").collect(400, seed=3))
    assert data.source == {"task": "navigation", "rows": 400, "seed": 3}
    assert below(recorded.parent) == [
        "data.hdf5",
        "data.hdf5.run",
        "data.hdf5.run/config.json",
        "data.hdf5.run/files.jsonl",
        "data.hdf5.run/progress.jsonl",
    ]
    config = json.loads((recorded.parent / "data.hdf5.run" / "config.json").read_text())
    assert config["command"] == "collect"
    assert config["settings"] == {"task": "navigation", "rows": 400, "seed": 3}
    assert config["versions"]["torch"] == torch.__version__
    (line,) = (recorded.parent / "data.hdf5.run" / "progress.jsonl").read_text().splitlines()
    assert {key: value for key, value in json.loads(line).items() if key != "time"} == {
        "stage": "collect",
        "done": 400,
        "total": 400,
    }


def test_the_same_seed_collects_the_same_bytes_into_folders_that_are_made(recorded: Path, tmp_path: Path) -> None:
    said = succeed("collect", "navigation", "--rows", "400", "--seed", "3", "--out", "new/a.hdf5", cwd=tmp_path)
    again = Transitions.load(tmp_path / "new" / "a.hdf5")
    assert_same_rows(again, Transitions.load(recorded))
    assert said == f"new/a.hdf5: {again!r}\n"  # whole, and on one line


# Augment


@pytest.mark.parametrize("recipe", ["emp", "coda"])
def test_augment_puts_new_rows_after_the_recorded_ones(recipe: str, recorded: Path, tmp_path: Path) -> None:
    said = succeed("augment", recorded, "--recipe", recipe, "--rows", "1000", "--out", "out.hdf5", cwd=tmp_path)
    assert said == f"out.hdf5: 1,400 transitions, 1,000 of them new by recipe {recipe}\n"
    data, out = Transitions.load(recorded), Transitions.load(tmp_path / "out.hdf5")
    assert len(out) == 1_400
    assert_same_rows(out[:400], data)
    assert out.source["recorded_rows"] == 400 and out.source["generated_rows"] == 1_000
    assert out.source["recorded"] == data.source and out.source["task"] == "navigation"
    task = make_task("navigation")
    parents = fit_parents(data, task.graph, recipe, seed=0, task=task)
    assert_same_rows(out, augment(data, parents, None, rows=1_000, task=task, seed=0))
    config = json.loads((tmp_path / "out.hdf5.run" / "config.json").read_text())
    assert config["command"] == "augment"
    assert config["settings"]["recipe"] == recipe and config["settings"]["keep_recorded"] is True
    assert below(tmp_path / "out.hdf5.run") == ["config.json", "files.jsonl", "progress.jsonl"]


def test_augment_without_the_recorded_rows_writes_the_new_ones_alone(recorded: Path, tmp_path: Path) -> None:
    words = ("--recipe", "coda", "--rows", "700", "--no-keep-recorded", "--seed", "5", "--out", "out.hdf5")
    assert succeed("augment", recorded, *words, cwd=tmp_path).startswith("out.hdf5: 700 transitions, 700 of them new")
    out = Transitions.load(tmp_path / "out.hdf5")
    assert len(out) == 700 and out.source["recorded_rows"] == 0
    data, task = Transitions.load(recorded), make_task("navigation")
    parents = fit_parents(data, task.graph, "coda", seed=5, task=task)
    expected = augment(data, parents, rows=700, task=task, seed=5, keep_recorded=False)
    assert_same_rows(out, expected)


@pytest.mark.parametrize(("recipe", "architecture"), [("mocoda", "local"), ("dyna", "full")])
def test_augment_trains_a_model_where_the_recipe_needs_one(
    recipe: str, architecture: str, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocoda.dynamics, "fit_dynamics", functools.partial(fit_dynamics, config=TINY))
    out = tmp_path / "out.hdf5"
    mocoda.cli.data.augment(str(recorded), recipe=recipe, architecture=architecture, rows=300, seed=1, out_file=out)
    data, task = Transitions.load(recorded), make_task("navigation")
    model = fit_dynamics(data, task.graph, architecture, seed=1, config=TINY)
    parents = fit_parents(data, task.graph, recipe, seed=1, task=task, model=model)
    expected = augment(data, parents, model, rows=300, task=task, seed=1)
    assert_same_rows(Transitions.load(out), expected)
    assert below(tmp_path / "out.hdf5.run") == ["config.json", "dynamics.safetensors", "files.jsonl", "progress.jsonl"]
    # The same command again needs no training; other settings do.
    monkeypatch.setattr(mocoda.dynamics, "fit_dynamics", lambda *given, **named: pytest.fail("trained again"))
    out.unlink()
    mocoda.cli.data.augment(str(recorded), recipe=recipe, architecture=architecture, rows=300, seed=1, out_file=out)
    assert_same_rows(Transitions.load(out), expected)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        mocoda.cli.data.augment(
            str(recorded), recipe=recipe, architecture=architecture, rows=300, seed=2, out_file=out, overwrite=True
        )
    assert_same_rows(Transitions.load(out), expected)


# A run that trains slowly enough to be killed, and saves after every epoch.
EPOCHS = 150
SLOW = f"""
import functools, sys
from mocoda import dynamics
from mocoda.dynamics import fit
config = dynamics.DynamicsConfig(members=2, hidden=(16,), features=8, epochs={EPOCHS}, batch=512, window=5)
dynamics.fit_dynamics = functools.partial(dynamics.fit_dynamics, config=config)
fit.Checkpoint = functools.partial(fit.Checkpoint, interval=0.0)
from mocoda.cli import main
main()
"""


def start_slow(recorded: Path, cwd: Path) -> subprocess.Popen[str]:
    words = ["augment", str(recorded), "--rows", "500", "--seed", "2", "--out", "out.hdf5"]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, *words], cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def logged(folder: Path) -> list[int]:
    lines = (folder / "out.hdf5.run" / "progress.jsonl").read_text().splitlines()
    return [line["done"] for line in map(json.loads, lines) if line["stage"] == "dynamics local"]


def test_a_killed_augment_leaves_no_output_and_running_it_again_ends_the_same(recorded: Path, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    process = start_slow(recorded, killed)
    checkpoint = killed / "out.hdf5.run" / "checkpoint.safetensors"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    _, complaint = process.communicate()
    assert process.returncode == -9, complaint
    assert below(killed)[0] == "out.hdf5.run" and not (killed / "out.hdf5").exists()
    assert not (killed / "out.hdf5.run" / "dynamics.safetensors").exists()
    done = load_trained(checkpoint, "checkpoint")[1]["settings"]["done"]
    assert 0 < done < EPOCHS
    before = len(logged(killed))
    for folder in (killed, whole):
        process = start_slow(recorded, folder)
        said, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        assert said == "out.hdf5: 900 transitions, 500 of them new by recipe mocoda\n"
    assert logged(killed)[before] == done + 1  # it went on rather than starting anew
    assert logged(whole)[0] == 1 and logged(whole)[-1] == logged(killed)[-1] == EPOCHS
    assert_same_rows(Transitions.load(killed / "out.hdf5"), Transitions.load(whole / "out.hdf5"))
    left = ["config.json", "dynamics.safetensors", "files.jsonl", "progress.jsonl"]
    assert [name for name in below(killed / "out.hdf5.run") if not name.endswith(".part")] == left
    saved = [(folder / "out.hdf5.run" / "dynamics.safetensors").read_bytes() for folder in (killed, whole)]
    assert saved[0] == saved[1]


# Refusing

HERE = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
WRITABLE = "Give a path in a folder that can be written."
REFUSED = {
    "collect maze": "there is no task 'maze'; there are: navigation, hooksweep2, objects.",
    "collect navigatoin": (
        "there is no task 'navigatoin'; there are: navigation, hooksweep2, objects. Did you mean 'navigation'?"
    ),
    "collect [x]": "there is no task '[x]'; there are: navigation, hooksweep2, objects.",
    "collect navigation --rows 0": "rows must be at least 1, the number of transitions to record, got 0.",
    "collect navigation --rows 0 --out new/x.hdf5": (
        "rows must be at least 1, the number of transitions to record, got 0."
    ),
    "collect navigation --out FILE/x.hdf5": f"cannot write 'FILE/x.hdf5': 'FILE' is not a folder. {WRITABLE}",
    "collect navigation --rows 9 --out FOLDER": f"cannot write 'FOLDER': it is a folder. {WRITABLE}",
    "augment DATA --task maze": "there is no task 'maze'; there are: navigation, hooksweep2, objects.",
    "augment DATA --recipe mocoda-x": (
        "there is no recipe 'mocoda-x'; there are: emp, coda, dyna, rand, mocoda, mocoda-u, mocoda-p. "
        "Did you mean 'mocoda-u'?"
    ),
    "augment DATA --architecture lokal": (
        "there is no architecture 'lokal'; there are: full, global, local. Did you mean 'local'?"
    ),
    "augment DATA --recipe coda --model FILE": (
        "--model gives next states, and recipe 'coda' has its own; leave it away."
    ),
    "augment DATA --model FOLDER": "cannot read dynamics model 'FOLDER/dynamics.safetensors': there is no such file. "
    "Fit a model and save it with `model.save(path)`.",
    "augment DATA --model x.hdf5.run --out x.hdf5": (
        "--model lies where this run of 'x.hdf5' is to be noted; choose another --out."
    ),
    "augment DATA --model ./x.hdf5.run/dynamics.safetensors --out x.hdf5": (
        "--model lies where this run of 'x.hdf5' is to be noted; choose another --out."
    ),
    "whatif DATA --row 0 --change y=0.1 --model none": "cannot read dynamics model 'none': there is no such file. "
    "Fit a model and save it with `model.save(path)`.",
    "augment DATA --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "augment DATA --device cuda:99": f"device 'cuda:99' is not here; there is: {HERE}.",
    "augment none.hdf5": "there is no file 'none.hdf5'.",
    "augment [/dim].hdf5": "there is no file '[/dim].hdf5'.",
    "augment DATA --recipe coda --rows -1": "rows must be positive, the number of rows to generate, got -1.",
    "augment DATA --recipe emp --out FILE/x.hdf5": f"cannot write 'FILE/x.hdf5': 'FILE' is not a folder. {WRITABLE}",
    "augment none.hdf5 --out new/x.hdf5": "there is no file 'none.hdf5'.",
    "train DATA TWIN": "data sets are called by their files' names, which must differ, got data, data.",
    "train DATA DATA": "data sets are called by their files' names, which must differ, got data, data.",
    "train DATA --agent td3": "there is no agent 'td3'; there are: td3-bc, bcq, cql, sac. Did you mean 'td3-bc'?",
    "train DATA --agent ppo": "there is no agent 'ppo'; there are: td3-bc, bcq, cql, sac.",
    "train DATA --task maze": "there is no task 'maze'; there are: navigation, hooksweep2, objects.",
    "train DATA --seeds 0": "seeds must be at least 1, got 0.",
    "train DATA --updates 0": "updates must be at least 1, got 0.",
    "train DATA --updates -1 --out new/deep": "updates must be at least 1, got -1.",
    "train DATA --batch 0": "batch must be at least 1, got 0.",
    "train DATA --hidden 8 0": "hidden must name layers of at least 1 unit, got (8, 0).",
    "train BARE": (
        "data set 'bare' has no rewards. Label it: mocoda.augment(..., task=task), or a Transitions with reward=."
    ),
    "train DATA BARE --task navigation": (
        "data set 'bare' has no rewards. Label it: mocoda.augment(..., task=task), or a Transitions with reward=."
    ),
    "train DATA BARE": (
        "these data sets are not of one task: 'data' of navigation, 'bare' of none of ours. Say which with --task."
    ),
    "train DATA --actions -1 1": "task 'navigation' says which actions are possible; leave out actions=.",
    "train none.hdf5": "there is no file 'none.hdf5'.",
    "train": "there is nothing to train on: name at least one file of transitions.",
    "train DATA --out FILE/x": "cannot make the folder 'FILE/x': Not a directory. Choose another path.",
    "train DATA --out FILE": "cannot make the folder 'FILE': File exists. Choose another path.",
    "train DATA --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "whatif DATA --row 0 --change z=1": "there is no factor 'z'; there are: x, y, dx, dy.",
    "whatif DATA --row 0 --change y": "a change is a factor and its values, such as y=0.3 or cup=0.1,0.2, got 'y'.",
    "whatif DATA --row 400 --change y=1": "row must be a row of 'DATA', from 0 to 399, got 400.",
    "whatif DATA --row 0 --change y=1 --task maze": (
        "there is no task 'maze'; there are: navigation, hooksweep2, objects."
    ),
    "whatif DATA --row 0 --change y=1 --architecture lokal": (
        "there is no architecture 'lokal'; there are: full, global, local. Did you mean 'local'?"
    ),
    "whatif DATA --row 0 --change y=1 --task navigation --graph FILE": (
        "--graph and --task both say who listens to whom; give one of them."
    ),
    "whatif BARE --row 0 --change y=1": (
        "nothing says who listens to whom in 'BARE': pass --graph with a file that does, or --task for data of a "
        "built-in one (navigation, hooksweep2, objects)."
    ),
    "evaluate FOLDER": "the folder 'FOLDER' holds no agents.json. `mocoda train` makes one.",
    "evaluate none": "the folder 'none' holds no agents.json. `mocoda train` makes one.",
    "evaluate FILE": "the folder 'FILE' holds no agents.json. `mocoda train` makes one.",
    "evaluate FOLDER --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "paper table4": "there is no experiment 'table4'; there are: table1, table2, table3, scarcity, theory, "
    "neighbourhoods, reweighting, whatif, composer, entanglement. Did you mean 'table3'?",
    "paper table3 --preset fast": "there is no preset 'fast'; there are: paper, quick.",
    "paper table3 --seeds 0": "seeds must be at least 1, got 0.",
    "paper table3 --columns coda": (
        "there is no column 'coda'; there are: emp, mocoda, mocoda-p, mocoda-full, mocoda-p-full. "
        "Did you mean 'mocoda'?"
    ),
    "paper scarcity --preset fast": "there is no preset 'fast'; there are: paper, quick.",
    "paper scarcity --seeds 0": "seeds must be at least 1, got 0.",
    "paper table2 --preset fast": "there is no preset 'fast'; there are: paper, quick.",
    "paper table2 --seeds 0": "seeds must be at least 1, got 0.",
    "paper table2 --out FILE/x": "cannot make the folder 'FILE/x': Not a directory. Choose another path.",
    "paper table2 --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "paper table1 --preset fast": "there is no preset 'fast'; there are: paper, quick.",
    "paper table1 --seeds 0": "seeds must be at least 1, got 0.",
    "paper table1 --out FILE/x": "cannot make the folder 'FILE/x': Not a directory. Choose another path.",
    "paper table1 --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "demo --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "bench --device tpu": f"device 'tpu' is not here; there is: {HERE}.",
    "bench --out FILE/x.json": f"cannot write 'FILE/x.json': 'FILE' is not a folder. {WRITABLE}",
}
if not torch.cuda.is_available():
    REFUSED |= dict.fromkeys(
        ("train DATA --device cuda", "evaluate FOLDER --device cuda", "paper table2 --device cuda"),
        f"device 'cuda' is not here; there is: {HERE}.",
    )


AS_PROCESSES = (
    "collect maze",
    "collect navigation --rows 0",
    "augment [/dim].hdf5",
    "augment DATA --device tpu",
    "train BARE",
    "evaluate FOLDER",
    "paper table1 --seeds 0",
    "bench --out FILE/x.json",
)


def refused(words: str, files: dict[str, str], folder: Path, *, process: bool) -> tuple[object, str]:
    """Exit code and stderr of a command that does nothing else; in this process it is the same code, but quicker."""
    (folder / "FILE").write_text("mine")
    (folder / "FOLDER").mkdir()
    before = below(folder)
    given = [files.get(word, word) for word in words.split()]
    if process:
        done = cli(*given, cwd=folder)
        code: object = done.returncode
        said, complaint = done.stdout, done.stderr
    else:
        stdout, stderr = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
            patch.chdir(folder)
            patch.setattr(sys, "argv", ["mocoda", *given])
            with pytest.raises(SystemExit) as caught:
                mocoda.cli.main()
        code, said, complaint = caught.value.code, stdout.getvalue(), stderr.getvalue()
    assert said == ""
    assert below(folder) == before and (folder / "FILE").read_text() == "mine"
    for name, path in files.items():
        complaint = complaint.replace(path, name)
    return code, complaint


@pytest.mark.parametrize("words", AS_PROCESSES)
def test_a_process_with_bad_input_ends_in_one_whole_line_exit_code_2_and_nothing_on_disk(
    words: str, files: dict[str, str], tmp_path: Path
) -> None:
    assert refused(words, files, tmp_path, process=True) == (2, f"error: {REFUSED[words]}\n")


@pytest.mark.parametrize("words", [words for words in REFUSED if words not in AS_PROCESSES])
def test_bad_input_ends_in_one_whole_line_exit_code_2_and_nothing_on_disk(
    words: str, files: dict[str, str], tmp_path: Path
) -> None:
    assert refused(words, files, tmp_path, process=False) == (2, f"error: {REFUSED[words]}\n")


def test_a_file_that_is_no_hdf5_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.hdf5").write_text("no HDF5")
    done = cli("augment", "bad.hdf5", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: 'bad.hdf5' is neither HDF5 nor npz nor Parquet.\n"
    assert below(tmp_path) == ["bad.hdf5"]


@pytest.mark.parametrize("words", [[], ["fly"], ["collect"], ["collect", "navigation", "--rows", "many"], ["evaluate"]])
def test_a_command_line_that_cannot_be_read_is_refused(words: list[str], tmp_path: Path) -> None:
    done = cli(*words, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr and len(done.stderr) > 20
    assert below(tmp_path) == []


def test_something_that_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    """As /dev/null would be, for one who may write /dev."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = cli("collect", "navigation", "--rows", "9", "--out", "pipe", cwd=tmp_path)
    assert pipe.is_fifo()
    assert done.returncode == 2 and done.stderr.startswith("error: cannot write 'pipe': ")
    assert below(tmp_path) == ["pipe"]


@pytest.mark.parametrize("device", ["cuda:1", "cuda:99", "cudas", "cuda:x"])
def test_a_gpu_that_is_not_there_is_refused_where_another_one_is(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for there in ("cpu", "cuda", "cuda:0"):
        mocoda.cli.console.check_device(there)
    with pytest.raises(InputError, match=f"^device {device!r} is not here; there is: cpu, cuda"):
        mocoda.cli.console.check_device(device)


def test_a_number_of_rows_that_cannot_be_is_refused_before_a_model_is_trained(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocoda.dynamics, "fit_dynamics", lambda *given, **named: pytest.fail("trained first"))
    with pytest.raises(InputError, match=r"^rows must be positive, the number of rows to generate, got -1\.$"):
        mocoda.cli.data.augment(str(recorded), rows=-1, out_file=tmp_path / "out.hdf5")
    assert below(tmp_path) == []


# The demo


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_ends_within_eight_minutes_and_names_files_that_are_there(
    tmp_path: Path,
) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "mocoda.cli", "demo", "--out", "shown"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 480
    named = set(re.findall(r"shown/[\w./-]+\.\w+", done.stdout))
    figures = {"shown/table1.png", "shown/figure3.png", "shown/graph.png", "shown/walks.png"}
    figures |= {"shown/agents/table2-curves.png", "shown/agents/table2-policies.png"}
    assert named == figures | {"shown/table1.json", "shown/navigation-mocoda.hdf5", "shown/agents/table2.json"}
    for name in figures:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    results = json.loads((tmp_path / "shown" / "table1.json").read_text())
    assert results["preset"] == "quick"
    data = Transitions.load(tmp_path / "shown" / "navigation-mocoda.hdf5")
    assert len(data) == 200_000
    assert "40,000 recorded transitions and 160,000 counterfactual ones after them" in done.stdout


def test_a_terminated_command_clears_away_what_it_had_begun(tmp_path: Path) -> None:
    words = ["collect", "navigation", "--rows", "2000000", "--out", "big.hdf5"]
    process = subprocess.Popen([sys.executable, "-m", "mocoda.cli", *words], cwd=tmp_path)
    while not list(tmp_path.glob(".big.hdf5.*.part")):
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert not [path.name for path in tmp_path.iterdir() if path.is_file()]
