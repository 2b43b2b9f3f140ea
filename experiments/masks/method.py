"""What a method of the exam is: something that scores, for recorded rows, how likely each edge is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.registry import Registry
from mocoda.graph.local_graph import LocalGraph

BLOCK = 2_048  # rows that are scored at a time
Scores = Callable[[Transitions], Tensor]  # N transitions -> float (N, parents, children); larger: likelier an edge


class NotApplicableError(Exception):
    """Why a method has nothing to say about a world."""


class Method(ABC):
    """Settings of a method, as the fields of a frozen dataclass, and how it learns from recorded rows.

    name         what it is called in results
    threshold    the score above which its authors say that there is an edge; None where they give none
    fixed        its answers are yes or no, cut at `threshold`: there is none to choose on validation rows
    probability  its scores are probabilities, so that their calibration can be measured
    looks_ahead  it reads the next state of the rows that it scores, so that it cannot mask states nobody has stepped
    """

    name: ClassVar[str]
    threshold: ClassVar[float | None] = None
    fixed: ClassVar[bool] = False
    probability: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False

    @abstractmethod
    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        """Learns from recorded rows.

        graph  says only what the factors are: every edge is in it
        """


METHODS: Registry[type[Method]] = Registry("method")


def in_blocks(score: Scores) -> Scores:
    """The same scores, made of a few rows at a time, and without gradients."""

    def scores(data: Transitions) -> Tensor:
        starts = range(0, len(data), BLOCK)
        return torch.cat([score(data[start : start + BLOCK]).detach() for start in starts])

    return scores
