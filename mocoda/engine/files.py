"""Writes files whole or not at all, and never over a file that the caller did not mean."""

from __future__ import annotations

import fcntl
import glob
import io
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mocoda.engine.errors import InputError

VERSION = "0.1.0"
SUFFIX = 32  # bytes that `whole_file` and run folders add to a name, at most
SECONDS = 2.0  # after which what a living process writes is locked


def check_writable(path: str | Path) -> None:
    """Raises unless a file can be written there, without writing anything. Call it before long work."""
    target = Path(path)
    try:
        reason = _why_not_writable(target)
    except OSError as error:  # a folder's name is too long, or links go round in circles
        reason = str(error.strerror)
    if reason is not None:
        raise InputError(f"cannot write {str(target)!r}: {reason}. Give a path in a folder that can be written.")


def _why_not_writable(target: Path) -> str | None:
    nearest = next((parent for parent in target.parents if parent.exists()), Path())
    if target.is_dir():
        return "it is a folder"
    if target.exists() and not target.is_file():
        return "it is not a regular file"
    if not nearest.is_dir():
        return f"{str(nearest)!r} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"no permission to write in {str(nearest)!r}"
    longest = os.pathconf(nearest, "PC_NAME_MAX") - SUFFIX
    if len(os.fsencode(target.name)) > longest:
        return f"its name has more than {longest} bytes"
    return None


def check_new_folder(path: str | Path) -> None:
    """Raises unless a folder can be made there, and where something is already. Call it before long work."""
    if os.path.exists(path):  # noqa: PTH110, unlike Path.exists it never raises
        raise InputError(f"cannot write {str(path)!r}: it exists. Name a new folder.")
    check_writable(path)


def check_target(path: str | Path, *, inputs: Iterable[str | Path] = (), overwrite: bool = False) -> None:
    """Like `check_writable`, but also refuses an existing file, unless `overwrite`, and always one of the inputs."""
    check_writable(path)
    target = Path(path)
    if not target.exists():
        return
    for given in map(Path, inputs):
        if given.exists() and target.samefile(given):
            raise InputError(f"{str(path)!r} is the input. Write to another file.")
    if not overwrite:
        raise InputError(f"there is a file {str(path)!r} already. Write to another one, or pass --overwrite.")


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name `path` only if the block ends well."""
    check_writable(path)
    with _part_of(Path(path)) as part:
        part.touch(exist_ok=False)  # a new file, and no link to another one
        with _locked(part):
            mode = part.stat().st_mode
            yield part
            part.chmod(mode)  # some writers make their files private
            with part.open("rb") as handle:
                os.fsync(handle.fileno())
            part.replace(path)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """A new folder to write to; it takes the name `path`, where nothing may be yet, only if the block ends well."""
    check_new_folder(path)
    with _part_of(Path(path)) as part:
        part.mkdir()
        with _locked(part):
            yield part
            part.rename(path)


_unfinished: set[Path] = set()


@contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """A free temporary name beside `target`, in a folder that exists; what has the name at the end is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent, glob.escape(target.name))
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    _unfinished.add(part)
    try:  # a signal may come at any moment
        yield part
    finally:
        _remove(part)
        _unfinished.discard(part)


def discard_unfinished() -> None:
    """Removes what is being written, for a process that must end at once."""
    for part in _unfinished:
        _remove(part)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Removes temporary files of processes that were killed while they wrote files of these names into the folder.

    A living process, on any machine, has locked what it writes, if not in the very first moment.
    """
    for left in folder.glob(f".{pattern}.*.part"):
        with suppress(OSError):  # it is locked, or another process removes it too
            if re.fullmatch(r".*\.[0-9a-f]{16}\.part", left.name) and time.time() - left.stat().st_mtime > SECONDS:
                with _locked(left, needed=True):
                    _remove(left)


@contextmanager
def _locked(path: Path, needed: bool = False) -> Iterator[None]:
    """Locks a file or a folder until the block, or this process, ends.

    needed  raise where another process has locked it, or the file system has no locks
    """
    descriptor = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
    try:
        with nullcontext() if needed else suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version(), "mocoda": VERSION}
    for package in ("torch", "numpy", "h5py", "gymnasium", "mujoco", "gymnasium-robotics", "ogbench", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def hdf5_disk(path: Path, mode: str = "w+") -> Iterator[Disk]:
    """A file for `h5py.File` to write to; a full disk is an ordinary OSError, raised when the block ends."""
    with Disk(path, mode) as disk:
        try:
            yield disk
        finally:
            disk.check()


class Disk(io.FileIO):
    """A file that keeps its first error to itself and drops what is written after it.

    The HDF5 library must not see the error: it cannot close a file that it failed to write, and ends the process with a
    segmentation fault when it tries again.
    """

    error: OSError | None = None

    def check(self) -> None:
        """Raises the error."""
        if self.error is not None:
            raise self.error

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left and self.error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.error is None else 0
        except OSError as error:
            self.error = error
            return 0
