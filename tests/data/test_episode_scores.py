"""Which episodes `inspect` flags: planted bad ones, each for its own reason, and next to none of sound data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from approved import assert_approved
from command_line import done
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as any_arrays

import mocoda
from mocoda.data import EpisodeScores

BAD = 7  # the episode that is spoilt
Arrays = dict[str, Any]


def recording(seed: int = 0, episodes: int = 40, steps: int = 30) -> Arrays:
    """A hand that goes from place to place, and a cup that it moves in half of the episodes."""
    random = np.random.default_rng(seed)
    targets = random.normal(size=(episodes, 4, 2)).repeat(-(-steps // 4) + 1, 1)
    hand, moves = random.normal(size=(episodes, 1, 2)), []
    for step in range(steps):
        moves.append(0.2 * (targets[:, step] - hand[:, -1]) + random.normal(scale=0.01, size=(episodes, 2)))
        hand = np.concatenate([hand, hand[:, -1:] + moves[-1][:, None]], 1)
    cup = random.normal(size=(episodes, 1, 2)) + (random.random((episodes, 1, 1)) < 0.5) * (hand - hand[:, :1])
    place = np.concatenate([hand, cup], 2)
    return {
        "state": place[:, :-1].reshape(-1, 4),
        "action": np.clip(np.stack(moves, 1).reshape(-1, 2), -0.4, 0.4),
        "next_state": place[:, 1:].reshape(-1, 4),
        "episode": np.repeat(np.arange(episodes), steps),
        "step": np.tile(np.arange(steps), episodes),
    }


def scores_of(arrays: Any) -> EpisodeScores:
    columns = ["hand.x", "hand.y", "cup.x", "cup.y", "move.x", "move.y"]
    found = mocoda.inspect(arrays, columns=columns).episode_scores
    assert found is not None
    return found


def still(made: Arrays, rows: Any) -> None:
    made["state"][rows] = made["next_state"][rows] = made["state"][rows][0]


def jump(made: Arrays, rows: Any) -> None:
    made["state"][rows[12:], 0] += 20
    made["next_state"][rows[11:], 0] += 20


def short(made: Arrays, rows: Any) -> None:
    made |= {name: np.delete(array, rows[3:], 0) for name, array in made.items()}


def held(made: Arrays, rows: Any) -> None:
    made["action"][rows, 1] = 0.4


def far(made: Arrays, rows: Any) -> None:
    made["action"][rows[4], 0] = 3


def wrong(made: Arrays, rows: Any) -> None:
    made["next_state"][rows[9], 3] += 0.05


def infinite(made: Arrays, rows: Any) -> None:
    made["action"][rows[5:8], 1] = np.inf


SPOILT = {
    "moving": (still, "hardly moves: 0.0% of the usual pace"),
    "continuous": (jump, "hand.x jumps in row 221"),
    "length": (short, "length 3, usually 30 rows"),
    "in_range": (held, "move.y is at a limit in 100% of the rows"),
    "in_range ": (far, "move.x reaches"),
    "next_states": (wrong, "the next cup.y is not the following row's in 1 of its rows, first row 219"),
    "finite": (infinite, "NaN or infinite numbers in 3 of its rows, first row 215"),
}


@pytest.mark.parametrize("aspect", SPOILT)
@pytest.mark.parametrize("seed", range(3))
def test_a_bad_episode_is_flagged_for_its_reason_and_no_other_episode_is(aspect: str, seed: int) -> None:
    spoil, words = SPOILT[aspect]
    made = recording(seed)
    assert len(scores_of(made).flagged) == 0
    spoil(made, np.flatnonzero(made["episode"] == BAD))
    found = scores_of(made)
    assert found.flagged.tolist() == [BAD] and found.details[aspect.strip()][BAD] < 0.5 and words in found.reasons[BAD]
    left = mocoda.drop(made, bad=True)  # NaN included
    assert left.episode is not None and sorted({*left.episode.tolist()}) == [n for n in range(40) if n != BAD]
    assert len(left) == (made["episode"] != BAD).sum()


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(SPOILT)), st.integers(0, 2**32 - 1), st.integers(5, 40))
def test_scores_belong_to_episodes_wherever_their_rows_are(aspect: str, seed: int, episodes: int) -> None:
    made = recording(seed % 100, max(episodes, BAD + 1))
    SPOILT[aspect][0](made, np.flatnonzero(made["episode"] == BAD))
    order = np.random.default_rng(seed).permutation(len(made["state"]))
    found, other = scores_of(made), scores_of({name: array[order] for name, array in made.items()})
    assert found.scores.keys() == found.details.keys()
    for name, values in found.details.items():
        assert ((values >= 0) & (values <= 1)).all() and np.isclose(found.scores[name], values.mean())
        assert np.allclose(values, other.details[name])
    assert [bool(why) for why in found.reasons] == (found.lowest < 0.5).tolist()
    assert {*found.flagged} == {*other.flagged} == {*found.episode[found.lowest < 0.5].tolist()}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_the_numbers_are_scores_are_between_0_and_1(draw: st.DataObject) -> None:
    rows = draw.draw(st.integers(1, 30))
    odd = st.sampled_from([0, 1, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40]) | st.floats(-1, 1, width=32)
    made: Arrays = {
        name: draw.draw(any_arrays.arrays(np.float32, (rows, width), elements=odd, fill=st.just(0)))
        for name, width in (("state", 2), ("action", 1), ("next_state", 2))
    }
    if draw.draw(st.booleans()):
        made["episode"] = draw.draw(any_arrays.arrays(np.int64, rows, elements=st.integers(-1, 7)))
    found = mocoda.inspect(made)
    assert str(found) and found.to_json()
    if found.episode_scores is not None:
        assert all(((values >= 0) & (values <= 1)).all() for values in found.episode_scores.details.values())


def test_many_bad_episodes_are_still_the_unusual_ones() -> None:
    made = recording(1, 100)
    chosen = np.random.default_rng(0).choice(np.arange(1, 100), 15, replace=False)
    for number, spoil in zip(chosen.tolist(), 5 * [still, held, wrong], strict=True):
        spoil(made, np.flatnonzero(made["episode"] == number))
    assert sorted(scores_of(made).flagged) == sorted(chosen.tolist())


def test_an_angle_that_wraps_around_in_few_episodes_is_no_jump() -> None:
    made = recording()
    turn = np.tile(np.linspace(-3, 3, 31), (40, 1))
    turn[:2] = (turn[:2] + 0.5 + np.pi) % (2 * np.pi) - np.pi
    for name, part in (("state", turn[:, :-1]), ("next_state", turn[:, 1:])):
        made[name] = np.column_stack([made[name], part.reshape(-1)])
    found = mocoda.inspect(made).episode_scores
    assert found is not None and len(found.flagged) == 0


def test_runs_of_rows_are_episodes_where_none_are_numbered() -> None:
    made = recording(2)
    still(made, np.arange(210, 240))
    numbered, runs = scores_of(made), scores_of({n: a for n, a in made.items() if n not in ("episode", "step")})
    assert numbered.flagged.tolist() == runs.flagged.tolist() == [BAD]
    assert all(np.allclose(values, runs.details[name]) for name, values in numbered.details.items())


def test_few_episodes_and_rows_that_stand_alone_are_not_compared() -> None:
    made = recording(episodes=4)
    wrong(made, np.arange(30, 60))
    found = mocoda.inspect(made)
    assert found.episode_scores is not None and [*found.episode_scores.details] == ["next_states", "finite"]
    assert found.episode_scores.flagged.tolist() == [1] and "Fewer than 8 episodes" in str(found)
    order = np.random.default_rng(0).permutation(120)
    alone = mocoda.inspect({name: array[order] for name, array in made.items() if name not in ("episode", "step")})
    assert alone.episode_scores is None and alone.to_json()["episode_scores"] is None
    assert_approved(next(line for line in str(alone).splitlines() if "alone" in line))


def test_the_command_prints_the_worst_and_how_to_leave_them_out(tmp_path: Path) -> None:
    made = recording()
    for number, spoil in ((3, still), (11, wrong)):
        spoil(made, np.flatnonzero(made["episode"] == number))
    mocoda.read(made).save(tmp_path / "data.hdf5")
    said = done("inspect", tmp_path / "data.hdf5")
    assert "2 of 40 episodes are flagged" in said and "0.0% of the usual" in said
    *_, command = said.splitlines()
    words = command.partition("mocoda ")[2].split()
    assert words[:5] == ["drop", str(tmp_path / "data.hdf5"), "--episodes", "3", "11"]
    done(*words[:-1], tmp_path / "clean.hdf5")
    done("drop", tmp_path / "data.hdf5", "--bad", "--out", tmp_path / "same.hdf5")
    clean = mocoda.read(tmp_path / "clean.hdf5")
    assert len(clean) == 38 * 30 and clean.rows.equal(mocoda.read(tmp_path / "same.hdf5").rows)
    assert "0 of 38 episodes are flagged" in done("inspect", tmp_path / "clean.hdf5").replace("\n", " ")


def test_generated_rows_are_not_judged() -> None:
    data = mocoda.read(recording())
    noise = torch.cat([torch.zeros(len(data)), torch.ones(300)]).long()
    made = mocoda.concatenate([replace(data, episode=None, step=None), replace(data[:300], episode=None, step=None)])
    mixed = replace(made, provenance={"recipe": noise}, episode=torch.cat([data.episode, torch.full((300,), -1)]))  # type: ignore[list-item]
    found, own = mocoda.inspect(mixed).episode_scores, mocoda.inspect(data).episode_scores
    assert found is not None and own is not None and found.scores == own.scores
