"""Recordings for Rerun's viewer: counterfactual rows beside the recorded rows that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.page.row_browser import main_donors, noted_donors
from mocoda.analysis.page.scene import bodies_of
from mocoda.analysis.scores import generated
from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

TIMELINE = "row"
COLOURS = {"recorded": (0, 114, 178), "counterfactual": (213, 94, 0)}


def export_rerun(data: Transitions, path: str | Path) -> None:
    """Writes a recording for Rerun's viewer (FILE.rrd), which opens it if it has the same version as rerun-sdk here.

    Recorded and counterfactual rows are in one recording, on one timeline, "row": the number of a counterfactual row
    in the data. There, `counterfactual/COLUMN` is its own value, and `recorded/COLUMN` that of the recorded row that
    most of its parts come from, if its provenance names donors. Bodies, recognised by columns whose names end in x and
    y, are points in `above/`. Support, disagreement, episode and step are in `notes/`. Data without counterfactual rows
    shows its recorded ones.
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
                base = _main_donors(known, data[shown])
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


def _main_donors(known: Transitions, made: Transitions) -> Tensor:
    """The recorded row (M,) that most parts of each row come from, by provenance; -1 where no donor is noted."""
    names = [name for name in made.provenance if name.startswith("donor_")]
    steps = {name.replace("donor_", "donor_step_", 1) for name in names}
    found = [
        noted_donors(known, made, name, name.replace("donor_", "donor_step_", 1)) for name in names if name not in steps
    ]
    return main_donors(torch.stack(found, 1)) if found else torch.full((len(made),), -1)
