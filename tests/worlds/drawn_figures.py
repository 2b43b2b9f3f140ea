"""Figures to look into, instead of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from matplotlib.figure import Figure


@contextmanager
def drawn_figures() -> Iterator[list[Figure]]:
    """The figures that are drawn meanwhile, instead of files."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path, **options: object) -> None:
        figures.append(figure)
        Path(path).touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        yield figures
