"""Worlds to try things in: each an environment with its graph, its recorded data and its rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mocoda.engine.errors import InputError
from mocoda.engine.registry import Registry
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects
from mocoda.tasks.task import SimulatedTask, Task, is_simulated

__all__ = ["TASKS", "SimulatedTask", "Task", "is_simulated", "make_task"]


def _hooksweep2() -> Task:
    """A Fetch robot with a hook sweeps two boxes to their goals."""
    from mocoda.tasks.hooksweep import HookSweep2  # imports mujoco

    return HookSweep2()


TASKS: Registry[Callable[..., Task]] = Registry("task")
TASKS.add(Navigation, "navigation")
TASKS.add(_hooksweep2, "hooksweep2")
TASKS.add(Objects, "objects")


def make_task(name: str, **options: Any) -> Task:
    """Makes the task called `name` with these options; "objects:6" is the task "objects" with six objects."""
    kind, colon, count = name.partition(":")
    if colon and kind in TASKS:
        if not count.isdecimal() or "objects" in options:
            raise InputError(f"the number of objects follows a task's name and a colon, as in objects:4, got {name!r}.")
        options["objects"] = int(count)
    task: Task = TASKS.make(kind, **options)
    return task
