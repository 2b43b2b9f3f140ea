"""Error messages and where they are approved: one file for all, which `make approve` rewrites.

A test that provokes an error says so with `refused`; what the message says is compared with tests/messages.json, under
the name of the test. Better words are then one command and a diff to read, and no edit of tests.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mocoda.engine.errors import InputError

FILE = Path(__file__).parents[1] / "messages.json"
TEMPORARY = re.compile(r"[^\s'\"]*/pytest-of-[^/\s]+/pytest-\d+/(?:popen-gw\d+/)?[^/\s'\"]+")
_met: defaultdict[str, list[str]] = defaultdict(list)


def approving() -> bool:
    """Whether messages are collected rather than compared."""
    return os.environ.get("APPROVE") == "1"


def assert_approved(message: str) -> None:
    """Compares a message with the approved one of this place in the running test."""
    message = TEMPORARY.sub("TMP", message)
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].removeprefix("tests/")
    met = _met[test]
    met.append(message)
    if not approving():
        known = json.loads(FILE.read_text("utf-8")).get(test, [])
        assert len(known) >= len(met), f"this message is not approved yet (`make approve`): {message}"
        assert message == known[len(met) - 1], "`make approve` takes the new message over"


@contextmanager
def refused(kind: type[Exception] = InputError) -> Iterator[None]:
    """Expects an error with the approved message."""
    with pytest.raises(kind) as error:
        yield
    assert_approved(str(error.value))


def forget(test: str) -> None:
    """Forgets what a test met before, for tests that run again."""
    _met.pop(test.removeprefix("tests/"), None)


def take_over() -> None:
    """Writes the collected messages into the file, in the order of their tests."""
    with FILE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = json.loads(file.read() or "{}") | _met
        file.seek(0)
        file.truncate()
        json.dump(dict(sorted(known.items())), file, indent=1, ensure_ascii=False)
        file.write("\n")
