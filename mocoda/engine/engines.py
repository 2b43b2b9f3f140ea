"""Where jobs are done: in processes of this machine, or as tasks of a Ray cluster.

An engine only says which process does which job, and when. Jobs must not depend on that, and leave what they make where
the caller finds it again: then any engine gives the same result, and a second call needs to do only what is missing.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mocoda.engine.cores import cores
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.workers import PATIENCE, Workers, one_thread, safe_path

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Notice = Callable[[str], object]  # called with a sentence when a process has died

ENGINES = ("processes", "ray")


class Engine(Protocol):
    """Runs jobs in processes or on a cluster, and repeats those whose process died."""

    def run(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        """Yields each job with its answer as soon as it is done. An error that the work raises is raised here.

        work  a function that other processes can import, or an object like one; jobs and answers are sent as pickles
        """
        ...


@dataclass(frozen=True)
class Processes:
    """Processes of this machine.

    workers  how many; None: one per core; 0: none but this one
    """

    workers: int | None = 0
    notice: Notice = lambda sentence: None

    def run(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        sentence = "A worker process died; another one does its job again."
        with Workers(work, self.workers, lambda: self.notice(sentence)) as pool:
            yield from pool.as_done(jobs)


@dataclass(frozen=True)
class RayTasks:
    """Tasks of Ray; the fields are explained in `make_engine`.

    All machines need the same packages, and see the files that jobs read and write under the same paths.
    """

    workers: int | None = None
    address: str | None = None
    gpus: float = 0.0
    notice: Notice = lambda sentence: None

    def run(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        todo = list(jobs)
        if not todo:
            return
        with self.ready() as ray:
            held, here = ray.put(work), (str(Path.cwd()), sys.path)
            # We retry ourselves, to report it and to give up in the end.
            do = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(_do)
            running = {do.remote([held], held.hex(), here, job): job for job in todo}
            deaths: Counter[int] = Counter()
            places = {ref: place for place, ref in enumerate(running)}
            try:
                while running:
                    (ref,), _ = ray.wait(list(running), num_returns=1)
                    job, place = running.pop(ref), places.pop(ref)
                    try:
                        yield job, ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise _cause(error) from None
                    except ray.exceptions.RayError as error:  # a process or a machine died
                        deaths[place] += 1
                        if deaths[place] >= PATIENCE:
                            raise InputError(
                                f"a job's Ray worker died {PATIENCE} times ({type(error).__name__}). Memory may have "
                                "run out: try fewer workers, or look into Ray's logs."
                            ) from error
                        self.notice(f"A Ray worker died ({type(error).__name__}); another one does its job again.")
                        again = do.remote([held], held.hex(), here, job)
                        running[again], places[again] = job, place
            finally:
                for ref in running:
                    ray.cancel(ref, force=True)

    @contextmanager
    def ready(self) -> Iterator[Any]:
        """A block with a connection to Ray, which several calls of `run` share; a Ray that it starts ends with it."""
        ray = ray_package()
        connected = ray.is_initialized()
        if not connected:
            _check_address(self.address)
            own: dict[str, Any] = {}
            if self.address is None:
                own = {"num_cpus": cores() if self.workers is None else self.workers, "include_dashboard": False}
            try:
                with safe_path(), nullcontext() if self.address else _loopback(ray):
                    ray.init(self.address or "local", log_to_driver=False, logging_level="ERROR", **own)
            except (ConnectionError, RuntimeError, ValueError) as error:
                said = str(error).partition("\n")[0].removesuffix(".")
                if self.address is None:
                    raise InputError(f"cannot start Ray on this machine: {said}. Use --engine processes.") from error
                raise InputError(
                    f"cannot connect to a Ray cluster at {self.address!r}: {said}. Does `ray status` say that it runs? "
                    "If it asks for a token, set RAY_AUTH_MODE=token and the token here as on its machines."
                ) from error
        try:
            there = ray.cluster_resources()
            if self.gpus > there.get("GPU", 0):
                raise InputError(
                    f"each job asks for {self.gpus:g} GPUs, and this Ray has {there.get('GPU', 0):g}. Use another "
                    "--address, or --device cpu."
                )
            yield ray
        finally:
            if not connected:
                ray.shutdown()


def make_engine(
    name: str = "processes",
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus: float = 0.0,
    notice: Notice = lambda sentence: None,
) -> Engine:
    """Makes an engine, which runs jobs in processes of this machine or on a Ray cluster.

    workers  processes at most: of this machine, or of a Ray that is started for the work; None: one per core
    address  with "ray": that of a cluster which runs already, "auto" for the one that this machine is part of. Without
             it, a Ray is started on this machine, and ended with the work
    gpus     with "ray": GPUs that each job asks for; 0.25 lets four share one
    notice   called with a sentence when a process has died
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "processes":
        if address is not None:
            raise InputError("--address is that of a Ray cluster: add --engine ray, or remove it.")
        return Processes(workers, notice)
    return RayTasks(workers, address, gpus, notice)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Makes a Ray that is started in the block listen on 127.0.0.1 only: whoever reaches a Ray can run code in it."""
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _cause(error: Any) -> Exception:
    """The error that a job raised in a Ray worker."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    if "No module named" in str(cause):  # Ray's own text around it has many lines
        missing = str(cause).rpartition("No module named ")[2].partition("\n")[0].strip(" '")
        return InputError(f"a worker of the Ray cluster has no module {missing!r}: all need the same packages as here.")
    return cause


def _check_address(address: str | None) -> None:
    """Refuses an address where nobody answers; Ray itself would wait for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"nobody answers at {address!r}, where a Ray cluster should be ({error}).") from error


_KEPT: dict[str, Any] = {}


def _do(held: list[Any], key: str, there: tuple[str, list[str]], job: Any) -> Any:
    """Runs in a Ray worker, which keeps the work, and what it has prepared, between jobs.

    there  the folder of the process that asks for it, and where that finds modules
    """
    import ray

    place, modules = there
    sys.path[:] = [*modules, *(path for path in sys.path if path not in modules)]
    try:
        os.chdir(place)  # paths mean the same
    except OSError as error:
        raise InputError(
            f"a machine of the Ray cluster does not see {place!r}. Work in a folder that all machines share."
        ) from error
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = ray.get(held[0])
    with one_thread():  # as in the processes of `Workers`: numbers do not depend on who computes them
        return _KEPT[key](job)


def ray_package() -> Any:
    """Imports Ray, or says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as future versions do; else it warns
    try:
        import ray
    except ImportError as error:
        raise InputError('for --engine ray, Ray is needed: pip install "mocoda[ray]".') from error
    return ray
