"""The list of rows to drop that a page exports, and the data without them."""

from __future__ import annotations

from pathlib import Path

import torch

from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError

HEAD = "# mocoda: rows to drop of data"
OF = "# mocoda: rows to drop of a table of"  # of which not all rows were read, so that only their number is known


def drop_rows(data: Transitions, file: str | Path) -> Transitions:
    """The data without the rows that a file lists, such as one that the page of `mocoda.report` exports.

    file  one row number a line, counted from 0. A line that begins with # is no number; the page's first such line says
          which data it is of, and other data is refused
    """
    listed = []
    for number, line in enumerate(_lines(Path(file)), 1):
        text = line.strip()
        if text.startswith((HEAD, OF)) and text != (wanted := _first_line(data, text.startswith(OF))):
            raise InputError(
                f"{str(file)!r} is of other data: it begins with {text!r}, and this data's would be {wanted!r}. "
                "Rows are known by their place, so drop them from the very file that the page was made of."
            )
        if not text or text.startswith("#"):
            continue
        if not text.isdecimal() or int(text) >= len(data):
            raise InputError(
                f"{str(file)!r} has {text[:40]!r} in line {number}; expected the number of a row, from 0 to "
                f"{len(data) - 1}."
            )
        listed.append(int(text))
    keep = torch.ones(len(data), dtype=torch.bool, device=data.device)
    keep[torch.tensor(listed, dtype=torch.long, device=data.device)] = False
    if not bool(keep.any()):
        raise InputError(f"{str(file)!r} lists all {len(data):,} rows: nothing would be left.")
    return data[keep]


def _first_line(data: Transitions, by_rows: bool) -> str:
    return f"{OF} {len(data)} rows" if by_rows else f"{HEAD} {content_of(data)}"


def content_of(data: Transitions) -> str:
    """A short hash of the rows and their next states, in their order."""
    return fingerprint(data.rows, data.next_state)


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise InputError(f"there is no file {str(file)!r} of rows to drop. The page of `mocoda report` exports one.")
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{str(file)!r} is not text; expected one row number a line.") from None
