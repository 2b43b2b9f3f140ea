"""jobs -> answers: a function in several processes, answers in the order of the jobs.

A process that dies (memory ran out, a simulator crashed) is replaced and its job done again, so a job's answer must not
depend on who does it, nor when. Processes end with the `with` block that uses them, however that ends, and with the
process that started them, even if it is killed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, NamedTuple, ParamSpec, TypeVar

import torch

from mocoda.files import InputError

Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all
Job = TypeVar("Job")
Answer = TypeVar("Answer")
P = ParamSpec("P")

SPAWN = multiprocessing.get_context("spawn")  # a forked process would share the parent's threads and GPU, and fail
PATIENCE = 3  # deaths in a row


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback of those who did not ask."""


class Workers(Generic[Job, Answer]):
    """Processes that do `work`, inside a `with` block.

    work   a function that other processes can import; its jobs and answers are sent as pickles
    count  processes at most, each started when there is a job for it; None: one per core; 0: this process does each
           job when it is submitted
    """

    def __init__(self, work: Callable[[Job], Answer], count: int | None = None) -> None:
        if count is not None and count < 0:
            raise InputError(f"workers must be a number of processes, or 0 for none but this one, got {count}.")
        self.work = work
        self.count = _cores() if count is None else count
        self._numbers = itertools.count()
        self._waiting: dict[int, _Submitted[Job, Answer]] = {}
        self._deaths = 0  # since a job was last finished

    def __enter__(self) -> Workers[Job, Answer]:
        self._lifeline, self._held = SPAWN.Pipe(duplex=False)
        self._pool = self._fresh_pool()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()  # which ends the processes, whatever they are doing
        self._pool.shutdown(cancel_futures=True)
        self._lifeline.close()

    def submit(self, job: Job) -> int:
        """The number under which the job's answer can be had."""
        number = next(self._numbers)
        self._waiting[number] = _Submitted(job, self._begun(job))
        return number

    def done(self, number: int) -> bool:
        """Whether the job's answer, or its error, is there."""
        future = self._waiting[number].future
        if future.done() and _death(future):
            self._replace_processes()
            return False
        return future.done()

    def result(self, number: int) -> Answer:
        """The job's answer, as soon as it is there, and once; an error that the work raised is raised here."""
        while _death(self._waiting[number].future):
            self._replace_processes()
        return self._waiting.pop(number).future.result()

    def map(self, jobs: Iterable[Job], ahead: int | None = None) -> Iterator[Answer]:
        """The answers in the order of the jobs, which may go on for ever.

        ahead  jobs taken before an answer is waited for; None: enough that no process rests
        """
        ahead = 2 * self.count if ahead is None else ahead
        waiting: deque[int] = deque()
        for job in jobs:
            waiting.append(self.submit(job))
            if len(waiting) > ahead:
                yield self.result(waiting.popleft())
        while waiting:
            yield self.result(waiting.popleft())

    def _fresh_pool(self) -> Executor:
        if self.count == 0:
            return _Here()
        return ProcessPoolExecutor(self.count, SPAWN, _prepare, (self._lifeline,))

    def _begun(self, job: Job) -> Future[Answer]:
        try:
            future = self._pool.submit(self.work, job)
        except BrokenProcessPool as death:  # told as if the process had died doing this job
            future = Future()
            future.set_exception(death)
        future.add_done_callback(self._note)
        return future

    def _note(self, future: Future[Answer]) -> None:
        if not future.cancelled() and not _death(future):
            self._deaths = 0

    def _replace_processes(self) -> None:
        """A death ends all processes of a pool: what they were to do is given to new ones."""
        self._pool.shutdown()  # now all jobs know
        self._deaths += 1
        if self._deaths >= PATIENCE:
            raise InputError(
                f"worker processes died {PATIENCE} times and finished no job in between. Memory may have run out: try "
                'fewer workers. Or a script does its work outside `if __name__ == "__main__":`, and so does every '
                "process that imports it."
            )
        self._pool = self._fresh_pool()
        for number, (job, future) in self._waiting.items():
            if _death(future):
                self._waiting[number] = _Submitted(job, self._begun(job))


class _Submitted(NamedTuple, Generic[Job, Answer]):
    job: Job
    future: Future[Answer]


class _Here(Executor):
    """Does what it is given at once, in this process, as another process would: with one thread."""

    def submit(self, work: Callable[P, Answer], /, *job: P.args, **named: P.kwargs) -> Future[Answer]:
        future: Future[Answer] = Future()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            future.set_result(work(*job, **named))
        except Exception as error:
            future.set_exception(error)
        finally:
            torch.set_num_threads(threads)
        return future


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _death(future: Future[Answer]) -> bool:
    """Whether a process died before the job was finished; waits until one of them is so."""
    return isinstance(future.exception(), BrokenProcessPool)


def _prepare(lifeline: Connection) -> None:
    """The first thing a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    torch.set_num_threads(1)  # there is a process for every core already
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    """Ends this process when the other end of the pipe is closed: by the parent, or because it is no more."""
    lifeline.poll(None)
    os._exit(1)
