"""Errors whose messages tell users what is wrong with their input, and what to do."""

from __future__ import annotations

import difflib
import errno
import re
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


def unknown_name(kind: str, name: object, known: Iterable[str], of: str = "") -> InputError:
    """The error for a name that does not exist, or that what is called `of` does not have: it lists others."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    no, others = (f"{of} has no", "it has") if of else ("there is no", "there are")
    return InputError(f"{no} {kind} {name!r}; {others}: {', '.join(names)}.{hint}")


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


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether Python, numpy, torch or the system's loader of libraries found no more memory."""
    if isinstance(error, InputError):  # which may take a library that does not fit into memory for one that is missing
        return isinstance(error.__cause__, ImportError) and ran_out_of_memory(error.__cause__)
    said = r"out of memory|allocate memory|bad_alloc|failed to map segment|can't start new thread"
    return isinstance(error, MemoryError) or re.search(said, str(error)) is not None


def printable(text: object, longest: int = 200) -> str:
    """A name or text that is safe to print: control characters as their codes, and at most `longest` characters."""
    text = str(text)
    shown = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:longest])
    return "".join(shown) + ("…" if len(text) > longest else "")


def printable_lines(text: str) -> str:
    """Lines that are safe to print: names in them cannot give the terminal orders."""
    return "\n".join(printable(line, len(line)) for line in text.split("\n"))
