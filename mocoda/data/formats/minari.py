"""Minari data sets: no environment is made, nothing is fetched, and every next state is the true one.

Reading needs h5py alone (pyarrow for data sets in Arrow or Parquet format), writing `pip install "mocoda[minari]"`.
Data sets lie where Minari keeps them: in the folder MINARI_DATASETS_PATH, or else in ~/.minari/datasets.

Columns are named by where they come from: `box1.0`, `box1.1` are those of the Dict observation's `box1`, `a.b` is the
only one of `b` in `a`, `part0` the first of a Tuple, and a plain Box is `state0`, `state1` (`action0` ...). Where there
is a `desired_goal`, it becomes the rows' goal; an `achieved_goal` is left out if the rest of the observation has the
same numbers in every row, and kept as columns otherwise: `source["achieved_goal"]` names the columns either way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from mocoda.data.formats.arrays import refusing
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.minari_episodes import episodes_of, rows_of, write_episodes
from mocoda.data.formats.minari_spaces import columns_of, damaged, leaves_of
from mocoda.engine.errors import InputError, unknown_name

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

NAME = re.compile(r"[-\w]+(/[-\w]+)*")  # no dots: an id cannot climb out of the folder


def read(name: str) -> Contents:
    """Reads the data set `name`, such as "D4RL/door/human-v2", which must lie on this computer.

    Only terminations are terminal; the last row of an episode that was truncated is like any other. There are no
    rewards if `write` was given none.
    """
    folder = _folder(name)
    about = _metadata(name, folder)
    kind = about.get("data_format", "hdf5")
    jpeg = about.get("jpeg_encoding", True)
    observed, acted = (leaves_of(name, what, _space(name, about, what), jpeg) for what in ("observation", "action"))
    goal = [leaf for leaf in observed if leaf.path[:1] == ("desired_goal",)]
    achieved = [leaf for leaf in observed if goal and leaf.path[:1] == ("achieved_goal",)]
    state = [leaf for leaf in observed if leaf not in goal and leaf not in achieved]
    mine = _ours(about)
    notes, noted = mine.get("provenance", []), mine.get("episodes") is True
    parts: list[dict[str, NDArray[Any]]] = []
    with refusing(f"minari:{name}", "Minari data set"):
        for number, fetch in enumerate(episodes_of(name, folder, kind, about.get("total_episodes"))):
            try:
                parts.append(rows_of(fetch, state + achieved, acted, goal, notes, None if noted else number))
            except (KeyError, ValueError) as error:
                if isinstance(error, InputError):
                    raise
                raise damaged(name, f"in episode {number}, {error.args[0]}") from error
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    columns, achieved_goal = columns_of(state, achieved, acted, arrays)
    if mine.get("reward") is False:
        del arrays["reward"]
    if mine and not noted:  # those of rows that nobody knew an episode of
        del arrays["episode"], arrays["step"]
    source = {"minari": name, **_environment(about), **achieved_goal}
    return Contents(arrays, mine.get("columns", columns), mine.get("source", source))


def write(data: Transitions, name: str) -> None:
    """Writes a Minari data set called `name`, such as "me/pushing-v0": whole or not at all, and never over another.

    Episodes are the table's, or else rows that follow one another; every other row is one of its own, so that each
    comes out with its own next state. Where a step of an episode is missing, the rest is another one. An
    episode that does not end in a terminal row ends truncated. Goals become the `desired_goal` of Dict observations;
    provenance lies in infos["mocoda"], and the table's episode and step in infos["mocoda_episodes"], whose entries
    t + 1 are those of step t. Rewards that are not there are written as zeros, and the metadata says so. The action
    space is [-1, 1] if all actions lie there, else the box that they fill.

    Minari keeps a group of arrays for every episode: 100,000 rows on their own take a core about a minute and 0.4 GB,
    and as long again to read. For millions of them, HDF5 of ours or in D4RL's layout is the better file.
    """
    check_new(name)
    from minari import __version__
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces

    _root().mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".mocoda-", dir=_root()))  # hidden, so that Minari does not list it
    try:
        whole = building / "whole"  # mkdtemp's own folder is closed to other users
        whole.mkdir()
        storage = MinariStorage.new(whole / "data", *_spaces(data))
        episodes = write_episodes(data, storage.data_path / "main_data.hdf5")
        storage.update_metadata(
            {
                "dataset_id": name,
                "minari_version": __version__,
                "algorithm_name": "mocoda",
                "description": _description(data),
                "total_episodes": episodes,
                "total_steps": len(data),
                "dataset_size": float(storage.get_size()),
                "mocoda": {
                    "columns": list(data.columns),
                    "source": dict(data.source),
                    "reward": data.reward is not None,
                    "provenance": list(data.provenance),
                    "episodes": data.episode is not None,
                },
            }
        )
        namespace = parse_dataset_id(name)[0]
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        whole.rename(_root() / name)
    finally:
        shutil.rmtree(building)


def check_new(name: str) -> None:
    """Refuses names that Minari does not take or that exist already."""
    try:
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError as error:
        raise InputError(f'writing a Minari data set needs Minari; pip install "mocoda[minari]" ({error}).') from error
    try:
        namespace, bare, version = parse_dataset_id(name)
    except (ValueError, TypeError) as error:  # the latter where there is no version
        raise InputError(
            f"{name!r} cannot name a Minari data set; expected 'name-v0' or 'namespace/name-v0', of letters, digits, "
            "- and _."
        ) from error
    if (_root() / name).exists():
        other = f"{namespace}/" if namespace else ""
        raise InputError(
            f"there is a Minari data set {name!r} already. Write to another version, such as "
            f"'{other}{bare}-v{version + 1}', or remove it first: minari delete {name}."
        )


MINARI = Format("minari", "Minari data set", "minari:NAMESPACE/NAME-v0", read, write, place="name", check=check_new)


# Where data sets are, and what they say of themselves


def _root() -> Path:
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given) if given is not None else Path.home() / ".minari" / "datasets"


def _folder(name: str) -> Path:
    folder = _root() / name / "data"
    if NAME.fullmatch(name) and (folder / "metadata.json").is_file():
        return folder
    known = sorted(_local(_root()))
    way_out = "Published ones come with `minari download ID`; MINARI_DATASETS_PATH says where they lie."
    if not known:
        raise InputError(f"there is no Minari data set {name!r}, nor any other in {str(_root())!r}. {way_out}")
    raise InputError(f"{unknown_name('Minari data set', name, known)} {way_out}")


def _local(root: Path, prefix: str = "") -> Iterator[str]:
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.is_dir() and not folder.name.startswith("."):
            if (folder / "data" / "metadata.json").is_file():
                yield prefix + folder.name
            elif not (folder / "data").exists():
                yield from _local(folder, f"{prefix}{folder.name}/")


def _metadata(name: str, folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "metadata.json").read_text("utf-8"))
    except OSError as error:
        raise InputError(
            f"the Minari data set {name!r} cannot be read: {error.strerror} ({error.filename})."
        ) from error
    except (ValueError, RecursionError) as error:
        raise damaged(name, f"metadata.json is not JSON ({error})") from error
    if not isinstance(about, dict):
        raise damaged(name, "metadata.json is not a JSON object")
    return about


def _ours(about: dict[str, Any]) -> dict[str, Any]:
    """What `write` noted; nothing if it is of other types than `write` notes."""
    types = {"columns": list, "source": dict, "reward": bool, "provenance": list}
    notes = about.get("mocoda")
    if not isinstance(notes, dict) or not all(isinstance(notes.get(key), kind) for key, kind in types.items()):
        return {}
    return notes if all(isinstance(note, str) for note in notes["provenance"]) else {}


def _environment(about: dict[str, Any]) -> dict[str, str]:
    """The id of the environment, for the source; it is never made."""
    try:
        return {"environment": str(json.loads(about["env_spec"])["id"])}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}


def _space(name: str, about: dict[str, Any], what: str) -> Any:
    """The space as JSON values."""
    given = about.get(f"{what}_space")
    if not isinstance(given, str):
        raise InputError(
            f"the Minari data set {name!r} does not say its {what} space, as those of Minari before 0.5 do not. "
            f"Download it again: minari download {name} --force."
        )
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise damaged(name, f"its {what} space is not JSON ({error})") from error


def _spaces(data: Transitions) -> tuple[Space[Any], Space[Any]]:
    action = data.action.cpu().numpy()
    low, high = np.minimum(action.min(0), -1.0), np.maximum(action.max(0), 1.0)
    if (low < -1).any() or (high > 1).any():
        low, high = action.min(0), action.max(0)
    state, acted = Box(-np.inf, np.inf, (data.state.shape[1],)), Box(low, high, dtype=np.float32)
    if data.goal is None:
        return state, acted
    return Dict(observation=state, desired_goal=Box(-np.inf, np.inf, (data.goal.shape[1],))), acted


def _description(data: Transitions) -> str:
    text = f"{len(data):,} transitions, written by mocoda; those that no other one follows are episodes of one step."
    return text if data.reward is not None else f"{text} They have no rewards: the zeros only stand in for them."
