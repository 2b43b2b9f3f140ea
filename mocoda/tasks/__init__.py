"""The tasks that come with mocoda: each has an environment, a graph, recorded data and rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mocoda.engine.errors import InputError
from mocoda.engine.registry import Registry, settings_of
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects
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


def make_task(name: str, **options: Any) -> Task:
    """Makes the task called `name` with these options.

    A number after a colon sets the task's option: "objects:6" has six objects, and "cube-double:4" is the fourth
    official task of "cube-double".
    """
    kind, colon, number = name.partition(":")
    if colon and kind in TASKS:
        known = settings_of(TASKS[kind])
        if not known:
            raise InputError(f"the task {kind!r} takes no number, got {name!r}.")
        option = known[0]
        if not number.isdecimal() or option in options:
            raise InputError(
                f"a whole number, which sets {option!r}, follows a task's name and a colon, as in {kind}:4, got "
                f"{name!r}{f' and {option}={options[option]!r}' if option in options else ''}."
            )
        options[option] = int(number)
    task: Task = TASKS.make(kind, **options)
    return task
