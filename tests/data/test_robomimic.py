"""robomimic's HDF5: a choice of observations in, demonstrations and filter keys out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from approved import refused
from transition_tables import assert_identical, numbers

import mocoda
from mocoda import Transitions

LENGTHS = (4, 3, 2)
ENVIRONMENT = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}


def demonstrations(path: Path, next_obs: bool = True, extra: bool = True) -> Path:
    """As robomimic's own tools write it; demo_10 comes after demo_2."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"], data.attrs["env_args"] = sum(LENGTHS), json.dumps(ENVIRONMENT)
        for start, (number, length) in zip((0, 100, 200), zip((0, 2, 10), LENGTHS, strict=True), strict=True):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = length
            rows = np.arange(start, start + length + 1, dtype=np.float64)[:, None]
            for name, part in (("obs", rows[:-1]), ("next_obs", rows[1:]))[: 2 if next_obs else 1]:
                demo[f"{name}/object"] = part + np.arange(4) / 10
                if extra:
                    demo[f"{name}/robot0_eef_pos"] = -part + np.arange(3)
                    demo[f"{name}/robot0_gripper"] = part[:, 0] / 2
                    demo[f"{name}/agentview_image"] = np.zeros((length, 8, 8, 3), np.uint8)
            demo["actions"] = rows[:-1] + np.array([0.25, 0.5])
            demo["rewards"], demo["dones"] = rows[1:, 0], (np.arange(length) == length - 1).astype(np.int64)
            demo["states"] = np.repeat(rows[:-1], 9, 1)
        file["mask/train"] = np.array(["demo_0", "demo_10"], "S")
        file["mask/valid"] = np.array(["demo_2"], "S")
    return path


def test_chosen_observations_become_the_state_in_their_order(tmp_path: Path) -> None:
    path = demonstrations(tmp_path / "x.hdf5")
    data = mocoda.read(path, observations=["robot0_eef_pos", "robot0_gripper", "object"])
    names = [*(f"robot0_eef_pos.{i}" for i in range(3)), "robot0_gripper", *(f"object.{i}" for i in range(4))]
    assert data.columns == (*names, "action0", "action1")
    first = [0, 1, 2, 3, 100, 101, 102, 200, 201]
    assert data.state[:, 4].tolist() == first and data.state[:, 0].tolist() == [-row for row in first]
    assert data.state[:, 3].tolist() == [row / 2 for row in first]
    assert data.next_state[:, 4].tolist() == [row + 1 for row in first]
    assert data.reward is not None and data.reward.tolist() == [row + 1 for row in first]
    assert data.terminal.nonzero()[:, 0].tolist() == [3, 6, 8]
    assert data.episode is not None and data.episode.tolist() == [0, 0, 0, 0, 2, 2, 2, 10, 10]
    assert data.source["env_args"] == ENVIRONMENT
    assert data.source["ignored"] == ["obs/agentview_image (8, 8, 3)", "states (9,)"]
    assert "left out, and in no new row: obs/agentview_image (8, 8, 3)" in str(
        mocoda.inspect(path, observations=["object"])
    )


def test_filter_keys_choose_demonstrations(tmp_path: Path) -> None:
    path = demonstrations(tmp_path / "x.hdf5")
    train = mocoda.read(path, observations=["object"], filter_key="train")
    assert train.episode is not None and train.episode.unique().tolist() == [0, 10]
    with refused():
        mocoda.read(path, observations=["object"], filter_key="tran")


def test_a_missing_choice_lists_what_there_is(tmp_path: Path) -> None:
    path = demonstrations(tmp_path / "x.hdf5")
    for chosen in ([], ["agentview_image"], ["objct"], ["object", "object"]):
        with refused():
            mocoda.read(path, observations=chosen)
    np.savez(tmp_path / "x.npz", state=numbers(3, 2), action=numbers(3, 1), next_state=numbers(3, 2))
    with refused():
        mocoda.read(tmp_path / "x.npz", observations=["object"])


def test_the_only_observations_need_no_choice_and_rows_are_paired_within_demonstrations(tmp_path: Path) -> None:
    data = mocoda.read(demonstrations(tmp_path / "x.hdf5", next_obs=False, extra=False))
    assert data.state[:, 0].tolist() == [0, 1, 2, 100, 101, 200]
    assert data.next_state[:, 0].tolist() == [1, 2, 3, 101, 102, 201]
    assert data.source["dropped_terminals"] == 3
    states = mocoda.read(tmp_path / "x.hdf5", observations=["states"])
    assert states.state.shape == (6, 9) and states.columns[0] == "states.0"


def made() -> Transitions:
    state = numbers(7, 4)
    return Transitions(
        state,
        numbers(7, 2),
        np.concatenate([state[1:4], 1 + numbers(4, 4)]),
        columns=["hand.x", "hand.y", "grip", "cube", "dx", "dy"],
        source={"recorded": {"env_args": ENVIRONMENT}},
        provenance={"recipe": np.repeat([0, 5], [4, 3]), "support": numbers(7)},
        episode=np.repeat([0, -1], [4, 3]),
    )


def test_equal_tables_are_written_as_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    written = []
    for name in ("one", "two"):
        mocoda.write(made(), f"robomimic:{tmp_path / name}.hdf5")
        mocoda.write(made(), f"minari:{name}-v0")
        files = [tmp_path / f"{name}.hdf5", tmp_path / f"{name}-v0/data/main_data.hdf5"]
        written.append([path.read_bytes() for path in files])
        if name == "one":
            time.sleep(1.1)  # HDF5 would note the second
    assert written[0] == written[1]


def test_written_demonstrations_are_as_robomimic_documents_them(tmp_path: Path) -> None:
    data = made()
    mocoda.write(data, f"robomimic:{tmp_path / 'x.hdf5'}")
    assert_identical(mocoda.read(tmp_path / "x.hdf5"), data)
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert json.loads(file["data"].attrs["env_args"]) == ENVIRONMENT and file["data"].attrs["total"] == 7
        assert [*file["data"]] == ["demo_0", "demo_1", "demo_2", "demo_3"]
        demo = file["data/demo_0"]
        assert demo.attrs["num_samples"] == 4 and {*demo["obs"]} == {*demo["next_obs"]} == {"hand", "grip", "cube"}
        assert np.array_equal(demo["obs/hand"], data.state[:4, :2])
        assert np.array_equal(demo["next_obs/cube"], data.next_state[:4, 3:])
        assert np.array_equal(demo["actions"], data.action[:4])
        assert demo["rewards"][:].tolist() == [0] * 4 and demo["dones"].dtype == np.int64
        assert np.array_equal(file["data/demo_2/provenance/support"], data.provenance["support"][5:6])
        assert file["mask/recorded"][:].tolist() == [b"demo_0"]
        assert file["mask/generated"][:].tolist() == [b"demo_1", b"demo_2", b"demo_3"]
    assert len(mocoda.read(tmp_path / "x.hdf5", filter_key="generated")) == 3
    assert mocoda.read(tmp_path / "x.hdf5", observations=["cube", "hand"]).state.equal(data.state[:, [3, 0, 1]])


@pytest.mark.parametrize("columns", ["a.x b a.y u", "state0 state1 state2 u", "goal x y u"])
def test_names_that_tell_no_groups_become_one_observation(columns: str, tmp_path: Path) -> None:
    data = Transitions(numbers(3, 3), numbers(3, 1), numbers(3, 3), goal=numbers(3, 2), columns=columns.split())
    mocoda.write(data, f"robomimic:{tmp_path / 'x.hdf5'}")
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert {*file["data/demo_0/obs"]} == {"state", "goal"}
    assert_identical(mocoda.read(tmp_path / "x.hdf5"), data)


def link(file: h5py.File, name: str) -> None:
    del file[name]
    file[name] = h5py.ExternalLink("elsewhere.hdf5", "/")


def virtual_names(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((1,), "S6")
    layout[:] = h5py.VirtualSource("elsewhere.hdf5", "train", (1,), "S6")
    del file["mask/train"]
    file["mask"].create_virtual_dataset("train", layout)


HARM: dict[str, Callable[[h5py.File], object]] = {
    "group": lambda f: link(f, "data/demo_10/obs"),
    "link": lambda f: link(f, "data/demo_10/obs/object"),
    "demonstration": lambda f: link(f, "data/demo_10"),
    "mask": lambda f: link(f, "mask"),
    "names": virtual_names,
    "provenance": lambda f: f.__setitem__("data/demo_10/provenance", h5py.ExternalLink("elsewhere.hdf5", "/")),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_lies_in_another_file_is_refused(harm: str, tmp_path: Path) -> None:
    with h5py.File(demonstrations(tmp_path / "x.hdf5"), "a") as file:
        HARM[harm](file)
    with refused():
        mocoda.read(tmp_path / "x.hdf5", observations=["object"], filter_key="train")


@pytest.mark.skipif("ROBOMIMIC_PYTHON" not in os.environ, reason="set ROBOMIMIC_PYTHON to a Python that has robomimic")
def test_robomimic_s_own_loader_reads_it(tmp_path: Path) -> None:
    data = made()
    mocoda.write(data, f"robomimic:{tmp_path / 'x.hdf5'}")
    script = (
        "import sys, json, robomimic.utils.obs_utils as O\n"
        "from robomimic.utils.dataset import SequenceDataset\n"
        "keys = ['hand', 'grip', 'cube']\n"
        "O.initialize_obs_utils_with_obs_specs({'obs': {'low_dim': keys, 'rgb': [], 'depth': [], 'scan': []}})\n"
        "found = {}\n"
        "for name in ('recorded', 'generated'):\n"
        "    data = SequenceDataset(sys.argv[1], keys, ['actions', 'rewards', 'dones'], filter_by_attribute=name)\n"
        "    rows = [data[row] for row in range(len(data))]\n"
        "    found[name] = [[v for k in keys for v in row['next_obs'][k][0].tolist()] for row in rows]\n"
        "print(json.dumps(found))"
    )
    command = [*os.environ["ROBOMIMIC_PYTHON"].split(), "-c", script, str(tmp_path / "x.hdf5")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert torch.tensor(found["recorded"] + found["generated"]).equal(data.next_state)
