"""What is written in any format comes back, to the bit."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_transitions import FLOATS, bits, parts

import mocoda
from mocoda import Transitions
from mocoda.data.formats.as_episodes import grouped_by_episode

TARGETS = {  # and whether rows come back as they are, or each episode's together
    "data.hdf5": False,
    "d4rl:data.hdf5": True,
    "robomimic:data.hdf5": True,
    "data.npz": False,
    "data.parquet": False,
    "data.csv": False,
    "lerobot:data": True,
    "minari:data-v0": True,
    "d3rlpy:data.h5": True,
}
EXAMPLES = {"robomimic:data.hdf5": 6, "lerobot:data": 15, "minari:data-v0": 10, "d3rlpy:data.h5": 10}  # take longer


@st.composite
def tables(draw: st.DrawFn) -> Transitions:
    made = draw(parts())
    rows = len(made["state"])
    if draw(st.booleans()):  # rows that follow one another
        made["next_state"][:-1] = made["state"][1:]
    notes = {
        "recipe": arrays(np.int64, rows, elements=st.integers(-(2**63), 2**63 - 1)),
        "support": arrays(np.float32, rows, elements=FLOATS),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(notes))))
    if draw(st.booleans()):
        made["episode"] = draw(arrays(np.int64, rows, elements=st.integers(-1, 2) | st.just(2**63 - 1)))
        made["step"] = draw(st.none() | arrays(np.int64, rows, elements=st.integers(0, 5)))
    return Transitions(**made, provenance={name: draw(notes[name]) for name in sorted(chosen)})


@settings(max_examples=50, deadline=None)
@given(tables())
def test_exporters_put_an_episode_s_rows_together_in_the_order_of_its_steps(table: Transitions) -> None:
    assert bits(grouped_by_episode(grouped_by_episode(table))) == bits(grouped_by_episode(table))
    if table.episode is None or table.step is None:
        assert grouped_by_episode(table) is table
        return
    rows = torch.arange(len(table))
    marked = grouped_by_episode(replace(table, provenance={"row": rows}))
    order = marked.provenance["row"]
    assert order.sort().values.equal(rows) and marked.rows.equal(table.rows[order])
    episode, step = table.episode[order].tolist(), table.step[order].tolist()
    assert len([*groupby(number for number in episode if number >= 0)]) == len({*episode} - {-1})
    for (one, first), (other, second) in pairwise(zip(episode, step, strict=True)):
        assert one != other or one < 0 or first <= second


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_that_was_written_and_read_is_identical(target: str) -> None:
    @settings(max_examples=EXAMPLES.get(target, 25), deadline=None)
    @given(table=tables())
    def holds(table: Transitions) -> None:
        kind, _, name = target.rpartition(":")
        if kind == "d3rlpy" and table.reward is None:  # which needs one
            table = replace(table, reward=torch.zeros(len(table)))
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
            environment.setenv("MINARI_DATASETS_PATH", folder)
            place = target if kind == "minari" else f"{kind}:{Path(folder) / name}" if kind else Path(folder) / name
            mocoda.write(table, place)
            back = mocoda.read(place)
            if target == "data.csv":  # which cannot hold it
                back = replace(back, source=table.source)
            assert bits(back) == bits(grouped_by_episode(table) if TARGETS[target] else table)
            assert [found.name for found in Path(folder).iterdir()] == [name]

    holds()
