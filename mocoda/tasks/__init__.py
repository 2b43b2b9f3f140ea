"""The tasks that come with mocoda: each has an environment, a graph, recorded data and rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.registry import Registry, settings_of
from mocoda.graph.columns import ColumnNames
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects
from mocoda.tasks.own import own_task
from mocoda.tasks.task import Environment, SimulatedTask, Task

__all__ = ["TASKS", "SimulatedTask", "Task", "make_task"]


def _hooksweep2() -> Task:
    """A Fetch robot with a hook sweeps two boxes to their goals."""
    from mocoda.tasks.hooksweep import HookSweep2  # imports mujoco

    return HookSweep2()


def _cubes(cubes: int, whole_states: bool) -> Callable[..., Task]:
    def make(official: int | None = None) -> Task:
        from mocoda.tasks.cubes import Cubes

        return Cubes(cubes, official, whole_states)

    number = ("one cube", "two cubes", "three cubes", "four cubes")[cubes - 1]
    goals = "whole states" if whole_states else "the places where they belong"
    make.__doc__ = f"OGBench's robot arm and {number}; goals are {goals}."
    return make


TASKS: Registry[Callable[..., Task]] = Registry("task")
TASKS.add(Navigation, "navigation")
TASKS.add(_hooksweep2, "hooksweep2")
TASKS.add(Objects, "objects")
for _goals in ("", "-states"):
    for _cube_count, _number in enumerate(("single", "double", "triple", "quadruple"), 1):
        TASKS.add(_cubes(_cube_count, bool(_goals)), f"cube-{_number}{_goals}")


def make_task(
    name: str | None = None,
    *,
    graph: str | Path | None = None,
    data: Transitions | ColumnNames | None = None,
    environment: Environment | None = None,
    achieved: Sequence[str] | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Any:
    """Makes the built-in task called `name` with these options, or a task of your own from a graph file.

    A number after a colon sets a built-in task's option: "objects:6" has six objects, and "cube-double:4" is the fourth
    official task of "cube-double".

    Of your own task, everything but the graph is optional, and can be written in the graph file instead:

    graph        the file: Python, TOML, or learned. It may define rewards, goals and more (docs/graphs.md)
    data         a table with the columns that the file speaks of
    environment  where agents are evaluated: a Gymnasium id, "module:Id" if a module must be imported first, or a
                 function that makes an environment. Its observations are the states of the data
    achieved     columns of the state that goals are about
    tolerance    distance up to which a goal is reached: Euclidean, over the columns of each factor in `achieved`. The
                 reward is then -1 until all are, unless the file defines another
    """
    own: dict[str, Any] = {"data": data, "environment": environment, "achieved": achieved, "tolerance": tolerance}
    if graph is not None:
        if name is not None or options:
            raise InputError(f"graph= makes a task of your own: leave out {name or next(iter(options))!r}.")
        return own_task(graph, **own)
    if given := [option for option, value in own.items() if value is not None]:
        raise InputError(f"{given[0]}= belongs to a task of your own: pass graph=, its graph file, too.")
    if name is None:
        raise InputError(f"name a built-in task ({TASKS.choices}), or pass graph=, the graph file of your own.")
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
    return TASKS.make(kind, **options)
