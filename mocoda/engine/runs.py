"""settings -> a folder that says how it was made, and how far it is.

config.json      the command, its settings, versions, device
progress.jsonl   a line per stage and second
metrics.*        what was measured on the way, of trainings
*.safetensors    finished stages and checkpoints, which a second run of the same command goes on from
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import rich.console
import rich.progress
from rich.text import Text

from mocoda.engine.errors import InputError
from mocoda.engine.files import versions, write_json
from mocoda.engine.metrics import remove_metrics

# What finished and unfinished stages leave in a folder.
STAGES = (
    *("dynamics*.safetensors", "checkpoint*.safetensors", "policy-*.safetensors"),
    *("agents*/policy-*.safetensors", "agents*/agents.json", "recorded.hdf5", "recording/part-*.npz"),
)


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The settings of the command that wrote a folder."""
    try:
        settings: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text())["settings"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the folder {str(folder)!r} does not say how it was made: no config.json of mocoda's."
        ) from error
    return settings


class _Speed(rich.progress.ProgressColumn):
    """Steps a second."""

    def render(self, task: rich.progress.Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed and task.speed >= 1 else "", "progress.data.speed")


class RunFolder:
    """The folder of one long command; a context that draws its progress bars.

    A folder that the same command with the same settings left behind is continued. After a change of settings, what the
    old run wrote here (its stages, and the `outputs` by name) is removed first. Other people's folders are refused.
    """

    def __init__(
        self, path: str | Path, command: str, settings: Mapping[str, Any], outputs: Sequence[str] = ()
    ) -> None:
        self.path = Path(path)
        # As JSON reads them back, so that they can be compared.
        self.identity = json.loads(json.dumps({"command": command, "settings": dict(settings)}, default=str))
        self.outputs = outputs
        console = rich.console.Console(stderr=True)
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:>24}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            _Speed(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._stages: dict[str, rich.progress.TaskID] = {}
        self._logged = 0.0
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make the folder {str(self.path)!r}: {error.strerror}. Choose another path."
            ) from error
        left = self._left_behind()
        if left != self.identity:
            stages = (old for pattern in STAGES for old in self.path.glob(pattern))
            for old in (*stages, *(self.path / name for name in (*self.outputs, "progress.jsonl"))):
                old.unlink(missing_ok=True)
            if left is not None:  # without a config.json, the metrics are somebody else's
                remove_metrics(self.path)
        write_json(self.path / "config.json", {**self.identity, "versions": versions()})
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        begun = any(True for pattern in STAGES for _ in self.path.glob(pattern))
        if kind is not None and issubclass(kind, InputError) and self._made and not begun:
            for name in ("config.json", "progress.jsonl"):
                (self.path / name).unlink(missing_ok=True)
            remove_metrics(self.path)
            for folder in self._made:
                if not any(folder.iterdir()):
                    folder.rmdir()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Moves the stage's bar and, once a second and at its end, writes a line."""
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=total, completed=done)  # what is done took no time
        self._bars.update(self._stages[stage], completed=done, total=total)
        if done == total or time.monotonic() - self._logged >= 1:
            self._logged = time.monotonic()
            line = {"time": round(time.time(), 2), "stage": stage, "done": done, "total": total}
            with (self.path / "progress.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")

    def _left_behind(self) -> object:
        """What the folder's config.json says of the run that wrote it; None in a folder without runs."""
        config = self.path / "config.json"
        if not config.exists():
            if any(self.path.glob("*.safetensors")):
                raise InputError(f"the folder {str(self.path)!r} holds models of something else. Choose another path.")
            return None
        try:
            found = json.loads(config.read_text())
            return {key: found[key] for key in ("command", "settings")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the folder {str(self.path)!r} holds a config.json of something else. Choose another path."
            ) from error
