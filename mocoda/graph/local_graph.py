"""The local causal graph: which factors the next state of each factor depends on, in each row.

The paper's objects: a *factor* is a named group of columns of the state or the action; every factor is a *parent*, and
every state factor is a *child* (its next value); the *sparsest* graph holds in most of the space, and the *mask*
M(s, a) says which edges there are at one row. An edge parent -> child: the child depends on the parent.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.data.where import Condition
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError, check_names

Columns = int | slice | Sequence[int]
MaskFunction = Callable[[Tensor], Tensor]
MAX_PROBES = 512  # recorded rows at which local rules are compared, and as many recombined rows for each of
SPREADS = (1.0, 1.25, 1.5)  # the factors by which these are stretched


@dataclass(frozen=True, eq=False, repr=False)
class LocalGraph:
    """A local causal graph: which factors depend on which, and in which rows.

    state, action   factor name -> its columns of the state (of the action): a number, a slice or a sequence of numbers
    edges           child -> the parents it depends on in the sparsest graph
    local           rows (N, S + A) -> bool (N, parents, children), the edges at each row; None: the sparsest everywhere
    given_parent_sets
                    the groups of factors to model jointly; None: those that the sparsest graph implies
    relative        column of a row -> the column that it is measured from: a box's x -> the x of the hand that holds
                    it. Where recorded rows are matched (density="matched"), it moves along with that column
    absent          factors of the state that are absent in some rows -> the column of a row that is 0 there, or None
                    if all columns of the factor are. An absent factor has no edges but its own, and stays absent
    constraints     what holds in every state, by name: rows (N, S + A) -> bool (N,), such as a mocoda.data.where's
                    Condition. New rows obey them, and so do their next states

    >>> graph = LocalGraph(
    ...     state={"x": 0, "y": 1}, action={"dx": 0, "dy": 1}, edges={"x": ["x", "dx"], "y": ["y", "dy"]}
    ... )
    >>> graph.parent_sets
    (('x', 'dx'), ('y', 'dy'))
    """

    state: Mapping[str, Columns]
    action: Mapping[str, Columns]
    edges: Mapping[str, Sequence[str]]
    local: MaskFunction | None = None
    given_parent_sets: Sequence[Sequence[str]] | None = None
    relative: Mapping[int, int] = field(default_factory=dict)
    absent: Mapping[str, int | None] = field(default_factory=dict)
    constraints: Mapping[str, MaskFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if clash := [name for name in self.state if name in self.action]:
            raise InputError(
                f"the names {clash} stand for both state and action factors; every factor needs its own name."
            )
        if not self.state:
            raise InputError("state names no factors; expected at least one.")
        for child, parents in self.edges.items():
            if isinstance(parents, str):
                raise InputError(f"the parents of {child!r} must be a list of names, got the string {parents!r}.")
            if child in self.action:
                raise InputError(
                    f"edges name {child!r} as a child, but it is an action; only state factors have parents."
                )
        check_names("state factor", self.edges, self.state)
        for child in self.children:
            if not self.edges.get(child):
                raise InputError(
                    f"child {child!r} has no parents in edges; expected at least one, such as {child!r} itself."
                )
        check_names("factor", chain(*self.edges.values(), *(self.given_parent_sets or ())), self.factors)
        check_names("state factor", self.absent, self.state)
        for name in self.absent:
            if {*self.factors[name]} & {*self.relative}:
                raise InputError(f"{name!r} may be absent, so none of its columns can be relative to another's.")
        for column, origin in self.relative.items():
            for number in (column, origin):
                if not isinstance(number, int) or not 0 <= number < self.width:
                    raise InputError(
                        f"relative names the column {number!r}; a row has {self.width} columns, counted from 0, the "
                        "state's first."
                    )
            if origin in self.relative:
                raise InputError(
                    f"relative measures column {column} from column {origin}, which is itself measured from "
                    f"{self.relative[origin]}; an origin is a column of its own."
                )

    def __repr__(self) -> str:
        edges = ", ".join(f"{child}' <- {', '.join(self.edges[child])}" for child in self.children)
        return f"LocalGraph({edges}{'' if self.local is None else ', and local edges'})"

    def _repr_html_(self) -> str:
        from mocoda.graph.diagram import graph_html

        return graph_html(self)

    @property
    def structure(self) -> dict[str, Any]:
        """Factors with their columns, and edges, as JSON values; fitted models depend on them."""
        return {
            "children": list(self.children),
            "factors": {name: list(columns) for name, columns in self.factors.items()},
            "edges": {child: sorted(self.edges[child]) for child in self.children},
            "local": self.local is not None,
        } | ({"absent": dict(self.absent)} if self.absent else {})

    def fingerprint(self, rows: Tensor) -> str:
        """A short hash of the structure, and of what the local rule gives at rows (N, S + A)."""
        described = json.dumps([self.structure, fingerprint(rows, self.mask(rows))], sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    @property
    def parents(self) -> tuple[str, ...]:
        """All factors, state first: the order of the mask's second axis."""
        return (*self.state, *self.action)

    @property
    def children(self) -> tuple[str, ...]:
        """The state factors: the order of the mask's third axis."""
        return tuple(self.state)

    @cached_property
    def factors(self) -> dict[str, tuple[int, ...]]:
        """Factor -> its columns of a row (state and action side by side)."""
        state = _resolved("state", self.state)
        offset = sum(map(len, state.values()))
        action = _resolved("action", self.action)
        return state | {name: tuple(offset + i for i in columns) for name, columns in action.items()}

    @property
    def state_width(self) -> int:
        return sum(len(self.factors[name]) for name in self.state)

    @property
    def width(self) -> int:
        """Columns of a row, S + A."""
        return sum(map(len, self.factors.values()))

    def columns(self, names: Sequence[str]) -> tuple[int, ...]:
        """The columns of a row that belong to these factors, in their order."""
        return tuple(column for name in names for column in self.factors[name])

    @cached_property
    def owner(self) -> Tensor:
        """The factor that each column of a row belongs to, as its number among `parents`: (S + A,)."""
        owner = {column: i for i, name in enumerate(self.parents) for column in self.factors[name]}
        return torch.tensor([owner[column] for column in range(self.width)])

    @cached_property
    def sparsest(self) -> Tensor:
        """The edges of the sparsest graph, bool (parents, children)."""
        return torch.tensor([[p in self.edges[c] for c in self.children] for p in self.parents])

    @cached_property
    def parts(self) -> Tensor:
        """The connected component of each factor in the sparsest graph, as a number: (parents,)."""
        return connected_components(self.sparsest[None])[0][: len(self.parents)]

    @cached_property
    def parent_sets(self) -> tuple[tuple[str, ...], ...]:
        """The groups of factors whose joint distribution a sample must keep.

        These are the children's parent sets in the sparsest graph, less those that lie within another one. A factor
        that no child depends on is a set of its own, so that together the sets cover every column.
        """
        given = self.given_parent_sets
        groups = [frozenset(one) for one in (map(self.edges.__getitem__, self.children) if given is None else given)]
        groups += [frozenset([name]) for name in self.parents if not any(name in g for g in groups)]
        largest = [g for i, g in enumerate(groups) if not any(g < h for h in groups) and g not in groups[:i]]
        return tuple(tuple(name for name in self.parents if name in group) for group in largest)

    def mask(self, rows: Array) -> Tensor:
        """The edges at each row (N, S + A): bool (N, parents, children)."""
        rows = as_tensor(rows)
        self.check_rows(rows)
        shape = (len(rows), len(self.parents), len(self.children))
        if self.local is None:
            return self._among_present(rows, self.sparsest.to(rows.device).expand(shape))
        try:
            mask = self.local(rows)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            name = getattr(self.local, "__qualname__", type(self.local).__name__)
            raise InputError(
                f"the local rule {name} raised {type(error).__name__}: {str(error).rstrip('.')}. It was given "
                f"{len(rows)} rows of {self.width} columns, and must accept any, also ones that were never recorded."
            ) from error
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise InputError(f"the mask must be a boolean tensor, got {got}. Return a comparison, or call .bool().")
        if tuple(mask.shape) != shape:
            raise InputError(
                f"the mask must have shape (rows, parents, children) = {shape}, got {tuple(mask.shape)}. "
                f"Parents are {', '.join(self.parents)}; children are {', '.join(self.children)}."
            )
        orphans = ~mask.any(1)
        if bool(orphans.any()):
            row, child = orphans.nonzero()[0].tolist()
            raise InputError(
                f"the mask leaves child {self.children[child]!r} without parents in row {row}; expected at least one."
            )
        return self._among_present(rows, mask)

    @property
    def varies(self) -> bool:
        """Whether rows may have different edges."""
        return self.local is not None or bool(self.absent)

    def absent_at(self, rows: Tensor) -> Tensor:
        """Which factors are absent in rows (N, S + A): bool (N, parents)."""
        gone = torch.zeros(len(rows), len(self.parents), dtype=torch.bool, device=rows.device)
        for name, column in self.absent.items():
            own = self.factors[name] if column is None else (column,)
            gone[:, self.parents.index(name)] = (rows[:, own] == 0).all(1)
        return gone

    def _among_present(self, rows: Tensor, mask: Tensor) -> Tensor:
        """The mask (N, parents, children) without edges to and from absent factors, other than their own."""
        if not self.absent:
            return mask
        gone, own = self.absent_at(rows), torch.eye(*mask.shape[1:], dtype=torch.bool, device=rows.device)
        return torch.where(gone[:, :, None] | gone[:, None, : len(self.children)], own, mask)

    def shares(self, rows: Array) -> Tensor:
        """The share of the rows (N, S + A) that have each edge: float64 (parents, children)."""
        rows = as_tensor(rows)
        counts = torch.stack([self.mask(block).sum(0) for block in rows.split(65_536)])
        return counts.sum(0).double() / len(rows)

    def check_data(self, data: Transitions) -> None:
        """Raises unless the data has the graph's state and action columns."""
        states, actions = data.state.shape[1], data.action.shape[1]
        if (states, states + actions) != (self.state_width, self.width):
            raise InputError(
                f"the data has {states} state and {actions} action columns, the graph {self.state_width} and "
                f"{self.width - self.state_width}; they must agree."
            )

    def broken(self, rows: Tensor, next_state: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Each constraint's violations: the rows (N,) that do not meet it, and those whose next state does not.

        A next state is checked with the row's action, and not by an expression that is about actions.
        """
        found = {}
        after = torch.cat([next_state, rows[:, self.state_width :]], 1)
        for name, holds in self.constraints.items():
            acts = isinstance(holds, Condition) and {*holds.names} & {*holds.columns[self.state_width :]}
            found[name] = ~holds(rows), torch.zeros_like(rows[:, 0], dtype=torch.bool) if acts else ~holds(after)
        return found

    def obeyed(self, rows: Tensor, next_state: Tensor | None = None) -> Tensor:
        """The rows (N,) that break no constraint, and whose next states, if they are given, do not either."""
        after = rows[:, : self.state_width] if next_state is None else next_state
        obeyed = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for now, then in self.broken(rows, after).values():
            obeyed &= ~(now | then)
        return obeyed

    def check_constraints(self, data: Transitions) -> None:
        """Raises unless the recorded rows obey the constraints."""
        said = []
        for name, both in self.broken(data.rows, data.next_state).items():
            for kind, broken in zip(("state", "next state"), both, strict=True):
                if first := broken.nonzero()[:5, 0].tolist():
                    said.append(f"{name!r} in {int(broken.sum()):,} {kind}s (rows {', '.join(map(str, first))}, ...)")
        if said:
            raise InputError(
                f"of {len(data):,} recorded rows, some break the graph's constraints: {'; '.join(said)}. Correct the "
                "constraints, or leave these rows out, for instance by mocoda export --where."
            )

    def check_rows(self, rows: Tensor) -> None:
        """Raises unless `rows` has the graph's columns."""
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InputError(
                f"rows must have shape (N, {self.width}), the graph's {self.state_width} state and "
                f"{self.width - self.state_width} action columns, got {tuple(rows.shape)}."
            )


def _resolved(kind: str, factors: Mapping[str, Columns]) -> dict[str, tuple[int, ...]]:
    """Factor -> its columns as numbers; every column from 0 to the largest belongs to exactly one factor."""
    resolved = {}
    for name, columns in factors.items():
        if isinstance(columns, slice):
            if columns.stop is None:
                raise InputError(f"{kind} factor {name!r} is an open slice; say where it ends.")
            columns = range(columns.start or 0, columns.stop, columns.step or 1)
        several = columns if isinstance(columns, Sequence | Tensor | np.ndarray) else [columns]
        resolved[name] = own = tuple(map(operator.index, several))
        if not own or min(own) < 0 or len(set(own)) < len(own):
            raise InputError(f"{kind} factor {name!r} must have different columns, counted from 0, got {list(own)}.")
    claims = sorted((number, name) for name, numbers in resolved.items() for number in numbers)
    for expected, (number, name) in enumerate(claims):
        if number < expected:
            both = f"{claims[expected - 1][1]!r} and {name!r}"
            raise InputError(f"{kind} column {number} belongs to both {both}; a column has one factor.")
        if number > expected:
            last = claims[-1][0]
            raise InputError(f"{kind} column {expected} belongs to no factor; expected every column up to {last}.")
    return resolved


def probe_rows(graph: LocalGraph, rows: Tensor) -> Tensor:
    """Recorded and recombined rows at which the masks of other local rules would differ, from recorded rows (N, S + A).

    A rule is code and cannot be compared, but its masks can: a fitted model keeps these rows with their masks, and is
    not loaded for a graph whose masks differ.
    """
    if not graph.varies:
        return rows[:0]
    count = min(len(rows), MAX_PROBES)
    recorded = rows[torch.arange(count, device=rows.device) * len(rows) // max(1, count)]
    probes, middle = [recorded], recorded.mean(0)
    for number, spread in enumerate(SPREADS, 1):  # columns of different rows: factors that were apart may meet
        mixed = torch.stack([column.roll(997 * number * i) for i, column in enumerate(recorded.T)], 1)
        probes.append(middle + spread * (mixed - middle))
    return torch.cat(probes)


def connected_components(mask: Tensor) -> Tensor:
    """Labels (M, parents + children) of the connected components of graphs (M, parents, children).

    Two nodes have the same label where edges link them; a label is the smallest node number of its component.
    """
    graphs, parents, children = mask.shape
    nodes = parents + children
    reach = torch.eye(nodes, dtype=torch.bool, device=mask.device).repeat(graphs, 1, 1)
    reach[:, :parents, parents:] = mask
    reach[:, parents:, :parents] = mask.transpose(1, 2)
    for _ in range(nodes.bit_length()):  # each product doubles the length of the paths
        reach = (reach.float() @ reach.float()) > 0
    return reach.float().argmax(2)
