"""Transitions, LocalGraph -> Parents: where new states and actions come from, the paper's seven recipes.

A recipe is any object with `sample(n, seed=)` that returns n rows (n, S + A). Write a class with that one method, hand
it to `mocoda.augment`, and it is an eighth. Recipes that recombine recorded rows bring the recorded next states along:
they have `sample_with_children` too, and no model is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents.flattening import FeatureMap, Flattened, Region, Reweighted, by_volume
from mocoda.parents.mixture import GaussianMixture
from mocoda.parents.mocoda import Mocoda, Stratified

RECIPES = ("emp", "coda", "dyna", "rand", "mocoda", "mocoda-u", "mocoda-p")
FLATTEN = ("rejection", "reweighting")


class Parents(Protocol):
    """A distribution of states and actions."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""


@runtime_checkable
class ParentsWithChildren(Protocol):
    """A distribution of whole transitions, which needs no dynamics model."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        """n rows (n, S + A) and their next states (n, S)."""


class Model(Protocol):
    """What a recipe that rolls forward needs of a dynamics model."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        """Next states (n, S) of rows (n, S + A)."""


class TaskHints(Protocol):
    """What a task may tell a recipe: the box of all rows, and where and in which features to spread."""

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest row, (S + A,) each."""

    def features(self, rows: Tensor) -> Tensor:
        """The features (N, F) that matter for the task."""

    def region(self, rows: Tensor) -> Tensor:
        """Which rows matter for the task, bool (N,)."""


def fit_parents(
    data: Transitions,
    graph: LocalGraph,
    recipe: str = "mocoda",
    *,
    seed: int | Stream = 0,
    task: TaskHints | None = None,
    model: Model | None = None,
    components: int = 32,
    covariance: str = "full",
    shuffle: bool = False,
    horizon: int = 5,
    features: FeatureMap | None = None,
    region: Region | None = None,
    bandwidth: float = 0.05,
    acceptance: float = 0.1,
    density_floor: float = 0.01,
    published_code: bool = False,
    stratified: bool = False,
    neighbourhoods: str = "empirical",
    flatten: str = "rejection",
) -> Parents:
    """The parent distribution called `recipe`, fitted to the recorded rows.

    task                      gives "rand" and "dyna" their box, "mocoda-p" its features and region
    model                     what "dyna" rolls forward
    components, covariance    of each mixture ("mocoda" and its relatives)
    shuffle                   draw the parent sets in random order
    horizon                   steps of a "dyna" rollout
    features, region          what "mocoda-u" and "mocoda-p" flatten, and where; the whole state, everywhere
    bandwidth, density_floor  of their density estimate; what is rarer than the floor is not favoured further
    acceptance                the share of their proposals to keep (less is flatter, and slower)
    published_code            as the paper's code rather than its text: "coda" exchanges what the sparsest graph
                              disconnects, whatever the local one says; mixtures draw their components evenly
    stratified                mixtures of their own for every local graph, which draw inside its neighbourhood only
    neighbourhoods            drawn as often as recorded, "empirical", or one as often as the other, "even"
    flatten                   "rejection", or "reweighting": mixtures draw a component by its volume instead of its
                              weight, at no cost; "mocoda-u" is no more than that, "mocoda-p" thins it as ever
    """
    graph.check_data(data)
    if neighbourhoods != "empirical" and not stratified:
        raise InputError(
            f"neighbourhoods={neighbourhoods!r} says how often each local graph is drawn, and without stratified=True "
            "none is drawn by itself; pass stratified=True too."
        )
    if recipe == "emp":
        return Empirical(data)
    if recipe == "coda":
        return Coda(data, graph, local=not published_code)
    if recipe == "rand":
        return Uniform(*_box(data, task))
    if recipe == "dyna":
        if model is None:
            raise InputError("recipe 'dyna' rolls a dynamics model forward; pass model=mocoda.fit_dynamics(...).")
        if horizon < 0:
            raise InputError(f"horizon must be a number of steps, 0 or more, got {horizon}.")
        low, high = _box(data, task)
        width = data.state.shape[1]
        return Dyna(data.rows, model, horizon, low[width:], high[width:])
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    if flatten not in FLATTEN:
        raise unknown_name("way to flatten", flatten, FLATTEN)
    stream = as_stream(seed, "parents", device=data.device)
    mixtures: Mocoda | Stratified
    if stratified:
        mixtures = Stratified.fit(data, graph, components, covariance, shuffle, neighbourhoods, stream)
    else:
        mixtures = Mocoda.fit(data, graph, components, covariance, shuffle, stream)
    if published_code:
        mixtures = mixtures.changed(GaussianMixture.evened)
    if recipe == "mocoda":
        return mixtures
    proposals: Parents = mixtures
    if flatten == "reweighting":
        proposals = Reweighted(mixtures.changed(by_volume), region)
        if recipe == "mocoda-u" and features is not None:
            raise InputError("reweighting flattens whole parent sets, not features; leave out features= or flatten=.")
        if recipe == "mocoda-u":
            return proposals
    if recipe == "mocoda-p":
        if task is None and features is None:
            raise InputError("recipe 'mocoda-p' needs to know what matters; pass task= or features= (and region=).")
        if task is not None:
            features, region = features or task.features, region or task.region
    features = features or (lambda rows: rows[:, : graph.state_width])
    stream = as_stream(seed, "flatten", device=data.device)
    return Flattened.fit(recipe, proposals, features, region, bandwidth, density_floor, acceptance, stream)


@dataclass(frozen=True, eq=False)
class Empirical:
    """The recorded rows themselves, every one as often as the others."""

    name = "emp"

    data: Transitions

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.sample_with_children(n, seed=seed)[0]

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        stream = as_stream(seed, "emp", device=self.data.device)
        passes = max(1, -(-n // len(self.data)))
        index = torch.cat([stream.permutation(len(self.data)) for _ in range(passes)])[:n]
        return self.data.rows[index], self.data.next_state[index]


@dataclass(frozen=True, eq=False)
class Coda:
    """Recorded rows that exchange whole components with other recorded rows (Pitis et al. 2020).

    Two rows may exchange a group of factors if no edge links it to the rest in either row's local graph; the new row is
    kept if every child's edges there are those that it had where it comes from.
    """

    name = "coda"

    data: Transitions
    graph: LocalGraph
    local: bool = True  # else the sparsest graph is taken to hold everywhere

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.sample_with_children(n, seed=seed)[0]

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        stream = as_stream(seed, "coda", device=self.data.device)
        rows, children, have = [], [], 0
        for attempt in range(1_000):
            proposed = self._swap(max(n - have, 1_024), stream.child(attempt))
            rows.append(proposed[0])
            children.append(proposed[1])
            have += len(proposed[0])
            if have >= n:
                return torch.cat(rows)[:n], torch.cat(children)[:n]
        raise InputError(
            f"recipe 'coda' found {have} of {n} rows to exchange in 1,000 attempts: in this data the local graphs link "
            "everything. Use recipe 'mocoda', which needs no disconnected components."
        )

    def _swap(self, n: int, stream: Stream) -> tuple[Tensor, Tensor]:
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
        # Every child must listen in the new row to what it listened to where it comes from.
        from_other = taken[:, None, len(self.graph.parents) :]
        same = self._mask(new_rows) == torch.where(from_other, graph_of_other, graph_of_one)
        keep = same.all((1, 2)) & ~taken.all(1)  # exchanging everything is no new row
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


@dataclass(frozen=True, eq=False)
class Uniform:
    """Anything in a box: no promise that the model knows anything about it."""

    name = "rand"

    low: Tensor
    high: Tensor

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "rand", device=self.low.device)
        return self.low + (self.high - self.low) * stream.uniform(n, len(self.low))


@dataclass(frozen=True, eq=False)
class Dyna:
    """Recorded rows, and model rollouts of `horizon` steps from them with uniformly random actions."""

    name = "dyna"

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


def _box(data: Transitions, task: TaskHints | None) -> tuple[Tensor, Tensor]:
    if task is not None:
        low, high = task.box
        return low.to(data.device), high.to(data.device)
    rows = data.rows
    return rows.amin(0), rows.amax(0)
