"""How many threads torch works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch with one thread: numbers that do not depend on who computes them, and no waiting of threads for each other.

    On a busy machine, threads that share small products wait for the slowest after each.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_threads(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What the jobs return, as many at a time as torch has threads, with one each.

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
