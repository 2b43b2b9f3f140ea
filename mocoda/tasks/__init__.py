"""names -> Task: an environment with its graph, its recorded data and its rewards."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mocoda.files import unknown_name
from mocoda.graph import LocalGraph
from mocoda.randomness import Stream
from mocoda.tasks.navigation import Navigation
from mocoda.transitions import Transitions


class Task(Protocol):
    """What mocoda needs to know of a task. Yours needs these members and no base class."""

    @property
    def name(self) -> str:
        """What `make_task` calls it."""

    @property
    def environment(self) -> str:
        """The id under which Gymnasium makes it."""

    @property
    def graph(self) -> LocalGraph:
        """Who listens to whom."""

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest row, (S + A,) each."""

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """The recorded data, labelled with the target task's rewards."""

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        """The target task's reward (N,) and whether the episode ends there, bool (N,)."""

    def features(self, rows: Tensor) -> Tensor:
        """The features (N, F) in which "mocoda-p" spreads the parents."""

    def region(self, rows: Tensor) -> Tensor:
        """Which rows "mocoda-p" may use, bool (N,)."""

    def step(self, rows: Tensor) -> Tensor:
        """The true next states (N, S) of rows (N, S + A)."""

    @property
    def horizon(self) -> int:
        """Steps after which an episode that has not ended is a failure."""

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """States (n, S) in which episodes of the target task start."""


TASKS = {"navigation": Navigation}


def make_task(name: str) -> Task:
    """The task called `name`."""
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name]()
