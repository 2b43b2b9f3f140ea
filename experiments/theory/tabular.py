"""Random locally factored worlds that are small enough to know exactly, and models that count.

The setting of the paper's Section 3.1. State and action have k factors each; the state-actions fall into m equally
large neighbourhoods, each with a graph and mechanisms of its own; a model is the share of every child value among what
was counted at a configuration of its parents. State-actions and states are numbered, the first factor counting most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Random, Stream

STRUCTURES = ("full", "global", "local")
Tables = tuple[Tensor, ...]  # per mechanism, (configurations, child values)


class Counts(NamedTuple):
    """How often state-actions `visited` (V,) led to each next state: `outcomes` (V, |S|)."""

    visited: Tensor
    outcomes: Tensor


@dataclass(frozen=True, eq=False)
class Structure:
    """What a counting model keeps apart.

    configurations  per mechanism, which configuration of its parents holds at each state-action (|S||A|,)
    children        per mechanism, how many values its child has; together the children are the next state
    """

    configurations: tuple[Tensor, ...]
    children: tuple[int, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Per mechanism, how many configurations its parents have, over all neighbourhoods."""
        return tuple(int(configuration.max()) + 1 for configuration in self.configurations)

    def counted(self, counts: Counts) -> Tables:
        """Per mechanism, how often each configuration had each child value."""
        outcomes = counts.outcomes.unflatten(1, self.children)
        tables = []
        for i, (size, configuration) in enumerate(zip(self.sizes, self.configurations, strict=True)):
            others = [axis + 1 for axis in range(len(self.children)) if axis != i]
            own = outcomes.sum(others) if others else outcomes
            tables.append(own.new_zeros(size, self.children[i]).index_add_(0, configuration[counts.visited], own))
        return tuple(tables)

    def transitions(self, tables: Tables) -> Tensor:
        """P(s' | s, a) as (|S||A|, |S|): the product of the mechanisms' tables of probabilities."""
        product = torch.ones(len(self.configurations[0]), 1, dtype=torch.float64)
        for table, configuration in zip(tables, self.configurations, strict=True):
            product = (product[:, :, None] * table[configuration][:, None]).flatten(1)
        return product

    def fitted(self, counts: Counts) -> Tensor:
        """The transitions that maximise the likelihood of what was counted; where nothing was, the uniform ones."""
        return self.transitions(tuple(map(shares, self.counted(counts))))

    def supported(self, visited: Tensor) -> Tensor:
        """Where (|S||A|,) every mechanism has seen its parents' configuration, if these state-actions were visited."""
        seen = [torch.isin(configuration, configuration[visited]) for configuration in self.configurations]
        return torch.stack(seen).all(0)


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A world whose transitions are known.

    values         how many values each factor has
    neighbourhood  that of each state-action (|S||A|,)
    edges          bool (m, 2k, k): in each neighbourhood, which factor (state first) each child depends on
    tables         the mechanisms of the local structure
    """

    values: int
    neighbourhood: Tensor
    edges: Tensor
    tables: Tables

    @property
    def factors(self) -> int:
        return self.edges.shape[2]

    @property
    def states(self) -> int:
        return int(self.values**self.factors)

    @property
    def pairs(self) -> int:
        """|S||A|."""
        return len(self.neighbourhood)

    @property
    def neighbourhoods(self) -> int:
        return len(self.edges)

    @cached_property
    def transitions(self) -> Tensor:
        """P(s' | s, a), exactly: (|S||A|, |S|)."""
        return self.structure("local").transitions(self.tables)

    def structure(self, name: str) -> Structure:
        """What `full`, `global` or `local` counting keeps apart.

        The global one is the least that holds everywhere: a child's parents are those it has in any neighbourhood and
        the state factors, which decide which one it is.
        """
        if name == "full":
            return Structure((torch.arange(self.pairs),), (self.states,))
        if name == "local":
            return _local_structure(self.values, self.neighbourhood, self.edges)
        if name == "global":
            everywhere = self.edges.any(0, keepdim=True)
            if self.neighbourhoods > 1:
                everywhere[:, : self.factors] = True
            return _local_structure(self.values, torch.zeros_like(self.neighbourhood), everywhere)
        raise unknown_name("structure", name, STRUCTURES)

    def draw(self, samples: int, random: Random) -> Counts:
        """So many transitions from state-actions that are drawn uniformly."""
        visits = random.multinomial(samples, np.full(self.pairs, 1 / self.pairs))
        visited = visits.nonzero()[0]
        return self.draw_at(torch.from_numpy(visited), torch.from_numpy(visits[visited]), random)

    def draw_at(self, visited: Tensor, visits: Tensor, random: Random) -> Counts:
        """So many transitions (V,) from each of these state-actions (V,)."""
        return Counts(visited, drawn(self.transitions[visited], visits, random))


def random_mdp(factors: int, *, values: int = 2, overlap: int = 0, switches: int = 1, seed: int = 0) -> TabularMDP:
    """A locally factored world with mechanisms drawn uniformly from all there are.

    overlap   in each neighbourhood a child depends on one action factor and on 1 + overlap state factors, in a random
              order on a ring: every state factor has so many children
    switches  there are values^switches neighbourhoods, 0 for a world that is factored everywhere. Each state factor
              belongs to one switch, which is the sum of its factors modulo values: all neighbourhoods are equally large

    >>> world = random_mdp(3)
    >>> world.pairs, world.structure("full").sizes, world.structure("local").sizes
    (64, (64,), (8, 8, 8))
    """
    if min(factors, values) < 1:
        raise InputError(f"factors and values must be at least 1, got {factors} and {values}.")
    if not 0 <= overlap < factors:
        raise InputError(f"overlap must be from 0 to {factors - 1}, the number of other factors, got {overlap}.")
    if not 0 <= switches <= factors:
        raise InputError(f"switches must be from 0 to {factors}, the number of factors, got {switches}.")
    stream = Stream(seed, "tabular", factors, values, values, overlap, switches, factors)
    edges = torch.zeros(values**switches, 2 * factors, factors, dtype=torch.bool)
    for graph in edges:
        ring, pushed = stream.permutation(factors), stream.permutation(factors)
        for child in range(factors):
            graph[ring[torch.arange(child, child + overlap + 1) % factors], child] = True
            graph[factors + pushed[child], child] = True
    state = _numbered(factors, values)[:, :factors]
    neighbourhood = torch.zeros(len(state), dtype=torch.int64)
    for switch in range(switches):
        neighbourhood = neighbourhood * values + state[:, switch::switches].sum(1) % values
    local = _local_structure(values, neighbourhood, edges)
    weights = (-stream.uniform(size, values, dtype=torch.float64).clamp(1e-300).log() for size in local.sizes)
    return TabularMDP(values, neighbourhood, edges, tuple(map(shares, weights)))


def shares(weights: Tensor) -> Tensor:
    """Rows (N, C) in proportion to the weights; the uniform one where there are none."""
    weights = weights.double()
    total = weights.sum(1, keepdim=True)
    return torch.where(total > 0, weights / total, 1 / weights.shape[1])


def drawn(probabilities: Tensor, draws: int | Tensor, random: Random) -> Tensor:
    """How often each outcome comes up in so many draws, per row of (N, C)."""
    times = draws.numpy() if isinstance(draws, Tensor) else draws
    return torch.from_numpy(random.multinomial(times, probabilities.numpy()))


def l1_distances(one: Tensor, other: Tensor) -> Tensor:
    """‖P(s, a) − P′(s, a)‖₁ of two transitions (|S||A|, |S|), at every state-action."""
    return (one - other).abs_().sum(1)


def _local_structure(values: int, neighbourhood: Tensor, edges: Tensor) -> Structure:
    """A mechanism per child; its configurations are what its parents can be, apart for every neighbourhood."""
    factors = edges.shape[2]
    numbered = _numbered(factors, values)
    configurations = []
    for child in range(factors):
        visible = torch.where(edges[neighbourhood, :, child], numbered, -1)
        configurations.append(torch.cat([neighbourhood[:, None], visible], 1).unique(dim=0, return_inverse=True)[1])
    return Structure(tuple(configurations), (values,) * factors)


def _numbered(factors: int, values: int) -> Tensor:
    """The factors' values at each state-action: (|S||A|, 2k)."""
    return torch.stack(torch.unravel_index(torch.arange(values ** (2 * factors)), (values,) * (2 * factors)), 1)
