"""A run folder: how a command was called, how far it has come, and which files in the folder are its own.

config.json      the command, its settings and the versions of packages
files.jsonl      the names of the files that the run may write; locked while the run is open
progress.jsonl   a line per stage and second
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

CONFIG, FILES, PROGRESS = "config.json", "files.jsonl", "progress.jsonl"
LOGS = (CONFIG, PROGRESS, "metrics.jsonl", "metrics.csv", "tensorboard/")  # nothing that a run could continue from
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
        self._list = _FileList(self.path)
        self._show: Bars | PlainProgress = Bars() if sys.stderr.isatty() else PlainProgress()
        self._logged = 0.0
        self._new: list[Path] = []
        self._old_target: dict[str, Any] | None = None

    @classmethod
    def reopen(cls, path: str | Path, outputs: Sequence[str] = ()) -> Self:
        """Opens a folder for the run that made it, to write more files there."""
        found = _identity_of(Path(path))
        return cls(path, found["command"], found["settings"], outputs)

    def __enter__(self) -> Self:
        try:
            self._new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self._list.read()
            self._check()
            self.path.mkdir(parents=True, exist_ok=True)
            self._list.lock(self.wait)
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
                found = self._list.described(self.target, finished=True)
                if kind is None or found == self._old_target:
                    self._list.add(found)
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
            with (self.path / PROGRESS).open("a") as log:
                log.write(json.dumps(line) + "\n")

    def discard(self, name: str) -> None:
        """Removes a file that this run made, or those that it made in a folder of that name."""
        self._list.remove(each for each in self._list.names if each == name or each.startswith(f"{name}/"))

    def _begin(self) -> None:
        if self._check():  # asked again, for only now can nobody else change the answer
            self._list.remove(self._list.names - {CONFIG})
            self._list.clear()
            self._check_outputs()
        self._list.add(CONFIG)
        write_json(self.path / CONFIG, {**self.identity, "versions": versions()})
        self._list.add(*self.outputs)
        if self.target is not None and (not self.target.exists() or self._made_target()):
            self._old_target = self._list.target
            self._list.add(self._list.described(self.target, finished=False))

    def _close(self) -> None:
        self._show.close()
        self._list.close()

    def _undo(self) -> None:
        """Removes what is left of a run that ended before it saved anything."""
        self._list.remove(self._list.names)
        (self.path / FILES).unlink()
        for folder in self._new:
            if not any(folder.iterdir()):
                folder.rmdir()

    def _check(self) -> bool:
        """Whether another run is replaced; raises if that is not allowed, or where files are somebody else's."""
        found = _identity(self.path)
        begun = b'"config.json"'.startswith(self._list.torn) and self._list.names <= {CONFIG}
        for name, foreign in ((CONFIG, (self.path / CONFIG).exists()), (FILES, self._list.target or not begun)):
            if found is None and foreign:
                raise InputError(
                    f"the folder {str(self.path)!r} holds a {name} of something else. Choose another path."
                )
        other = found is not None and found != self.identity
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
        for path in sorted(self._list.existing(self.outputs) - self._list.existing(self._list.names)):
            raise InputError(f"{str(path)!r} was not made by this run. Move it away, or choose another folder.")

    def _made_target(self) -> bool:
        """Whether this run made its file outside the folder, and nobody has changed it since."""
        assert self.target is not None
        return self._list.target in [self._list.described(self.target, finished) for finished in (False, True)]

    def _saved(self) -> bool:
        """Whether the run made anything that would be missed."""
        target = self._list.target.get("target")
        names = {name for name in self._list.names if not name.startswith(LOGS)}
        return bool(self._list.existing(names)) or (target is not None and (self.path / target).is_file())

    def _resumable(self) -> bool:
        return any(path.suffix in STATES for path in self._list.existing(self._list.names))


class _FileList:
    """files.jsonl: a line for each name, written before such a file appears.

    names   of files in the folder, relative to it; with `*` for any characters but `/`
    target  the file outside the folder that the run makes: its path and, when it is finished, its size and time
    torn    the beginning of a line, of a process that was killed
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()
        self.target: dict[str, Any] = {}
        self.torn = b""
        self._file: io.FileIO | None = None

    def read(self) -> None:
        """Reads the list; there need be none."""
        path = self.folder / FILES
        *lines, self.torn = (path.read_bytes() if path.exists() else b"").split(b"\n")
        try:
            found = [json.loads(line) for line in lines if line]
        except ValueError:
            found = [None]
        if not all(map(_is_sound, found)):
            raise InputError(f"{str(path)!r} was not written by mocoda, or damaged since. Choose another folder.")
        self.names = {line for line in found if isinstance(line, str) and not line.endswith("/")}
        self.target = next((line for line in reversed(found) if isinstance(line, dict)), {})

    def lock(self, wait: bool) -> None:
        """Locks the folder until `close`, or until this process ends, however it does; then reads the list.

        wait  until another process that has locked it is done, which is an error otherwise
        """
        while self._file is None:
            file = io.FileIO(self.folder / FILES, "a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise InputError(
                    f"another process is writing in the folder {str(self.folder)!r}. Wait until it ends, or choose "
                    "another path."
                ) from None
            except OSError:  # a file system without locks
                pass
            if os.fstat(file.fileno()).st_nlink:
                self._file = file
            else:  # removed by the process that held the lock
                file.close()
        self.read()
        if self.torn:
            self._file.truncate(self._file.seek(0, os.SEEK_END) - len(self.torn))

    def close(self) -> None:
        """Unlocks the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, *entries: str | dict[str, Any]) -> None:
        """Adds names, or a description of the target, to the list."""
        assert self._file is not None
        new = [entry for entry in entries if isinstance(entry, dict) or entry not in self.names]
        lines, end = "".join(json.dumps(entry) + "\n" for entry in new).encode(), self._file.seek(0, os.SEEK_END)
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)  # a full disk tears no line
            raise
        self.names |= {entry for entry in new if isinstance(entry, str)}
        self.target = next((entry for entry in reversed(new) if isinstance(entry, dict)), self.target)

    def clear(self) -> None:
        """Empties the list."""
        assert self._file is not None
        self._file.truncate(0)
        self.names, self.target = set(), {}

    def described(self, target: Path, finished: bool) -> dict[str, Any]:
        """A description of the file outside the folder: its path and, if it is finished, its size and time."""
        name = os.path.relpath(target.resolve(), self.folder.resolve())
        found = target.stat() if finished else None
        return {"target": name} | ({} if found is None else {"bytes": found.st_size, "time": found.st_mtime_ns})

    def existing(self, names: Iterable[str]) -> set[Path]:
        """The files that are there of these names."""
        found = {self.folder / name for name in names if "*" not in name and os.path.lexists(self.folder / name)}
        return found.union(*(self.folder.glob(_pattern(name)) for name in names if "*" in name))

    def remove(self, names: Iterable[str]) -> None:
        """Removes files of these names, and the folders in which they were if these are empty then.

        Follows no links out of the folder.
        """
        root, folders = self.folder.resolve(), set()
        for name in list(names):
            above, _, last = _pattern(name).rpartition("/")
            for folder in self.folder.glob(above) if above else [self.folder]:
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


def _is_sound(line: object) -> bool:
    """Whether a line can be one of ours: a name inside the folder, or a target."""
    if isinstance(line, str):
        return not (line.startswith("/") or ".." in PurePosixPath(line).parts or "\0" in line)
    return isinstance(line, dict) and isinstance(line.get("target"), str)


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The settings of the command that wrote a folder."""
    settings: dict[str, Any] = _identity_of(Path(folder))["settings"]
    return settings


def _identity(folder: Path) -> dict[str, Any] | None:
    """The command and the settings in a folder's config.json; None where it has none of ours."""
    try:
        found = json.loads((folder / CONFIG).read_text("utf-8"))
        return {"command": str(found["command"]), "settings": dict(found["settings"])}
    except PermissionError as error:
        raise InputError(f"cannot read {str(folder / CONFIG)!r}: {error.strerror}.") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _identity_of(folder: Path) -> dict[str, Any]:
    found = _identity(folder)
    if found is None:
        raise InputError(f"the folder {str(folder)!r} does not say how it was made: it has no config.json of mocoda's.")
    return found
