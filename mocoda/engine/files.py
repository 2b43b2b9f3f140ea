"""Files appear complete or not at all, and never in the place of a file that is somebody else's."""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mocoda.engine.errors import InputError

VERSION = "0.1.0"
SUFFIX = 16  # bytes that `whole_file` and run folders add to a name, at most


def check_writable(path: str | Path) -> None:
    """Raises unless a file can be written there; makes nothing. Call it before long work."""
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
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"no permission to write in {str(nearest)!r}"
    longest = os.pathconf(nearest, "PC_NAME_MAX") - SUFFIX
    if len(os.fsencode(target.name)) > longest:
        return f"its name has more than {longest} bytes"
    return None


def check_target(path: str | Path, *, inputs: Iterable[str | Path] = (), overwrite: bool = False) -> None:
    """`check_writable`, and refuses a file that is there already, unless `overwrite`, and one of the inputs always."""
    check_writable(path)
    target = Path(path)
    if not target.exists():
        return
    for given in map(Path, inputs):
        if given.exists() and target.samefile(given):
            raise InputError(f"{str(path)!r} is the input. Write to another file.")
    if not overwrite:
        raise InputError(f"there is a file {str(path)!r} already. Write to another one, or pass --overwrite.")


# Run folders add a function here while they are open: it is called with every path that is about to be written.
on_write: list[Callable[[Path], None]] = []


def announce(path: str | Path) -> None:
    """Tells the open run folders that a file is about to be written; for those who write without `whole_file`."""
    for listener in on_write:
        listener(Path(path))


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name `path` only if the block ends well."""
    check_writable(path)
    announce(path)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    _unfinished.add(part)
    try:  # a signal may come at any moment
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)  # some writers make their files private
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
        _unfinished.discard(part)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """A new folder to write to; it takes the name `path`, where nothing may be yet, only if the block ends well."""
    target = Path(path)
    if target.exists():
        raise InputError(f"cannot write {str(target)!r}: it exists. Name a new folder.")
    check_writable(target)
    announce(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    _unfinished.add(part)
    try:
        part.mkdir()
        yield part
        part.rename(target)
    finally:
        _remove(part)
        _unfinished.discard(part)


_unfinished: set[Path] = set()


def discard_unfinished() -> None:
    """Removes what is being written, for a process that must end at once."""
    for part in _unfinished:
        _remove(part)


def remove_leftovers(target: Path) -> None:
    """Removes the temporary files of processes that were killed while they wrote `target`."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        if not _alive(left.name.split(".")[-2]):
            _remove(left)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, OverflowError):  # of another user, or no number of a process
        return True
    return True


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version(), "mocoda": VERSION}
    for package in ("torch", "numpy", "h5py", "gymnasium", "mujoco", "gymnasium-robotics", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
