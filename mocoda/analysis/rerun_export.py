"""Recordings for Rerun's viewer: counterfactual rows beside the recorded ones that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.page.report import generated
from mocoda.analysis.page.scene import bodies_of
from mocoda.augmentation.episode_rollout import equal_rows
from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

TIMELINE = "row"
BLOCK = 4_096  # rows whose origins are compared at a time
COLOURS = {"recorded": (0, 114, 178), "counterfactual": (213, 94, 0)}


def export_rerun(data: Transitions, path: str | Path) -> None:
    """Writes a recording for Rerun's viewer (FILE.rrd), which opens it if it has the same version as rerun-sdk here.

    Recorded and counterfactual rows are in one recording, on one timeline, "row": the number of a counterfactual row
    in the data. There, `counterfactual/COLUMN` is its own value, and `recorded/COLUMN` that of the recorded row which
    gives most of its columns, to the bit; nothing where none gives any. Bodies, known by columns whose names end in x
    and y, are points in `above/`. Support, disagreement, episode and step are in `notes/`. Data without counterfactual
    rows shows its recorded ones.
    """
    try:
        import rerun
    except ImportError as error:
        raise InputError(f'to write recordings, pip install "mocoda[rerun]" ({error}).') from error
    data = data.to("cpu")
    made = generated(data)
    shown = made.nonzero()[:, 0] if bool(made.any()) else torch.arange(len(data))
    content = fingerprint(data.rows, data.next_state, *data.provenance.values())
    stream = rerun.RecordingStream("mocoda", recording_id=content, send_properties=False)
    with whole_file(path) as part:
        stream.save(part)
        if bool(made.any()):
            _log(stream, "counterfactual", data[shown], shown)
            if not bool(made.all()):
                known = data[~made]
                base = _bases(known.rows, data.rows[shown])
                there = base >= 0
                if bool(there.any()):
                    _log(stream, "recorded", known[base[there]], shown[there])
        else:
            _log(stream, "recorded", data, shown)
        notes = {name: data.provenance[name] for name in ("support", "disagreement") if name in data.provenance}
        notes |= {name: note for name in ("episode", "step") if (note := getattr(data, name)) is not None}
        for name, note in notes.items():
            _scalars(stream, f"notes/{name}", note[shown], shown)
        stream.flush()
        stream.disconnect()


def _log(stream: Any, kind: str, table: Transitions, at: Tensor) -> None:
    import rerun

    for column, name in enumerate(table.columns):
        _scalars(stream, [kind, name], table.rows[:, column], at)
    for body in bodies_of(table.columns[: table.state.shape[1]]):
        place = table.state[:, [body.x, body.y]] * torch.tensor([1.0, -1.0])  # the viewer's y points down
        rerun.send_columns(
            rerun.new_entity_path(["above", kind, body.label]),
            [rerun.TimeColumn(TIMELINE, sequence=at.numpy())],
            rerun.Points2D.columns(positions=place.numpy()),
            recording=stream,
        )
        look = rerun.Points2D.from_fields(colors=[COLOURS[kind]], radii=[-6.0], labels=[body.label])  # 6 pixels
        rerun.log(rerun.new_entity_path(["above", kind, body.label]), look, static=True, recording=stream)


def _scalars(stream: Any, entity: str | list[str], values: Tensor, at: Tensor) -> None:
    import rerun

    rerun.send_columns(
        entity if isinstance(entity, str) else rerun.new_entity_path(entity),
        [rerun.TimeColumn(TIMELINE, sequence=at.numpy())],
        rerun.Scalars.columns(scalars=values.double().numpy()),
        recording=stream,
    )


def _bases(known: Tensor, rows: Tensor) -> Tensor:
    """The recorded row (M,) that has most columns of each row, to the bit; -1: none has any."""
    found = []
    for block in rows.split(BLOCK):
        candidates = [equal_rows(block[:, [column]], known[:, [column]]) for column in range(rows.shape[1])]
        candidate = torch.stack(candidates, 1)  # (block, S + A)
        votes = torch.stack([(known[one.clamp(min=0)] == block).sum(1) * (one >= 0) for one in candidates], 1)
        found.append(candidate.gather(1, votes.argmax(1, keepdim=True))[:, 0])
    return torch.cat(found)
