"""values -> whole files: what is written appears complete or not at all, and bad input is refused in full sentences."""

from __future__ import annotations

import difflib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mocoda


class InputError(ValueError):
    """Something handed to mocoda cannot be used; the message says what, what was expected and the way out."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist: it lists the ones that do, and the nearest."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"there is no {kind} {name!r}; there are: {', '.join(names)}.{hint}")


def differing_keys(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The keys in which two settings differ, for a message."""
    return ", ".join(sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key)))


def check_writable(path: str | Path) -> None:
    """Raises unless a file can be written there; for long work, before it starts."""
    _begun(Path(path)).unlink()


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name `path` only if the block ends well."""
    part = _begun(Path(path))
    mode = part.stat().st_mode
    try:
        yield part
        part.chmod(mode)  # some writers make their files private
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _begun(target: Path) -> Path:
    """An empty file beside `target`, which is to take its place."""
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        part.touch()
    except OSError as error:
        raise InputError(
            f"cannot write {str(target)!r}: {error.strerror}. Give a path in a folder that can be written."
        ) from error
    return part


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version(), "mocoda": mocoda.__version__}
    for package in ("torch", "numpy", "h5py", "gymnasium", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
