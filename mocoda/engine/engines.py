"""Where jobs are done: in processes of this machine, or as tasks of a Ray cluster.

An engine only says which process does which job, and when. Jobs must not depend on that, and leave what they make where
the caller finds it again: then any engine gives the same result, and a second call needs to do only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.workers import Workers

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Notice = Callable[[str], None]  # is told of deaths, in a sentence

ENGINES = ("processes", "ray")


class Engine(Protocol):
    """Does jobs, and does those again whose process died."""

    def run(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        """Each job and its answer, as they are done. An error that the work raises is raised here.

        work  a function that other processes can import, or an object like one; jobs and answers are sent as pickles
        """
        ...

    def ready(self) -> AbstractContextManager[object]:
        """A block in which several `run`s share what has to be started for them; one alone needs no such block."""
        ...


@dataclass(frozen=True)
class Processes:
    """Processes of this machine.

    workers  how many; None: one per core; 0: none but this one
    """

    workers: int | None = 0
    notice: Notice = lambda sentence: None

    def run(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        def died() -> None:
            self.notice("A worker process died; another one does its job again.")

        with Workers(work, self.workers, died) as pool:
            yield from pool.as_done(jobs)

    def ready(self) -> AbstractContextManager[object]:
        return nullcontext()


def make_engine(
    name: str = "processes",
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus: float = 0.0,
    notice: Notice = lambda sentence: None,
) -> Engine:
    """The engine called `name`.

    workers  processes at most: of this machine, or of a Ray that is started for the work; None: one per core
    address  with "ray": that of a cluster which runs already, "auto" for the one that this machine is part of. Without
             it, a Ray of this machine is started, and ended with the work
    gpus     with "ray": GPUs that each job asks for; 0.25 lets four share one
    notice   is told, in a sentence, of processes that died
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "processes":
        if address is not None:
            raise InputError("--address is that of a Ray cluster: add --engine ray, or remove it.")
        return Processes(workers, notice)
    from mocoda.engine.ray_engine import RayTasks

    return RayTasks(workers, address, gpus, notice)


_CHOSEN: ContextVar[Engine | None] = ContextVar("engine", default=None)


@contextmanager
def spread_over(engine: Engine | None) -> Iterator[None]:
    """Inside, stages that train several models or agents train each as a job of this engine; None: all as one program.

    The results are the same. One program is the better choice on one machine.
    """
    token = _CHOSEN.set(engine)
    try:
        with nullcontext() if engine is None else engine.ready():
            yield
    finally:
        _CHOSEN.reset(token)


def chosen_engine() -> Engine | None:
    """The engine of the `spread_over` block around the call."""
    return _CHOSEN.get()
