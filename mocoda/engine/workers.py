"""jobs -> answers: a function in several processes, answers in the order of the jobs.

A process that dies (memory ran out, a simulator crashed) is replaced and its job done again, so a job's answer must not
depend on who does it, nor when. Processes end with the `with` block that uses them, however that ends, and with the
process that started them, even if it is killed.

Every process has a pipe and, here, a thread of its own. Python's ProcessPoolExecutor will not do: its processes share
one pipe, and where one of them is killed in the middle of an answer, the reader waits for the rest of it for ever.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from mocoda.engine.errors import InputError

Job = TypeVar("Job")
Answer = TypeVar("Answer")

SPAWN = multiprocessing.get_context("spawn")  # a forked process would share the parent's threads and GPU, and fail
PATIENCE = 3  # deaths in a row


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
        self._answers: dict[int, Future[Answer]] = {}
        self._jobs: queue.SimpleQueue[tuple[Job, Future[Answer]] | None] = queue.SimpleQueue()
        self._resting = threading.Semaphore(0)  # processes that wait for a job
        self._attendants: list[threading.Thread] = []
        self._processes: set[SpawnProcess] = set()
        self._deaths = 0  # since a job was last finished
        self._ended = False
        self._lock = threading.Lock()

    def __enter__(self) -> Workers[Job, Answer]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.kill()
        for _ in self._attendants:
            self._jobs.put(None)
        for attendant in self._attendants:
            attendant.join()

    def submit(self, job: Job) -> int:
        """The number under which the job's answer can be had."""
        number = next(self._numbers)
        future: Future[Answer] = Future()
        self._answers[number] = future
        if self.count == 0:
            _do_here(self.work, job, future)
            return number
        self._jobs.put((job, future))
        if not self._resting.acquire(blocking=False) and len(self._attendants) < self.count:
            attendant = threading.Thread(target=self._attend, daemon=True)
            self._attendants.append(attendant)
            attendant.start()
        return number

    def done(self, number: int) -> bool:
        """Whether the job's answer, or its error, is there."""
        return self._answers[number].done()

    def result(self, number: int) -> Answer:
        """The job's answer, as soon as it is there, and once; an error that the work raised is raised here."""
        return self._answers.pop(number).result()

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

    def _attend(self) -> None:
        """Hands one process its jobs and takes its answers, until the block ends; replaces it if it dies."""
        try:
            process, pipe = self._start()
        except Exception as error:  # no process to be had: whoever waits must know
            while (task := self._jobs.get()) is not None:
                task[1].set_exception(error)
            return
        while (task := self._jobs.get()) is not None:
            job, future = task
            while not future.done():
                try:
                    _ask(pipe, job, future)
                    self._deaths = 0
                except (EOFError, OSError):
                    if self._ended:
                        break
                    self._note_death(future)
                    self._end(process, pipe)
                    process, pipe = self._start()
            self._resting.release()
        self._end(process, pipe)

    def _note_death(self, future: Future[Answer]) -> None:
        self._deaths += 1
        if self._deaths >= PATIENCE:
            self._deaths = 0
            future.set_exception(
                InputError(
                    f"worker processes died {PATIENCE} times and finished no job in between. Memory may have run out: "
                    'try fewer workers. Or a script does its work outside `if __name__ == "__main__":`, and so does '
                    "every process that imports it."
                )
            )

    def _start(self) -> tuple[SpawnProcess, Connection]:
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=_serve, args=(self.work, there), daemon=True)
        with self._lock:
            if not self._ended:
                process.start()
                self._processes.add(process)
        there.close()  # so that a death ends the pipe
        return process, here

    def _end(self, process: SpawnProcess, pipe: Connection) -> None:
        pipe.close()
        with self._lock:
            self._processes.discard(process)
        if process.pid is not None:
            process.kill()
            process.join()


def _ask(pipe: Connection, job: Any, future: Future[Any]) -> None:
    try:
        pipe.send(job)
    except (EOFError, OSError):
        raise
    except Exception as unsendable:  # it cannot be pickled
        future.set_exception(unsendable)
        return
    answer, error = pipe.recv()
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _serve(work: Callable[[Any], Any], pipe: Connection) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    torch.set_num_threads(1)  # there is a process for every core already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        reply: tuple[Any, Exception | None]
        try:
            reply = (work(job), None)
        except Exception as error:
            reply = (None, error)
        try:
            pipe.send(reply)
        except OSError:
            return  # nobody waits
        except Exception as error:  # the answer cannot be pickled
            pipe.send((None, error))


def _end_with_parent() -> None:
    """Ends this process when the one that started it is no more, whatever it is doing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _do_here(work: Callable[[Job], Answer], job: Job, future: Future[Answer]) -> None:
    """As another process would: with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        future.set_result(work(job))
    except Exception as error:
        future.set_exception(error)
    finally:
        torch.set_num_threads(threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
