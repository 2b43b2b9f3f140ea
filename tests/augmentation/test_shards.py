"""Tables as folders of shards: the same bytes whoever makes them, whole or not at all, and read as one table."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from approved import refused
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from streaming_world import prepare
from transition_tables import assert_identical, refusal

import mocoda
import mocoda.augmentation.generation
from mocoda import (
    Augmentation,
    Excerpt,
    Transitions,
    augment_to_shards,
    make_engine,
    read,
    read_excerpt,
    read_pieces,
)
from mocoda.augmentation.streaming import _Shards

ROWS, SHARDS = 1_230, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards as one process makes them."""
    made = tmp_path_factory.mktemp("shards") / "rows"
    augment_to_shards(made, partial(prepare, "mocoda-matched", rows=ROWS), shards=SHARDS)
    return made


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The same shards, to be damaged."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_are_the_table_that_augment_makes(folder: Path) -> None:
    expected = list(prepare("mocoda-matched", rows=ROWS).chunks())
    table, back = mocoda.concatenate(expected, expected[-1].source), read(folder)
    assert_identical(back, table)
    assert back.episode is not None and table.episode is not None and back.episode.equal(table.episode)
    assert {name: note.tolist() for name, note in back.provenance.items()} == {
        name: note.tolist() for name, note in table.provenance.items()
    }
    assert sorted(bytes_of(folder)) == ["manifest.json", *(f"shard-0000{number}.parquet" for number in range(SHARDS))]


def test_an_excerpt_has_the_recorded_rows_those_to_show_and_others_at_random(folder: Path) -> None:
    whole, excerpt = read(folder), read_excerpt(folder, rows=400, show=[1_299])
    assert isinstance(excerpt, Excerpt) and excerpt.whole == len(whole) == 1_430
    numbers = excerpt.numbers.tolist()
    assert numbers == sorted({*numbers}) and {*range(200), 1_299} < {*numbers} and abs(len(numbers) - 400) <= 10
    assert_identical(replace(excerpt.table, source={}), replace(whole[excerpt.numbers], source={}))
    assert {number // 100 for number in numbers[200:]} > {5, 12}  # from many pieces
    again, other = read_excerpt(f"shards:{folder}", rows=400, show=[1_299]), read_excerpt(folder, rows=400, seed=1)
    assert isinstance(again, Excerpt) and again.numbers.tolist() == numbers
    assert isinstance(other, Excerpt) and other.numbers.tolist() != numbers
    assert isinstance(read_excerpt(folder, rows=1_430), Transitions)  # what fits is read whole


@settings(max_examples=60)
@given(rows=st.integers(1, 3_000), shards=st.integers(1, 40), keep=st.booleans())
def test_every_piece_is_in_one_shard_and_every_shard_has_rows(rows: int, shards: int, keep: bool) -> None:
    assume(shards <= rows)
    plan = Augmentation(DATA, PARENTS, MODEL, rows=rows, keep_recorded=keep, chunk=100)
    work = _Shards.of(plan, shards, Path())
    pieces = [piece for number in range(shards) for piece in work.pieces(number)]
    assert pieces == list(range(len(pieces)))
    sizes = [work.rows(number) for number in range(shards)]
    assert min(sizes) > 0 and sum(sizes) == rows + (len(DATA) if keep else 0) == work.manifest.rows


PLAN = prepare(rows=10)
DATA, PARENTS, MODEL = PLAN.data, PLAN.parents, PLAN.model


# Whoever makes them


def test_the_bytes_are_the_same_for_any_order_and_number_of_processes(folder: Path, tmp_path: Path) -> None:
    plan = prepare("mocoda-matched", rows=ROWS)
    for number in (2, 0, 3, 1):
        augment_to_shards(tmp_path / "one by one", lambda: plan, shards=SHARDS, only=[number])
    assert bytes_of(tmp_path / "one by one") == bytes_of(folder)
    two = make_engine(workers=2)
    augment_to_shards(tmp_path / "two", partial(prepare, "mocoda-matched", rows=ROWS), shards=SHARDS, engine=two)
    assert bytes_of(tmp_path / "two") == bytes_of(folder)


def test_a_second_call_makes_what_is_missing_and_nothing_else(copy: Path, folder: Path) -> None:
    (copy / "shard-00001.parquet").unlink()
    times = {path.name: path.stat().st_mtime_ns for path in copy.iterdir()}
    told: list[tuple[str, int, int]] = []
    augment_to_shards(
        copy,
        partial(prepare, "mocoda-matched", rows=ROWS),
        shards=SHARDS,
        progress=lambda *progress: told.append(progress),
    )
    assert bytes_of(copy) == bytes_of(folder)
    assert all((copy / name).stat().st_mtime_ns == at for name, at in times.items())
    assert told == [("augment", 1_130, 1_430), ("augment", 1_430, 1_430)]


def test_a_shard_that_fails_halfway_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Augmentation.piece

    def piece(self: Augmentation, number: int, drawn: int = 0) -> mocoda.augmentation.generation.Piece:
        if number == 5:
            raise RuntimeError("no")
        return whole(self, number, drawn)

    monkeypatch.setattr(Augmentation, "piece", piece)
    with pytest.raises(RuntimeError, match="no"):
        augment_to_shards(tmp_path / "rows", partial(prepare, "mocoda-matched", rows=ROWS), shards=SHARDS)
    assert sorted(bytes_of(tmp_path / "rows")) == ["manifest.json", "shard-00000.parquet"]


def test_filters_are_counted_over_all_shards(tmp_path: Path) -> None:
    plan = prepare(rows=450, min_support=0.2)
    source = augment_to_shards(tmp_path / "rows", lambda: plan, shards=3)
    expected = list(plan.chunks())[-1].source
    assert source == read(tmp_path / "rows").source == expected and source["filter"]["drawn_rows"] > 450


# What is refused


@pytest.mark.parametrize("change", [{"seed": 1}, {"rows": 1_231}, {"other": "weights"}, {"other": "data"}])
def test_shards_of_another_request_are_refused(change: dict[str, Any], copy: Path, folder: Path) -> None:
    plan = partial(prepare, **{"rows": ROWS} | change)
    said = refusal(lambda: augment_to_shards(copy, plan, shards=SHARDS))
    assert said.startswith(f"the folder {str(copy)!r} holds shards of another table, which differs in fingerprint")
    assert said.endswith(". Choose another folder.") and bytes_of(copy) == bytes_of(folder)


def test_a_file_that_took_the_name_of_a_shard_is_refused_and_kept(copy: Path, folder: Path) -> None:
    path = copy / "shard-00001.parquet"
    shutil.copy(copy / "shard-00002.parquet", path)
    again = partial(augment_to_shards, copy, partial(prepare, "mocoda-matched", rows=ROWS), shards=SHARDS)
    expected = f"{str(path)!r} is not the shard 1 of 4 that manifest.json tells of. Move it away."
    assert refusal(again) == refusal(lambda: read(copy)) == refusal(lambda: list(read_pieces(copy))) == expected
    path.write_bytes(b"PAR1 somebody's")
    assert refusal(again).startswith(f"{str(path)!r} cannot be read as Parquet: it is truncated, damaged")
    assert path.read_bytes() == b"PAR1 somebody's"


def test_a_folder_that_lacks_shards_is_refused_with_their_names(copy: Path) -> None:
    for number in (1, 3):
        (copy / f"shard-0000{number}.parquet").unlink()
    assert refusal(lambda: read(copy)) == (
        f"{str(copy)!r} lacks 2 of 4 shards (shard-00001.parquet, shard-00003.parquet). The command that began them "
        "makes those that are missing."
    )


def test_numbers_of_shards_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with refused():
        augment_to_shards(tmp_path, partial(prepare, rows=10), shards=4, only=[4])
    with refused():
        augment_to_shards(tmp_path / "rows", partial(prepare, rows=10), shards=11)
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format_version": 2}, "has format version 2; this mocoda reads version 1."),
        ({"shards": 10**12}, "is damaged: its numbers of shards and rows cannot be."),
        ({"rows": "many"}, "is damaged: its numbers of shards and rows cannot be."),
        ({"rows": 10**15}, None),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(change: dict[str, Any], said: str | None, copy: Path) -> None:
    path = copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    whole = f"the shards in {str(copy)!r} have 1,430 rows, and manifest.json tells of 1,000,000,000,000,000."
    assert refusal(lambda: read(copy)) == (whole if said is None else f"{str(path)!r} {said}")
