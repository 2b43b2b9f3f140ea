"""what verbs say and ask: the console, and small questions about devices and tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rich.console
from rich.text import Text

from mocoda.engine.errors import InputError

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

out = rich.console.Console(width=None if sys.stdout.isatty() else 140)


def say(sentence: str) -> None:
    """Prints a sentence as it is: brackets are no markup, and paths are not broken."""
    out.print(Text(sentence), soft_wrap=True)


def beside(file: Path) -> Path:
    """The folder that says how `file` was made."""
    return file.with_name(f"{file.name}.run")


def content(data: Transitions) -> str:
    """A short hash of all that is in a table."""
    from mocoda.engine.checkpoint import fingerprint

    labels = (label for label in (data.reward, data.goal) if label is not None)
    return fingerprint(data.rows, data.next_state, data.terminal, *labels)


def check_device(device: str) -> None:
    import torch

    here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in (*here, *(["cuda"] if len(here) > 1 else [])):
        raise InputError(f"device {device!r} is not here; there is: {', '.join(here)}.")
