"""How long work reports how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback of those who did not ask."""
