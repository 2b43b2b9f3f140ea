"""Worlds to try things in: each an environment with its graph, its recorded data and its rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mocoda.engine.errors import InputError
from mocoda.engine.registry import Registry
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects
from mocoda.tasks.random_dag import RandomDag
from mocoda.tasks.task import SimulatedTask, Task, is_simulated

__all__ = ["TASKS", "SimulatedTask", "Task", "is_simulated", "make_task"]


def _hooksweep2() -> Task:
    """A Fetch robot with a hook sweeps two boxes to their goals."""
    from mocoda.tasks.hooksweep import HookSweep2  # imports mujoco

    return HookSweep2()


def _cubes(cubes: int, number: str, places: bool) -> Callable[..., Task]:
    def make(official: int | None = None) -> Task:
        from mocoda.tasks.cubes import CubePlaces, Cubes

        return (CubePlaces if places else Cubes)(cubes, official)

    make.__doc__ = f"OGBench's robot arm and {number}" + ("; goals are where they belong." if places else ".")
    return make


TASKS: Registry[Callable[..., Task]] = Registry("task")
TASKS.add(Navigation, "navigation")
TASKS.add(_hooksweep2, "hooksweep2")
TASKS.add(Objects, "objects")
_CUBES = {"cube-single": (1, "one cube"), "cube-double": (2, "two cubes"), "cube-triple": (3, "three cubes")}
for _name, _number in _CUBES.items():
    TASKS.add(_cubes(*_number, places=False), _name)
for _name, _number in _CUBES.items():
    TASKS.add(_cubes(*_number, places=True), f"{_name}-places")
TASKS.add(RandomDag, "dag")


# What the number after a task's name and a colon is: the option, in words, and an example.
_NUMBERS = dict.fromkeys(
    (*_CUBES, *(f"{name}-places" for name in _CUBES)), ("official", "number of an official task", "cube-double:4")
) | {"dag": ("factors", "number of factors", "dag:30")}


def make_task(name: str, **options: Any) -> Task:
    """Makes the task called `name` with these options.

    "objects:6" is the task "objects" with six objects, "dag:30" is "dag" with 30 factors, and "cube-double:4" the
    fourth official task of "cube-double".
    """
    kind, colon, number = name.partition(":")
    if colon and kind in TASKS:
        option, what, example = _NUMBERS.get(kind, ("objects", "number of objects", "objects:4"))
        if not number.isdecimal() or option in options:
            raise InputError(f"the {what} follows a task's name and a colon, as in {example}, got {name!r}.")
        options[option] = int(number)
    task: Task = TASKS.make(kind, **options)
    return task
