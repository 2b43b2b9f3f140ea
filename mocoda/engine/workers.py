"""Worker processes call a function on jobs; the answers come in the order of the jobs.

A process that dies (memory ran out, a simulator crashed) is replaced and its job done again, so an answer must not
depend on the process or the time. Processes end with the `with` block, however it ends, and with the process that
started them, even if that is killed.

Each process has its own pipe and its own thread here. The processes of a ProcessPoolExecutor share one pipe: where one
is killed in the middle of an answer, the reader waits for the rest for ever.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from mocoda.engine.cores import cores
from mocoda.engine.errors import InputError

Job = TypeVar("Job")
Answer = TypeVar("Answer")
T = TypeVar("T")

SPAWN = multiprocessing.get_context("spawn")  # a forked process would share the parent's threads and GPU, and fail
PATIENCE = 3  # deaths in a row


class Workers(Generic[Job, Answer]):
    """A pool of processes that do `work`, inside a `with` block.

    work   a function that other processes can import; its jobs and answers are sent as pickles
    count  processes at most, each started when there is a job for it; None: one per core; 0: this process does each
           job when it is submitted
    died   is called when a process has died, before another one takes its job
    """

    def __init__(
        self, work: Callable[[Job], Answer], count: int | None = None, died: Callable[[], object] = lambda: None
    ) -> None:
        if count is not None and count < 0:
            raise InputError(f"workers must be a number of processes, or 0 for none but this one, got {count}.")
        self.work = work
        self.count = cores() if count is None else count
        self.died = died
        self._threads = ThreadPoolExecutor(max(1, self.count))
        self._own = threading.local()  # the process of each thread
        self._processes: set[_Process] = set()
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
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.end()

    def submit(self, job: Job) -> Future[Answer]:
        """Queues a job; its future gives the answer, or raises the error that the work raised."""
        if self.count:
            return self._threads.submit(self._ask, job)
        future: Future[Answer] = Future()
        with one_thread():  # as a worker would
            try:
                future.set_result(self.work(job))
            except Exception as error:
                future.set_exception(error)
        return future

    def map(self, jobs: Iterable[Job], ahead: int | None = None) -> Iterator[Answer]:
        """Yields the answers in the order of the jobs, of which there may be infinitely many.

        ahead  jobs taken before an answer is waited for; None: enough that no process is idle
        """
        ahead = 2 * self.count if ahead is None else ahead
        waiting: deque[Future[Answer]] = deque()
        for job in jobs:
            waiting.append(self.submit(job))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def as_done(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        """Yields each job with its answer as soon as it is done. Few jobs are taken ahead."""
        todo, waiting = iter(jobs), dict[Future[Answer], Job]()
        while True:
            for job in itertools.islice(todo, max(1, 2 * self.count - len(waiting))):
                waiting[self.submit(job)] = job
            if not waiting:
                return
            for future in wait_for(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()

    def _ask(self, job: Job) -> Any:
        """Runs in a thread: gives a job to the thread's process, and to another one if that dies."""
        message = ForkingPickler.dumps(job)
        while not self._ended:
            process = getattr(self._own, "process", None) or self._start()
            try:
                reply = process.ask(message)
            except (EOFError, OSError):  # it died
                self._own.process = None
                with self._lock:
                    self._processes.discard(process)
                process.end()
                self._note_death()
                continue
            self._deaths = 0
            answer, error = ForkingPickler.loads(reply)
            if error is not None:
                raise error
            return answer
        raise CancelledError

    def _note_death(self) -> None:
        if self._ended:
            return
        self.died()
        self._deaths += 1
        if self._deaths >= PATIENCE:
            self._deaths = 0
            raise InputError(
                f"worker processes died {PATIENCE} times and finished no job in between. Memory may have run out: try "
                'fewer workers. Or a script does its work outside `if __name__ == "__main__":`, and so does every '
                "process that imports it."
            )

    def _start(self) -> _Process:
        with self._lock:
            process = self._own.process = _Process(self.work, start=not self._ended)
            self._processes.add(process)
        return process


class _Process:
    """A process that works, and the pipe to it."""

    def __init__(self, work: Callable[[Any], Any], start: bool) -> None:
        self.pipe, there = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_work, args=(work, there), daemon=True)
        try:
            if start:
                with safe_path():
                    self.process.start()
        finally:
            there.close()  # so that a death ends the pipe

    def ask(self, message: Any) -> bytes:
        self.pipe.send_bytes(message)
        return self.pipe.recv_bytes()

    def kill(self) -> None:
        if self.process.pid is not None:
            self.process.kill()

    def end(self) -> None:
        self.pipe.close()
        self.kill()
        if self.process.pid is not None:
            self.process.join()


@contextmanager
def safe_path() -> Iterator[None]:
    """Processes that start inside do not import from the current folder, where a signal.py would be run."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _work(work: Callable[[Any], Any], pipe: Connection) -> None:
    """Runs in a worker process: does jobs until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    torch.set_num_threads(1)  # there is a process for every core already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        try:
            reply = ForkingPickler.dumps((work(ForkingPickler.loads(message)), None))
        except Exception as error:  # of the work, or because the answer cannot be pickled
            reply = _failure(error)
        try:
            pipe.send_bytes(reply)
        except OSError:
            return  # nobody waits


def _failure(error: Exception) -> Any:
    """The reply of work that failed: its error, or one with the same text where the error cannot be sent."""
    try:
        reply = ForkingPickler.dumps((None, error))
        ForkingPickler.loads(reply)
        return reply
    except Exception:
        text = f"a worker process failed with {type(error).__name__}: {error}"
        return ForkingPickler.dumps((None, RuntimeError(text)))


def _end_with_parent() -> None:
    """Ends this process, whatever it is doing, when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread: the numbers are those of any other process, and no thread waits for another.

    On a busy machine, threads that share small products wait for the slowest after each.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_threads(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs jobs in as many threads as torch has, each with one thread of torch's; returns their results.

    Torch would share each small product among its threads, and wait for the slowest after every one of them: where
    another program is busy on a core, that takes many times as long.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(jobs) < 2:
        return [job() for job in jobs]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(lambda job: job(), jobs))
    finally:
        torch.set_num_threads(threads)
