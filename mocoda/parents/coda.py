"""CoDA (Pitis et al., 2020): recorded transitions exchange components that the graph does not connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents.recipe import Model, Recipe, TaskHints

ATTEMPTS, FEWEST = 1_000, 1_024  # batches of exchanges to try, and rows of each, at least


@dataclass(frozen=True)
class Coda(Recipe):
    """Recorded transitions that exchange unconnected components; next states are recorded too (CoDA).

    published_code  as the paper's code rather than its text: exchange what the sparsest graph leaves unconnected,
                    whatever the local graph says. Not all of these rows are possible transitions
    """

    name: ClassVar[str] = "coda"
    title: ClassVar[str] = "CoDA"
    colour: ClassVar[str] = "#7b5ea7"
    needs_model: ClassVar[bool] = False

    published_code: bool = False

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> SwappedParents:
        return SwappedParents(data, graph, local=not self.published_code)


@dataclass(frozen=True, eq=False)
class SwappedParents:
    """Pairs of recorded rows that exchange a group of factors.

    They may if no edge links the group to the rest in either row's local graph. The new row is kept if every child's
    edges there are those that it had where it comes from.
    """

    name = Coda.name

    data: Transitions
    graph: LocalGraph
    local: bool = True  # else the sparsest graph is taken to hold everywhere

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.sample_with_children(n, seed=seed)[0]

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        stream = as_stream(seed, "coda", device=self.data.device)
        rows, children, have = [], [], 0
        for attempt in range(ATTEMPTS):
            new_rows, new_children = self._swap(max(n - have, FEWEST), stream.child(attempt))
            rows.append(new_rows)
            children.append(new_children)
            have += len(new_rows)
            if have >= n:
                return torch.cat(rows)[:n], torch.cat(children)[:n]
        raise InputError(
            f"recipe 'coda' found {have} of {n} rows to exchange in {ATTEMPTS:,} attempts: in this data the local "
            "graphs connect everything. Use recipe 'mocoda', which needs no unconnected components."
        )

    def _swap(self, n: int, stream: Stream) -> tuple[Tensor, Tensor]:
        """At most n new rows and their next states."""
        rows, children = self.data.rows, self.data.next_state
        one, other = stream.integers(len(rows), 2, n)
        graph_of_one, graph_of_other = self._mask(rows[one]), self._mask(rows[other])
        kinds, kind = torch.unique(graph_of_one | graph_of_other, dim=0, return_inverse=True)
        label = connected_components(kinds)[kind]  # (n, parents + children)
        # Take the component of a random node from the other row.
        node = stream.integers(label.shape[1], n, 1)
        taken = label == label.gather(1, node)
        of_row, of_child = self._columns
        new_rows = torch.where(taken[:, of_row], rows[other], rows[one])
        new_children = torch.where(taken[:, of_child], children[other], children[one])
        # Every child must depend in the new row on what it depended on where it comes from.
        from_other = taken[:, None, len(self.graph.parents) :]
        same = self._mask(new_rows) == torch.where(from_other, graph_of_other, graph_of_one)
        keep = same.all((1, 2)) & ~taken.all(1)  # exchanging everything makes no new row
        return new_rows[keep], new_children[keep]

    def _mask(self, rows: Tensor) -> Tensor:
        if self.local:
            return self.graph.mask(rows)
        return self.graph.sparsest.to(rows.device).expand(len(rows), -1, -1)

    @property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """The node that each column of a row, and of a next state, belongs to."""
        parents = self.graph.parents
        owner = {column: i for i, name in enumerate(parents) for column in self.graph.factors[name]}
        of_row = torch.tensor([owner[column] for column in range(self.graph.width)], device=self.data.device)
        return of_row, of_row[: self.graph.state_width] + len(parents)
