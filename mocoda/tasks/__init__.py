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


def _cube_single(official: int | None = None) -> Task:
    """OGBench's robot arm and one cube."""
    from mocoda.tasks.cubes import Cubes

    return Cubes(1, official)


def _cube_double(official: int | None = None) -> Task:
    """OGBench's robot arm and two cubes."""
    from mocoda.tasks.cubes import Cubes

    return Cubes(2, official)


def _cube_triple(official: int | None = None) -> Task:
    """OGBench's robot arm and three cubes."""
    from mocoda.tasks.cubes import Cubes

    return Cubes(3, official)


TASKS: Registry[Callable[..., Task]] = Registry("task")
TASKS.add(Navigation, "navigation")
TASKS.add(_hooksweep2, "hooksweep2")
TASKS.add(Objects, "objects")
TASKS.add(_cube_single, "cube-single")
TASKS.add(_cube_double, "cube-double")
TASKS.add(_cube_triple, "cube-triple")


def make_task(name: str, **options: Any) -> Task:
    """Makes the task called `name` with these options.

    "objects:6" is the task "objects" with six objects, and "cube-double:4" the fourth official task of "cube-double".
    """
    kind, colon, number = name.partition(":")
    if colon and kind in TASKS:
        option = "official" if kind.startswith("cube-") else "objects"
        if not number.isdecimal() or option in options:
            what = "number of an official task" if option == "official" else "number of objects"
            raise InputError(
                f"the {what} follows a task's name and a colon, as in "
                f"{'cube-double:4' if option == 'official' else 'objects:4'}, got {name!r}."
            )
        options[option] = int(number)
    task: Task = TASKS.make(kind, **options)
    return task
