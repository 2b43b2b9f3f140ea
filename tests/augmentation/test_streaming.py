from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest
import torch
from approved import refused
from streaming_world import Dying, prepare, prepared_as
from torch import Tensor
from transition_tables import assert_identical

import mocoda.augmentation.generation
from mocoda import InputError, Transitions, concatenate
from mocoda.augmentation import streaming
from mocoda.augmentation.generation import Augmentation
from mocoda.augmentation.streaming import FINISHED, UNFINISHED, augment_to_file
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation


@pytest.fixture(autouse=True)
def noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "INTERVAL", 0.0)


class StopHereError(Exception):
    pass


def interrupted_after(pieces: int, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, made = Augmentation.piece, 0

    def piece(self: Augmentation, number: int, drawn: int = 0) -> mocoda.augmentation.generation.Piece:
        nonlocal made
        made += 1
        if made > pieces:
            raise StopHereError
        return whole(self, number, drawn)

    with monkeypatch.context() as patch, pytest.raises(StopHereError):
        patch.setattr(Augmentation, "piece", piece)
        augment_to_file(out, prepare, folder=folder)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    augment_to_file(folder / "new" / "out.hdf5", prepare, folder=folder / "run")
    assert [path.name for path in (folder / "run").iterdir()] == []
    return folder / "new" / "out.hdf5"


def test_the_file_is_the_table_that_augment_makes(written: Path) -> None:
    expected = list(prepare().chunks())
    back, table = Transitions.load(written), concatenate(expected, expected[-1].source)
    assert_identical(back, table)
    assert set(back.provenance) == set(table.provenance)
    assert all(back.provenance[name].equal(note) for name, note in table.provenance.items())
    with h5py.File(written) as file:
        assert file["state"].chunks is None  # in one piece
        assert file["terminal"].dtype == bool


@pytest.mark.parametrize("pieces", [0, 1, 3, 5])
def test_what_was_interrupted_goes_on_to_the_same_bytes(
    pieces: int, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, folder = tmp_path / "out.hdf5", tmp_path / "run"
    interrupted_after(pieces, folder, out, monkeypatch)
    assert not out.exists()
    if pieces > 1:
        assert json.loads((folder / FINISHED).read_text())["pieces"] == pieces
    told: list[tuple[str, int, int]] = []
    augment_to_file(out, prepare, folder=folder, progress=lambda *said: told.append(said))
    assert out.read_bytes() == written.read_bytes()
    assert told[0] == ("augment", max(0, pieces - 1) * 100, 450) and told[-1] == ("augment", 450, 450)
    assert len(told) == 6 - max(0, pieces - 1)


@pytest.mark.parametrize("damage", ["note", "file", "gone"])
def test_what_is_damaged_is_made_anew(
    damage: str, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, folder = tmp_path / "out.hdf5", tmp_path / "run"
    interrupted_after(3, folder, out, monkeypatch)
    if damage == "note":
        (folder / FINISHED).write_text('{"pieces": 3')
    elif damage == "file":
        (folder / UNFINISHED).write_bytes(b"no HDF5")
    else:
        (folder / UNFINISHED).unlink()
    augment_to_file(out, prepare, folder=folder)
    assert out.read_bytes() == written.read_bytes()


def test_another_table_does_not_go_on_from_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_after(3, tmp_path / "run", tmp_path / "out.hdf5", monkeypatch)
    augment_to_file(tmp_path / "out.hdf5", partial(prepare, seed=1), folder=tmp_path / "run")
    expected = concatenate(list(prepare(seed=1).chunks()))
    assert Transitions.load(tmp_path / "out.hdf5").rows.equal(expected.rows)


@pytest.mark.parametrize("other", ["data", "weights", "parents"])
def test_pieces_of_other_data_weights_or_parents_are_not_continued(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = partial(prepare, other=other)
    assert changed().source(0, 0) == prepare().source(0, 0)
    interrupted_after(3, tmp_path / "run", tmp_path / "out.hdf5", monkeypatch)
    augment_to_file(tmp_path / "out.hdf5", changed, folder=tmp_path / "run")
    expected = concatenate(list(changed().chunks()))
    assert Transitions.load(tmp_path / "out.hdf5").rows.equal(expected.rows)
    assert Transitions.load(tmp_path / "out.hdf5").next_state.equal(expected.next_state)


def test_pieces_finished_before_workers_died_are_not_made_again(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "INTERVAL", 1_000.0)
    out, folder, marker = tmp_path / "out.hdf5", tmp_path / "run", tmp_path / "marker"
    marker.touch()
    dying = partial(prepared_as, Dying, {"fatal": 4, "marker": marker})
    with pytest.raises(InputError, match=r"^worker processes died 3 times"):
        augment_to_file(out, dying, folder=folder, workers=1)
    assert json.loads((folder / FINISHED).read_text())["pieces"] == 4
    marker.unlink()
    told: list[tuple[str, int, int]] = []
    augment_to_file(out, dying, folder=folder, progress=lambda *said: told.append(said))
    assert told[0] == ("augment", 300, 450) and out.read_bytes() == written.read_bytes()


def test_a_disk_without_room_for_the_file_is_known_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=20_000))
    with pytest.raises(OSError, match="No space left on device"):
        augment_to_file(tmp_path / "out.hdf5", prepare, folder=tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_rows_are_the_same_for_any_number_of_processes(written: Path, tmp_path: Path) -> None:
    augment_to_file(tmp_path / "out.hdf5", prepare, folder=tmp_path / "run", workers=2)
    assert (tmp_path / "out.hdf5").read_bytes() == written.read_bytes()


def test_what_filters_accepted_is_told_when_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = partial(prepare, min_support=0.5)
    source = augment_to_file(tmp_path / "out.hdf5", filtered, folder=tmp_path / "run")
    back, expected = Transitions.load(tmp_path / "out.hdf5"), list(filtered().chunks())
    assert dict(back.source) == source == dict(expected[-1].source)
    assert back.rows.equal(concatenate(expected).rows)
    assert 0.2 < source["filter"]["accepted_share"] < 0.9


class Unsendable:
    """Parents that hold what no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return torch.zeros(n, 4)


def test_what_cannot_be_sent_is_made_in_every_process_or_refused(tmp_path: Path) -> None:
    plan = replace(prepare(), parents=Unsendable())
    out, run = tmp_path / "x.hdf5", tmp_path / "run"
    with refused():
        augment_to_file(out, lambda: plan, folder=run, workers=1)
    augment_to_file(out, lambda: replace(prepare(), parents=Unsendable()), folder=run, workers=1)
    assert (Transitions.load(out).rows[200:] == 0).all()


def test_processes_are_sent_what_was_fitted_and_fit_nothing_again(tmp_path: Path) -> None:
    """Parents of a user's script, which no other process can import."""

    class Fitted:
        def __init__(self) -> None:
            (tmp_path / f"fitted {os.getpid()} {id(self)}").touch()
            self.corner = torch.tensor([0.1, 0.2, 0.3, 0.4])

        def sample(self, n: int, *, seed: int | Stream) -> Tensor:
            return self.corner.repeat(n, 1)

    def made() -> Augmentation:
        task = Navigation()
        label = lambda state, action, next_state: task.label(state, action, next_state)  # noqa: E731
        return replace(prepare(), parents=Fitted(), task=SimpleNamespace(name="mine", label=label))

    augment_to_file(tmp_path / "x.hdf5", made, folder=tmp_path / "run", workers=2)
    assert len(list(tmp_path.glob("fitted *"))) == 1
    rows = Transitions.load(tmp_path / "x.hdf5").rows[200:]
    assert len(rows) == 450 and rows.equal(torch.tensor([0.1, 0.2, 0.3, 0.4]).repeat(450, 1))


def test_a_path_that_cannot_be_written_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^cannot write .*: it is a folder\."):
        augment_to_file(tmp_path, lambda: pytest.fail("prepared"), folder=tmp_path / "run")
