"""A run folder: how a command was called, how far it has come, and which files in the folder are its own.

config.json      the command, its settings, the versions of packages, and the names of the files that the run may write
progress.jsonl   a line per stage and second
.mocoda.lock     there, and locked, while a process writes in the folder
"""

from __future__ import annotations

import fcntl
import glob
import io
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from mocoda.engine.errors import InputError, differing_keys
from mocoda.engine.files import remove_leftovers, versions, write_json
from mocoda.engine.progress import Bars, PlainProgress

CONFIG, PROGRESS, LOCK = "config.json", "progress.jsonl", ".mocoda.lock"
LOGS = (PROGRESS, "metrics.jsonl", "metrics.csv", "tensorboard/")  # nothing that a run could continue from
STATES = (".safetensors", ".hdf5", ".npz")  # files that a run can continue from end like this


class RunFolder:
    """The folder of one command: a context that locks it, knows which files in it the run writes, and shows progress.

    path       the folder; the same command with the same settings continues what it left there
    command    the verb, such as "train"
    settings   all that the results depend on, as JSON values
    outputs    names of all files that the command may write in the folder; `*` stands for any characters but `/`. It is
               refused where there are such files that this run did not make
    overwrite  replace a run of another command or of other settings, which is refused otherwise. That run's outputs are
               removed, and nothing else
    target     a file outside the folder that the command will write. One that is there already is refused unless this
               run made it, or with `overwrite`
    wait       while another process writes in the folder, which is an error otherwise
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
        self.outputs = (PROGRESS, *outputs)
        self.overwrite = overwrite
        self.target = None if target is None else Path(target)
        self.wait = wait
        self._files: set[str] = set()  # names of files in the folder that are the run's, as in `outputs`
        self._made: dict[str, Any] = {}  # the file outside that is the run's: its path and, if finished, size and time
        self._made_before: dict[str, Any] = {}
        self._lock: io.FileIO | None = None
        self._show: Bars | PlainProgress = Bars() if sys.stderr.isatty() else PlainProgress()
        self._logged = 0.0
        self._new: list[Path] = []

    @classmethod
    def reopen(cls, path: str | Path, outputs: Sequence[str] = ()) -> Self:
        """Opens a folder for the run that made it, to write more files there."""
        found = _config_of(Path(path))
        return cls(path, found["command"], found["settings"], outputs)

    def __enter__(self) -> Self:
        try:
            self._new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self._check()
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
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
            if self.target is not None and self.target.exists():
                found = self._described(finished=True)
                if kind is None or found == self._made_before:
                    self._save(found)
            if kind is not None and issubclass(kind, InputError) and not self._saved():
                self._undo()
        finally:
            self._close()
        resumable = any(path.suffix in STATES for path in self._existing(self._files))
        if kind is not None and issubclass(kind, KeyboardInterrupt) and resumable:
            sys.stderr.write("interrupted: the same command continues from its last checkpoint.\n")

    def progress(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is and, once a second and at its end, writes a line."""
        self._show(stage, done, total)
        if done == total or time.monotonic() - self._logged >= 1:
            self._logged = time.monotonic()
            line = {"time": round(time.time(), 2), "stage": stage, "done": done, "total": total}
            with (self.path / PROGRESS).open("a") as log:
                log.write(json.dumps(line) + "\n")

    def discard(self, name: str) -> None:
        """Removes a file that this run made, or those that it made in a folder of that name."""
        self._remove(each for each in self._files if each == name or each.startswith(f"{name}/"))

    def _begin(self) -> None:
        if self._check():  # asked again, for only now can nobody else change the answer
            self._remove(self._files)
            self._files, self._made = set(), {}
            self._check_outputs()
        self._files |= set(self.outputs)
        self._made_before = self._made
        mine = self.target is not None and (not self.target.exists() or self._made_target())
        self._save(self._described(finished=False) if mine else self._made)

    def _save(self, made: dict[str, Any]) -> None:
        """Writes config.json: before a file of the run appears, it is listed there."""
        self._made = made
        own = {"files": sorted(self._files), "target": made}
        write_json(self.path / CONFIG, {**self.identity, "versions": versions(), **own})

    def _take_lock(self) -> None:
        """Locks the folder until `_close`, or until this process ends, however it does."""
        while self._lock is None:
            file = io.FileIO(self.path / LOCK, "a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX if self.wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise InputError(
                    f"another process is writing in the folder {str(self.path)!r}. Wait until it ends, or choose "
                    "another path."
                ) from None
            except OSError:  # a file system without locks
                pass
            if os.fstat(file.fileno()).st_nlink:
                self._lock = file
            else:  # removed by the process that held the lock
                file.close()

    def _close(self) -> None:
        self._show.close()
        if self._lock is not None:
            (self.path / LOCK).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def _undo(self) -> None:
        """Removes what is left of a run that ended before it saved anything."""
        self._close()
        self._remove([*self._files, CONFIG])
        for folder in self._new:
            if not any(folder.iterdir()):
                folder.rmdir()

    def _check(self) -> bool:
        """Whether another run is replaced; raises if that is not allowed, or where files are somebody else's."""
        found = _config(self.path)
        if found is None and (self.path / CONFIG).exists():
            raise InputError(f"the folder {str(self.path)!r} holds a {CONFIG} of something else. Choose another path.")
        self._files, self._made = (set(), {}) if found is None else (set(found["files"]), found["target"])
        other = found is not None and any(found[key] != value for key, value in self.identity.items())
        if found is not None and other and self._saved() and not self.overwrite:
            differing = ""
            if found["command"] == self.identity["command"]:
                differing = f" with other settings: {differing_keys(found['settings'], self.identity['settings'])}"
            raise InputError(
                f"the folder {str(self.path)!r} holds the results of `mocoda {found['command']}`{differing}. Choose "
                "another path, or pass --overwrite to replace them."
            )
        self._check_outputs()
        if self.target is not None and self.target.exists() and not self.overwrite and not self._made_target():
            raise InputError(
                f"there is a file {str(self.target)!r} already. Write to another one, or pass --overwrite."
            )
        return other

    def _check_outputs(self) -> None:
        for path in sorted(self._existing(self.outputs) - self._existing(self._files)):
            raise InputError(f"{str(path)!r} was not made by this run. Move it away, or choose another folder.")

    def _described(self, finished: bool) -> dict[str, Any]:
        """The file outside the folder: its path and, if it is finished, its size and time."""
        assert self.target is not None
        name = os.path.relpath(self.target.resolve(), self.path.resolve())
        found = self.target.stat() if finished else None
        return {"path": name} | ({} if found is None else {"bytes": found.st_size, "time": found.st_mtime_ns})

    def _made_target(self) -> bool:
        """Whether this run made its file outside the folder, and nobody has changed it since."""
        return self._made in [self._described(finished) for finished in (False, True)]

    def _saved(self) -> bool:
        """Whether the run made anything that would be missed."""
        files = self._existing(name for name in self._files if not name.startswith(LOGS))
        return bool(files) or ("path" in self._made and (self.path / self._made["path"]).is_file())

    def _existing(self, names: Iterable[str]) -> set[Path]:
        """The files that are there of these names."""
        found = (
            self.path.glob(_pattern(name)) if "*" in name else [self.path / name]
            for name in names
            if "*" in name or os.path.lexists(self.path / name)
        )
        return set().union(*found)

    def _remove(self, names: Iterable[str]) -> None:
        """Removes files of these names, and the folders in which they were if these are empty then.

        Follows no links out of the folder.
        """
        root, folders = self.path.resolve(), set()
        for name in list(names):
            above, _, last = _pattern(name).rpartition("/")
            for folder in self.path.glob(above) if above else [self.path]:
                if not folder.is_dir() or not folder.resolve().is_relative_to(root):
                    continue
                remove_leftovers(folder, last)
                for path in folder.glob(last):
                    if stat.S_ISREG(path.lstat().st_mode):
                        path.unlink()
                folders |= {folder, *folder.parents}
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            if root in folder.resolve().parents and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()


def _pattern(name: str) -> str:
    """The name as a pattern of pathlib's, in which only `*` has a meaning."""
    return re.sub(r"\*+", "*", glob.escape(name).replace("[*]", "*"))


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The settings of the command that wrote a folder."""
    settings: dict[str, Any] = _config_of(Path(folder))["settings"]
    return settings


def _config_of(folder: Path) -> dict[str, Any]:
    found = _config(folder)
    if found is None:
        raise InputError(f"the folder {str(folder)!r} does not say how it was made: it has no config.json of mocoda's.")
    return found


def _config(folder: Path) -> dict[str, Any] | None:
    """A folder's config.json; None where it has none of ours."""
    try:
        found = {"files": [], "target": {}, **json.loads((folder / CONFIG).read_text("utf-8"))}
        kinds = {"command": str, "settings": dict, "files": list, "target": dict}
        inside = all(_is_inside(name) for name in found["files"]) and type(found["target"].get("path", "")) is str
        return found if inside and all(isinstance(found[key], kind) for key, kind in kinds.items()) else None
    except PermissionError as error:
        raise InputError(f"cannot read {str(folder / CONFIG)!r}: {error.strerror}.") from error
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return None


def _is_inside(name: object) -> bool:
    """Whether it can be the name of a file in the folder."""
    outside = not isinstance(name, str) or name.startswith("/") or "\0" in name
    return not outside and ".." not in PurePosixPath(str(name)).parts
