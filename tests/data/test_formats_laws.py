"""What is written in any format comes back, to the bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_transitions_laws import FLOATS, parts

import mocoda
from mocoda import Transitions

TARGETS = ("data.hdf5", "d4rl:data.hdf5", "data.npz", "data.parquet")


@st.composite
def tables(draw: st.DrawFn) -> Transitions:
    made = draw(parts())
    rows = len(made["state"])
    notes = {
        "recipe": arrays(np.int64, rows, elements=st.integers(-(2**63), 2**63 - 1)),
        "support": arrays(np.float32, rows, elements=FLOATS),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(notes))))
    return Transitions(**made, provenance={name: draw(notes[name]) for name in sorted(chosen)})


def bits(table: Transitions) -> dict[str, Any]:
    """All that a table holds, to the bit."""
    held = {name: getattr(table, name) for name in ("state", "action", "next_state", "reward", "terminal", "goal")}
    held |= {f"provenance/{name}": note for name, note in table.provenance.items()}
    found = {
        name: (array.shape, array.dtype, array.numpy().tobytes()) for name, array in held.items() if array is not None
    }
    return {**found, "columns": table.columns, "source": table.source}


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=25, deadline=None)
@given(table=tables())
def test_a_table_that_was_written_and_read_is_identical(target: str, table: Transitions) -> None:
    kind, _, name = target.rpartition(":")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        mocoda.write(table, f"{kind}:{path}" if kind else path)
        assert bits(mocoda.read(path)) == bits(table)
        assert [found.name for found in Path(folder).iterdir()] == [name]
