"""A world with a random causal graph: k factors of four numbers rotate, and sometimes push others along its edges.

It is no task of mocoda's: `make_world("dag:30")` makes one with 30 factors.

| | |
|---|---|
| observation | four numbers of each factor, float32, a vector of length at most 2 |
| action | four numbers in [-1, 1] |
| graph | drawn once, by k: each factor has up to two possible parents, of the action and the factors before it |
| step | each factor rotates: x' = 0.99 R x, with its own rotation R |
| edge | active where w · [child; parent] > 1, in 1 to 7% of the rows; then 0.5 Q parent is added, Q a rotation |
| limit | an x' longer than 2 is scaled back to length 2 |
| absent | a factor of zeros stays zero and has no edges; each factor is absent in a tenth of the recorded episodes |
| start | uniform in [-1, 1]; an episode has 25 steps |
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.worlds import COUPLED
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks import TASKS, make_task

WIDTH = 4  # numbers of a factor
PARENTS = 2  # of a factor besides itself, at most
THRESHOLD, DECAY, EFFECT, ABSENT = 1.0, 0.99, 0.5, 0.1
LONGEST = 2.0
EPISODE = 25  # steps


class Law(NamedTuple):
    """The constants of the dynamics, drawn once for each number of factors. E: possible edges."""

    parent: Tensor  # (E,), counted as the graph's parents are: the action is the last
    child: Tensor  # (E,)
    weight: Tensor  # (E, 8), of length 1, for [child; parent]
    effect: Tensor  # (E, 4, 4)
    turn: Tensor  # (k, 4, 4)


class RandomDag:
    """A random causal graph over factors; recorded episodes take random actions."""

    def __init__(self, factors: int = 10) -> None:
        if isinstance(factors, bool) or not isinstance(factors, int) or factors < 1:
            raise InputError(f"factors must be a whole number of at least 1, got {factors!r}.")
        self.factors = factors
        self.name = f"dag:{factors}"

    @cached_property
    def graph(self) -> LocalGraph:
        """Each factor depends on itself, and on a parent where their edge is active."""
        names = [f"factor{number + 1}" for number in range(self.factors)]
        return LocalGraph(
            state={name: slice(WIDTH * number, WIDTH * (number + 1)) for number, name in enumerate(names)},
            action={"action": slice(0, WIDTH)},
            edges={name: [name] for name in names},
            local=self.local_mask,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{name}.{part}" for name in self.graph.parents for part in "abcd")

    @cached_property
    def law(self) -> Law:
        stream = Stream(0, "random-dag", self.factors)
        edges = []
        for child in range(self.factors):
            before = [self.factors, *range(child)]  # the action, and the factors before it
            chosen = stream.child("parents", child).permutation(len(before))[:PARENTS]
            edges += [(before[number], child) for number in chosen.tolist()]
        parent, child_of = torch.tensor(edges).T
        weight = stream.child("weight").normal(len(edges), 2 * WIDTH)
        return Law(
            parent,
            child_of,
            weight / weight.norm(dim=1, keepdim=True),
            EFFECT * _rotations(stream.child("effect"), len(edges)),
            DECAY * _rotations(stream.child("turn"), self.factors),
        )

    def holds(self, rows: Tensor) -> Tensor:
        """Which of the possible edges are active, bool (N, E)."""
        values, law = rows.unflatten(1, (-1, WIDTH)), self._law(rows)
        pair = torch.cat([values[:, law.child], values[:, law.parent]], 2)
        present = (values != 0).any(2)
        passed = (pair * law.weight).sum(2) > THRESHOLD
        held: Tensor = passed & present[:, law.child] & present[:, law.parent]
        return held

    def local_mask(self, rows: Tensor) -> Tensor:
        """The true graph of each row, bool (N, k + 1, k)."""
        law = self._law(rows)
        itself = torch.eye(self.factors + 1, self.factors, dtype=torch.bool, device=rows.device)
        mask = itself.repeat(len(rows), 1, 1)
        mask[:, law.parent, law.child] = self.holds(rows)
        return mask

    def step(self, rows: Tensor) -> Tensor:
        values, law = rows.unflatten(1, (-1, WIDTH)), self._law(rows)
        turned = (values[:, :-1, None] * law.turn).sum(3)
        effects = (values[:, law.parent, None] * law.effect).sum(3) * self.holds(rows)[..., None]
        moved = turned.index_add(1, law.child, effects)
        shortened: Tensor = moved * (LONGEST / moved.norm(dim=2, keepdim=True)).clamp(max=1)
        return shortened.flatten(1)

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records episodes of 25 uniform actions (the last may be shorter), in which some factors are absent."""
        if rows < 1:
            raise InputError(f"rows must be at least 1, the number of transitions to record, got {rows}.")
        stream = as_stream(seed, "dag-collect", device="cpu")
        walks = -(-rows // EPISODE)
        present = stream.child("absent").uniform(walks, self.factors) >= ABSENT
        state = stream.uniform(walks, WIDTH * self.factors, low=-1.0) * present.repeat_interleave(WIDTH, 1)
        recorded = []
        for _ in range(EPISODE):
            recorded.append(torch.cat([state, stream.uniform(walks, WIDTH, low=-1.0)], 1))
            state = self.step(recorded[-1])
        walked = torch.stack(recorded, 1).flatten(0, 1)[:rows]
        state, action, next_state = walked[:, :-WIDTH], walked[:, -WIDTH:], self.step(walked)
        return Transitions(
            state,
            action,
            next_state,
            columns=self.columns,
            source={"task": self.name, "rows": rows, "seed": stream.seed},
            episode=torch.arange(rows) // EPISODE,
        )

    def _law(self, rows: Tensor) -> Law:
        return Law(*(tensor.to(rows.device) for tensor in self.law))


def _rotations(stream: Stream, n: int) -> Tensor:
    """n random orthogonal matrices (n, 4, 4)."""
    rotations: Tensor = torch.linalg.qr(stream.normal(n, WIDTH, WIDTH, dtype=torch.float64))[0].float()
    return rotations


WORLDS = (*TASKS, *COUPLED, "dag")


def make_world(name: str) -> Any:
    """Makes a task of mocoda's, a coupled world, or "dag:30", a random DAG of 30 factors (10 unless given)."""
    kind, _, factors = name.partition(":")
    if name in COUPLED:
        return COUPLED[name]()
    return RandomDag(int(factors or 10)) if kind == "dag" else make_task(name)
