"""Random DAG: k factors of four numbers that turn, and now and then push others along the edges of a random graph.

| | |
|---|---|
| observation | four numbers of each factor, float32, a vector of length at most 2 |
| action | four numbers in [-1, 1] |
| graph | drawn once, by k: each factor has up to two possible parents, of the action and the factors before it |
| a step | a factor turns: x' = 0.99 R x, with a rotation R of its own |
| an edge | holds where w · [child; parent] > 1, in 1 to 7% of the rows: then 0.5 Q parent is added, Q a rotation |
| then | an x' longer than 2 is shortened to it |
| absent | a factor that is all zeros stays so and has no edges: each of them, in a tenth of the recorded episodes |
| start | uniform in [-1, 1] |
| reward | minus the length of the last factor |
| end | truncated after 25 steps |
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

FACTORS = 10  # by default
WIDTH = 4  # numbers of a factor
PARENTS = 2  # of a factor besides itself, at most
THRESHOLD, DECAY, EFFECT, ABSENT = 1.0, 0.99, 0.5, 0.1
LONGEST = 2.0
EPISODE = 25  # steps


class Law(NamedTuple):
    """What is drawn once for a number of factors. E: possible edges."""

    parent: Tensor  # (E,), counted as the graph's parents are: the action is the last
    child: Tensor  # (E,)
    weight: Tensor  # (E, 8), of length 1, for [child; parent]
    effect: Tensor  # (E, 4, 4)
    turn: Tensor  # (k, 4, 4)


class RandomDag:
    """The task, with recorded episodes of random actions."""

    horizon = EPISODE

    def __init__(self, factors: int = FACTORS) -> None:
        if isinstance(factors, bool) or not isinstance(factors, int) or factors < 1:
            raise InputError(f"factors must be a whole number of at least 1, got {factors!r}.")
        self.factors = factors
        self.name = f"dag:{factors}"

    @property
    def environment(self) -> str:
        name = f"mocoda/RandomDag{self.factors}-v0"
        if name not in gymnasium.registry:
            raise InputError(f"Gymnasium knows random DAGs of 1 to 64 factors by id, not of {self.factors}.")
        return name

    @cached_property
    def graph(self) -> LocalGraph:
        """Each factor depends on itself, and on a parent where the edge's threshold is passed."""
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

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        high = torch.tensor([LONGEST] * (WIDTH * self.factors) + [1.0] * WIDTH)
        return -high, high

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
        """Which of the possible edges hold, bool (N, E)."""
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

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        reward = -next_state[:, -WIDTH:].norm(dim=1)
        return reward, torch.zeros_like(reward, dtype=torch.bool)

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """n start states (n, 4 k), in which no factor is absent."""
        return as_stream(seed, "start", device=device).uniform(n, WIDTH * self.factors, low=-1.0)

    def features(self, rows: Tensor) -> Tensor:
        """The first two numbers of the last factor."""
        return rows[:, -2 * WIDTH : -2 * WIDTH + 2]

    def region(self, rows: Tensor) -> Tensor:
        """All rows."""
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records episodes of 25 uniform actions (the last one may be shorter), in each of which some factors lack."""
        if rows < 1:
            raise InputError(f"rows must be at least 1, the number of transitions to record, got {rows}.")
        stream = as_stream(seed, "dag-collect", device="cpu")
        walks = -(-rows // EPISODE)
        present = stream.child("absent").uniform(walks, self.factors) >= ABSENT
        state = self.start(walks, seed=stream) * present.repeat_interleave(WIDTH, 1)
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
            *self.label(state, action, next_state),
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


class RandomDagEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """The task as a Gymnasium environment (Gymnasium counts the steps)."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, factors: int = FACTORS) -> None:
        self._task = RandomDag(factors)
        self.observation_space = gymnasium.spaces.Box(-LONGEST, LONGEST, (WIDTH * factors,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (WIDTH,), np.float32)
        self._state = torch.zeros(1, WIDTH * factors)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        start = self.np_random.uniform(-1.0, 1.0, size=tuple(self._state.shape)).astype(np.float32)
        self._state = torch.from_numpy(start)
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        chosen = torch.as_tensor(np.asarray(action, np.float32)).reshape(1, WIDTH).clamp(-1.0, 1.0)
        before, self._state = self._state, self._task.step(torch.cat([self._state, chosen], 1))
        reward, _ = self._task.label(before, chosen, self._state)
        return self._observation(), float(reward), False, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return self._state[0].numpy().copy()
