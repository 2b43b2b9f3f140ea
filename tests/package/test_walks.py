"""How many files somebody opens who follows the README's example, or `mocoda augment`, through the package."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from command_line import TINY, done

import mocoda
from mocoda.cli.demo import GRAPH

ROOT, PACKAGE = Path(__file__).parents[2], Path(mocoda.__file__).parent


def walk(run: Callable[[], object]) -> tuple[list[str], Counter[str]]:
    """The files whose functions run, in the order of their first call, without engine/; and the calls of functions."""
    run()  # what runs only when a module is imported is no part of the walk
    files: dict[str, None] = {}
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            calls[frame.f_code.co_name] += 1
            files.setdefault(str(path.relative_to(PACKAGE)))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [name for name in files if not name.startswith("engine/") and name != "__init__.py"], calls


def test_the_readme_s_example_leads_through_few_files() -> None:
    _, example = re.split(r"```python\n(?=import mocoda\n)", (ROOT / "README.md").read_text("utf-8"))
    small = re.sub(r"(rows|updates|episodes)=[\d_]+", r"\1=300", example.partition("```")[0])
    files, calls = walk(lambda: exec(small.replace("updates=300", "updates=4"), {}))
    assert len(files) <= 18, files
    assert calls["fit_parents"] == calls["fit_dynamics"] == 1


def test_augment_leads_through_few_files_and_fits_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mocoda.make_task("navigation").collect(300, seed=0).save("walks.hdf5")
    Path("walks.py").write_text(GRAPH, "utf-8")
    words, seeds = ["augment", "walks.hdf5", "--graph", "walks.py", "--rows", 200, *TINY, "--overwrite"], iter((0, 1))
    words += ["--max-disagreement", 100]  # which asks the model
    files, calls = walk(lambda: done(*words, "--seed", next(seeds)))
    assert len(files) <= 25, files
    assert calls["fit_parents"] == calls["fit_dynamics"] == calls["load_task"] == 1
