"""The recipes that MoCoDA is compared with: recorded rows (Emp), CoDA, Dyna and random rows (Rand)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents.recipe import Draw, Model, Recipe, RecordedTransitions, TaskHints
from mocoda.parents.recombination import without_repeats

MIN_EXCHANGES = 1_024  # of rows that are tried at a time, at least
JUDGED_EXCHANGES, MIN_POSSIBLE = 200_000, 1e-4  # tried before giving up, if a smaller share of them is possible


@dataclass(frozen=True)
class Emp(Recipe):
    """The recorded transitions, drawn uniformly."""

    name: ClassVar[str] = "emp"
    title: ClassVar[str] = "Emp"
    colour: ClassVar[str] = "#9aa3b2"
    needs_model: ClassVar[bool] = False

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> RecordedParents:
        return RecordedParents(data)


@dataclass(frozen=True, eq=False)
class RecordedParents(RecordedTransitions):
    """The recorded rows, drawn without replacement until all are used."""

    name = Emp.name

    data: Transitions

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        index = without_repeats(len(self.data), n, as_stream(seed, "emp", device=self.data.device))
        rows = self.data.rows[index]
        return Draw(rows, index[:, None].expand(rows.shape), self.data.next_state[index])


@dataclass(frozen=True)
class Coda(Recipe):
    """Recorded transitions that exchange unconnected components; next states are recorded too (CoDA)."""

    name: ClassVar[str] = "coda"
    title: ClassVar[str] = "CoDA"
    colour: ClassVar[str] = "#7b5ea7"
    needs_model: ClassVar[bool] = False

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> SwappedParents:
        return SwappedParents(data, graph)


@dataclass(frozen=True, eq=False)
class SwappedParents(RecordedTransitions):
    """Pairs of recorded rows that exchange a group of factors.

    They may if no edge connects the group to the rest in either row's local graph. The new row is kept if every child
    has the same edges there as in the row that it comes from.
    """

    name = Coda.name

    data: Transitions
    graph: LocalGraph

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = as_stream(seed, "coda", device=self.data.device)
        parts: list[Draw] = []
        have = tried = 0
        everything = connected_components(self.graph.sparsest[None])[0].unique().numel() == 1
        while not everything and (tried < JUDGED_EXCHANGES or have > MIN_POSSIBLE * tried):
            size = max(n - have, MIN_EXCHANGES)
            parts.append(self._swap(size, stream.child(len(parts))))
            have, tried = have + len(parts[-1].rows), tried + size
            if have >= n:
                return Draw.join(parts).at(slice(n))
        raise InputError(
            f"recipe 'coda' found {have} of {n} rows to exchange: in this data the local graphs connect everything. "
            "Use recipe 'mocoda', which needs no unconnected components."
        )

    def _swap(self, n: int, stream: Stream) -> Draw:
        """At most n new rows."""
        rows, children = self.data.rows, self.data.next_state
        one, other = stream.integers(len(rows), 2, n)
        graph_of_one, graph_of_other = self.graph.mask(rows[one]), self.graph.mask(rows[other])
        kinds, kind = torch.unique(graph_of_one | graph_of_other, dim=0, return_inverse=True)
        label = connected_components(kinds)[kind]  # (n, parents + children)
        # Take the component of a random node from the other row.
        node = stream.integers(label.shape[1], n, 1)
        taken = label == label.gather(1, node)
        of_row = self.graph.owner.to(rows.device)
        of_child = of_row[: children.shape[1]] + len(self.graph.parents)
        from_other = taken[:, of_row]
        new_rows = torch.where(from_other, rows[other], rows[one])
        new_children = torch.where(taken[:, of_child], children[other], children[one])
        # Every child must depend in the new row on what it depended on where it comes from.
        child_from_other = taken[:, None, len(self.graph.parents) :]
        same = self.graph.mask(new_rows) == torch.where(child_from_other, graph_of_other, graph_of_one)
        keep = same.all((1, 2)) & ~taken.all(1)  # exchanging everything makes no new row
        donors = torch.where(from_other, other[:, None], one[:, None])
        return Draw(new_rows, donors, new_children).at(keep)


@dataclass(frozen=True)
class Dyna(Recipe):
    """Recorded rows, and model rollouts from them with uniformly random actions.

    horizon  steps of a rollout
    """

    name: ClassVar[str] = "dyna"
    title: ClassVar[str] = "Dyna"
    colour: ClassVar[str] = "#8a5a44"

    horizon: int = 5

    def __post_init__(self) -> None:
        if self.horizon < 0:
            raise InputError(f"horizon must be a number of steps, 0 or more, got {self.horizon}.")

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> RolloutParents:
        if model is None:
            raise InputError("recipe 'dyna' rolls a dynamics model forward; pass model=mocoda.fit_dynamics(...).")
        low, high = box_of(data, task)
        width = data.state.shape[1]
        return RolloutParents(data.rows, model, self.horizon, low[width:], high[width:])


@dataclass(frozen=True, eq=False)
class RolloutParents:
    """All steps of rollouts, including the recorded rows that they start from."""

    name = Dyna.name

    rows: Tensor
    model: Model
    horizon: int
    low: Tensor  # (A,)
    high: Tensor

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "dyna", device=self.rows.device)
        starts = -(-n // (self.horizon + 1))
        steps = [self.rows[stream.integers(len(self.rows), starts)]]
        for step in range(self.horizon):
            state = self.model.sample(steps[-1], seed=stream.child("step", step))
            action = self.low + (self.high - self.low) * stream.uniform(starts, len(self.low))
            steps.append(torch.cat([state, action], 1))
        return torch.cat(steps)[stream.permutation(starts * (self.horizon + 1))[:n]]


@dataclass(frozen=True)
class Rand(Recipe):
    """States and actions drawn uniformly from the task's box, or from the recorded range (Rand)."""

    name: ClassVar[str] = "rand"
    title: ClassVar[str] = "Rand"
    colour: ClassVar[str] = "#e0a243"

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> UniformParents:
        return UniformParents(*box_of(data, task))


@dataclass(frozen=True, eq=False)
class UniformParents:
    """Uniform draws from a box."""

    name = Rand.name

    low: Tensor  # (S + A,)
    high: Tensor

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "rand", device=self.low.device)
        return self.low + (self.high - self.low) * stream.uniform(n, len(self.low))


def box_of(data: Transitions, task: TaskHints | None) -> tuple[Tensor, Tensor]:
    """The lowest and the highest row, (S + A,) each: the task's, or else those recorded."""
    box = getattr(task, "box", None)
    if box is None:
        return data.rows.amin(0), data.rows.amax(0)
    low, high = box
    return low.to(data.device), high.to(data.device)
