"""What every test runs under."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator

import pytest
import torch
from approved import approving, forget, take_over

from mocoda.dynamics import DYNAMICS

if ctypes.util.find_library("EGL"):
    os.environ.setdefault("MUJOCO_GL", "egl")  # draws without a screen; mujoco asks once, when it is imported


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine make small work slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family of dynamics models that a test adds is gone after it."""
    monkeypatch.setattr(DYNAMICS, "data", dict(DYNAMICS))


def pytest_runtest_setup(item: pytest.Item) -> None:
    forget(item.nodeid)


def pytest_sessionfinish() -> None:
    if approving():
        take_over()
