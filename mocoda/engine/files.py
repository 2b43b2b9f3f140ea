"""values -> whole files: what is written appears complete or not at all, and bad input is refused in full sentences."""

from __future__ import annotations

import glob
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mocoda.engine.errors import InputError

VERSION = "0.1.0"


def check_writable(path: str | Path) -> None:
    """Raises unless a file can be written there; makes nothing. For long work, before it starts."""
    target = Path(path)
    nearest = next((parent for parent in target.parents if parent.exists()), Path())
    if target.is_dir():
        reason = "it is a folder"
    elif target.exists() and not target.is_file():
        reason = "it is not a regular file"
    elif not nearest.is_dir():
        reason = f"{str(nearest)!r} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        reason = f"no permission to write in {str(nearest)!r}"
    else:
        return
    raise InputError(f"cannot write {str(target)!r}: {reason}. Give a path in a folder that can be written.")


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name `path` only if the block ends well."""
    check_writable(path)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):  # of a process that was killed
        if not _alive(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    part.touch()
    _unfinished.add(part)
    mode = part.stat().st_mode
    try:
        yield part
        part.chmod(mode)  # some writers make their files private
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
        _unfinished.discard(part)


_unfinished: set[Path] = set()


def discard_unfinished() -> None:
    """Removes what is being written, for a process that must end at once."""
    for part in _unfinished:
        part.unlink(missing_ok=True)


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
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
