"""The list of the files that a run has made in its folder, and the lock on the folder."""

from __future__ import annotations

import fcntl
import io
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from mocoda.engine.errors import InputError
from mocoda.engine.files import remove_leftovers

FILES = "files.jsonl"


class FileList:
    """files.jsonl in a run folder: a line for each file, written before the file appears, and never rewritten.

    names   the files, relative to the folder; the folders among them end in "/"
    target  the file outside the folder that the run made: its path, and what it was like when it was finished
    torn    the beginning of a line, of a process that was killed
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()
        self.target: dict[str, Any] = {}
        self._file: io.FileIO | None = None
        self.torn = b""

    def read(self) -> None:
        """Reads the list; there need be none."""
        path = self.folder / FILES
        content = path.read_bytes() if path.exists() else b""
        *lines, self.torn = content.split(b"\n")
        try:
            found = [json.loads(line) for line in lines if line]
        except ValueError:
            found = [None]
        if not all(map(_sound, found)):
            raise InputError(f"{str(path)!r} was not written by mocoda, or damaged since. Choose another folder.")
        self.names = {line for line in found if isinstance(line, str)}
        self.target = next((line for line in reversed(found) if isinstance(line, dict)), {})

    def lock(self, wait: bool = False) -> None:
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
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, name: str) -> None:
        """Lists a file that is about to be written, and the folders above it that are not there yet."""
        new = [name, *(f"{folder}/" for folder in Path(name).parents if not (self.folder / folder).exists())]
        self._append("".join(json.dumps(each) + "\n" for each in new).encode())
        self.names.update(new)

    def add_target(self, path: Path, finished: bool) -> None:
        """Lists the file outside the folder: before it is written and, with what it is like, when it is finished."""
        self.target = self._described(path, finished)
        self._append((json.dumps(self.target) + "\n").encode())

    def made(self, path: Path) -> bool:
        """Whether the run made this file outside the folder, and nobody has changed it since."""
        return self.target in (self._described(path, finished=False), self._described(path, finished=True))

    def _described(self, path: Path, finished: bool) -> dict[str, Any]:
        name = os.path.relpath(path.resolve(), self.folder.resolve())
        found = path.stat() if finished else None
        return (
            {"target": name} if found is None else {"target": name, "bytes": found.st_size, "time": found.st_mtime_ns}
        )

    def remove(self, names: Iterable[str]) -> None:
        """Removes listed files, and listed folders that are empty then; follows no links out of the folder."""
        root = self.folder.resolve()
        for name in sorted(names, key=lambda name: (name.endswith("/"), -name.count("/"))):
            path = self.folder / name
            if not path.parent.resolve().is_relative_to(root) or not os.path.lexists(path):
                continue
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and not name.endswith("/"):
                remove_leftovers(path)
                path.unlink()
            elif stat.S_ISDIR(mode) and name.endswith("/") and not any(path.iterdir()):
                path.rmdir()

    def clear(self) -> None:
        """Empties the list."""
        assert self._file is not None
        self._file.truncate(0)
        self.names, self.target = set(), {}

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)  # a full disk tears no line
            raise


def _sound(line: object) -> bool:
    """Whether a line can be one of ours: a path inside the folder, or a target."""
    if isinstance(line, str):
        return not (line.startswith("/") or ".." in PurePosixPath(line).parts or "\0" in line)
    return isinstance(line, dict) and isinstance(line.get("target"), str)
