"""Errors whose messages tell users what is wrong with their input, and what to do."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class InputError(ValueError):
    """Input cannot be used; the message says what was expected, what was given and what to do."""


def contract(of: str) -> Callable[[bool, str], None]:
    """A function that raises an error unless a promise, whose breach its second argument describes, is kept."""

    def promise(kept: bool, broken: str) -> None:
        if not kept:
            raise InputError(f"{of} contract: {broken}")

    return promise


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist: it lists those that do, and suggests the nearest."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"there is no {kind} {name!r}; there are: {', '.join(names)}.{hint}")


def check_names(kind: str, names: Iterable[object], known: Iterable[str]) -> None:
    """Raises the error for the first name that is not among those known, if there is one."""
    choices = tuple(known)
    for name in names:
        if name not in choices:
            raise unknown_name(kind, name, choices)


def check_counts(**counts: int) -> None:
    """Raises unless all of these numbers are at least 1."""
    for name, number in counts.items():
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")


def differing_keys(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The keys in which two settings differ, as part of a message."""
    return ", ".join(sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key)))


def file_error(error: OSError) -> str:
    """A sentence for an error of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Make room and run the same command again: it goes on from what is finished."
    if error.filename is None:
        return f"a file cannot be read or written: {error.strerror or error}."
    return f"cannot read or write {str(error.filename)!r}: {error.strerror}."
