"""A run folder says how it was made and how far it is, and knows which files in it are its own.

config.json      the command, its settings and versions
files.jsonl      the files that the run made, each listed before it appears; locked while the run is open
progress.jsonl   a line per stage and second
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import rich.console
import rich.progress
from rich.text import Text

from mocoda.engine.errors import InputError, differing_keys
from mocoda.engine.file_list import FILES, FileList
from mocoda.engine.files import announce, on_write, versions, write_json
from mocoda.engine.progress import PlainProgress

CONFIG, PROGRESS = "config.json", "progress.jsonl"
LOGS = (CONFIG, PROGRESS, "metrics.jsonl", "metrics.csv", "tensorboard/")  # nothing that a run could continue from
STATES = (".safetensors", ".hdf5", ".npz")  # how the names end of what it can


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The settings of the command that wrote a folder."""
    settings: dict[str, Any] = _identity_of(Path(folder))["settings"]
    return settings


class RunFolder:
    """The folder of one command: a context that locks it, lists the files written in it and shows progress.

    path       the folder; the same command with the same settings continues what it left there
    command    the verb, such as "train"
    settings   all that the results depend on, as JSON values
    outputs    names in the folder that the command will write; where they are somebody else's files, it is refused
    overwrite  replace a run of another command or of other settings, which is refused otherwise. What that run listed
               as its own is removed, and nothing else
    target     a file outside the folder that the command will write. One that is there already is refused unless this
               run made it, or with `overwrite`
    wait       while another process writes in the folder, which is an error otherwise

    Inside the context, files in the folder that are written with `whole_file`, or after `announce`, are listed.
    """

    def __init__(
        self,
        path: str | Path,
        command: str,
        settings: Mapping[str, Any],
        outputs: Sequence[str] = (),
        overwrite: bool = False,
        target: str | Path | None = None,
        wait: bool = False,
    ) -> None:
        self.path = Path(path)
        # As JSON reads them back, so that they can be compared.
        self.identity = json.loads(json.dumps({"command": command, "settings": dict(settings)}, default=str))
        self.outputs = outputs
        self.overwrite = overwrite
        self.target = None if target is None else Path(target)
        self.wait = wait
        self._files = FileList(self.path)
        self._show = _Bars() if sys.stderr.isatty() else PlainProgress()
        self._logged = 0.0
        self._new: list[Path] = []

    @classmethod
    def reopen(cls, path: str | Path, outputs: Sequence[str] = ()) -> Self:
        """The run that made the folder, to write more files there."""
        found = _identity_of(Path(path))
        return cls(path, found["command"], found["settings"], outputs)

    def __enter__(self) -> Self:
        try:
            self._new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self._files.read()
            self._replaces()
            self.path.mkdir(parents=True, exist_ok=True)
            self._files.lock(self.wait)
            try:
                self._begin()
            except BaseException:
                self._close()
                raise
        except OSError as error:
            do = "write in" if os.path.isdir(self.path) else "make"  # noqa: PTH112  # Path.is_dir may raise again
            raise InputError(
                f"cannot {do} the folder {str(self.path)!r}: {error.strerror}. Choose another path."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.target is not None and self.target.exists():
                self._files.add_target(self.target, finished=True)
            if kind is not None and issubclass(kind, InputError) and not self._saved():
                self._undo()
        finally:
            self._close()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._resumable():
            sys.stderr.write("interrupted: the same command continues from its last checkpoint.\n")

    def progress(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is and, once a second and at its end, writes a line."""
        self._show(stage, done, total)
        if done == total or time.monotonic() - self._logged >= 1:
            self._logged = time.monotonic()
            line = {"time": round(time.time(), 2), "stage": stage, "done": done, "total": total}
            announce(self.path / PROGRESS)
            with (self.path / PROGRESS).open("a") as log:
                log.write(json.dumps(line) + "\n")

    def discard(self, name: str) -> None:
        """Removes a file that this run made, or those that it made in a folder of that name."""
        self._files.remove(each for each in self._files.names if each == name or each.startswith(f"{name}/"))

    def _begin(self) -> None:
        if self._replaces():  # asked again, for only now can nobody else change the answer
            self._files.remove(self._files.names - {CONFIG})
            self._files.clear()
        on_write.append(self._claim)
        write_json(self.path / CONFIG, {**self.identity, "versions": versions()})

    def _close(self) -> None:
        if isinstance(self._show, _Bars):
            self._show.bars.stop()
        if self._claim in on_write:
            on_write.remove(self._claim)
        self._files.close()

    def _undo(self) -> None:
        """Removes what a run has left that ended before it saved anything."""
        self._files.remove(self._files.names)
        (self.path / FILES).unlink()
        for folder in self._new:
            if not any(folder.iterdir()):
                folder.rmdir()

    def _replaces(self) -> bool:
        """Whether another run is replaced; raises if that is not allowed, or where files are somebody else's."""
        found = _identity(self.path)
        if found is None and (self.path / CONFIG).exists():
            raise InputError(
                f"the folder {str(self.path)!r} holds a config.json of something else. Choose another path."
            )
        begun = b'"config.json"'.startswith(self._files.torn) and self._files.names <= {CONFIG}
        if found is None and (self._files.target or not begun):
            raise InputError(
                f"the folder {str(self.path)!r} holds a files.jsonl of something else. Choose another path."
            )
        other = found is not None and found != self.identity
        if found is not None and other and self._saved() and not self.overwrite:
            raise InputError(
                f"the folder {str(self.path)!r} holds the results of `mocoda {found['command']}`"
                f"{self._difference(found)}. Choose another path, or pass --overwrite to replace them."
            )
        for name in (PROGRESS, *self.outputs):
            self._check_own(self.path / name, name)
        if self.target is not None:
            self._check_target(self.target)
        return other

    def _difference(self, found: Mapping[str, Any]) -> str:
        if found["command"] != self.identity["command"]:
            return ""
        return f" with other settings: {differing_keys(found['settings'], self.identity['settings'])}"

    def _saved(self) -> bool:
        """Whether the run made anything that would be missed."""
        names = (name for name in self._files.names if not name.startswith(LOGS))
        target = self._files.target.get("target")
        return any((self.path / name).is_file() for name in (*names, *([] if target is None else [target])))

    def _resumable(self) -> bool:
        return any(name.endswith(STATES) and (self.path / name).is_file() for name in self._files.names)

    def _claim(self, path: Path) -> None:
        """Lists a path that is about to be written; refuses one that is somebody else's."""
        if self.target is not None and path.resolve() == self.target.resolve():
            self._check_target(path)
            self._files.add_target(path, finished=False)
            return
        try:
            name = (path.parent.resolve() / path.name).relative_to(self.path.resolve()).as_posix()
        except ValueError:  # it lies elsewhere
            return
        self._check_own(path, name)
        if name not in self._files.names:
            self._files.add(name)

    def _check_target(self, path: Path) -> None:
        if path.exists() and not self.overwrite and not self._files.made(path):
            raise InputError(f"there is a file {str(path)!r} already. Write to another one, or pass --overwrite.")

    def _check_own(self, path: Path, name: str) -> None:
        if name not in (CONFIG, *self._files.names) and os.path.lexists(path):
            raise InputError(f"{str(path)!r} was not made by this run. Move it away, or choose another folder.")


def _identity(folder: Path) -> dict[str, Any] | None:
    """The command and the settings in a folder's config.json; None where it has none of ours."""
    try:
        found = json.loads((folder / CONFIG).read_text("utf-8"))
        return {"command": str(found["command"]), "settings": dict(found["settings"])}
    except PermissionError as error:
        raise InputError(f"cannot read {str(folder / CONFIG)!r}: {error.strerror}.") from error
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identity_of(folder: Path) -> dict[str, Any]:
    found = _identity(folder)
    if found is None:
        raise InputError(f"the folder {str(folder)!r} does not say how it was made: it has no config.json of mocoda's.")
    return found


class _Speed(rich.progress.ProgressColumn):
    """Steps a second."""

    def render(self, task: rich.progress.Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed and task.speed >= 1 else "", "progress.data.speed")


class _Bars:
    """A bar for every stage, on a terminal."""

    def __init__(self) -> None:
        self.bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:>24}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            _Speed(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            console=rich.console.Console(stderr=True),
        )
        self.stages: dict[str, rich.progress.TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self.stages:
            self.bars.start()
            self.stages[stage] = self.bars.add_task(stage, total=total, completed=done)  # what is done took no time
        self.bars.update(self.stages[stage], completed=done, total=total)
