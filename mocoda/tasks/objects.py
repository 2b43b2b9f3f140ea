"""Objects: an agent carries k gliding objects up a slope, with data in which they are carried one at a time.

| | |
|---|---|
| observation | per object place (x, y) and velocity (vx, vy), then the agent's place (x, y); float32, a unit square |
| action | (dx, dy) in [-1, 1]² |
| agent | moves by 0.05 a, within the square |
| objects | glide: v' = 0.99 v, less 0.001 in x (the table slopes); at home, x > 0.7, it is flat and rough: v' = 0.7 v |
| walls | within 0.1 of a wall, 0.3 of the depth is added to v', away from it |
| two objects | at a distance d < 0.1 repel each other: v' changes by 0.1 c times their difference, c = 1 - d / 0.1 |
| agent and object | at d < 0.1 the agent takes it along by t = c (1 - a²), if positive: v' = (1 - t) v' + 0.05 t a |
| then | v' is clipped to ±0.1, and the place changes by v', within the square |
| start | objects in [0.05, 0.45] x [0.05, 0.95] with velocities in ±0.02, the agent anywhere |
| reward | the share of the objects that are at home, less 1 |
| end | terminated when all are at home, truncated after 50 k steps |
"""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, check_counts
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.task import Environment, SimulatedEnv

OBJECTS = 4  # by default
REACH = 0.1  # distance within which bodies affect each other
HOME, SAFE = 0.7, 0.75  # x beyond which an object is at home, and beyond which the agent lets go of it
STEP, SPEED = 0.05, 0.1  # the agent's longest step, and the limit of each component of an object's velocity
EPISODE = 50  # recorded steps
LOW, HIGH = (0.05, 0.05, -0.02, -0.02), (0.45, 0.95, 0.02, 0.02)  # of an object's start: x, y, vx, vy


class Objects:
    """Carry all objects home; in each recorded episode, one is carried home and the others stay below."""

    def __init__(self, objects: int = OBJECTS) -> None:
        if isinstance(objects, bool) or not isinstance(objects, int) or objects < 1:
            raise InputError(f"objects must be a whole number of at least 1, got {objects!r}.")
        self.objects = objects
        self.name = f"objects:{objects}"
        self.horizon = 50 * objects

    @property
    def environment(self) -> Environment:
        return partial(ObjectsEnv, self.objects)

    @cached_property
    def graph(self) -> LocalGraph:
        """Each object depends on itself and on what is near it, the agent on itself and the move."""
        names, last = [f"object{i + 1}" for i in range(self.objects)], 4 * self.objects
        return LocalGraph(
            state={name: range(4 * i, 4 * i + 4) for i, name in enumerate(names)} | {"agent": range(last, last + 2)},
            action={"move": range(2)},
            edges={name: [name] for name in names} | {"agent": ["agent", "move"]},
            local=self.local_mask,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """object1.x, object1.y, object1.vx, …, agent.x, agent.y, move.dx, move.dy."""
        objects = [f"object{i + 1}.{part}" for i in range(self.objects) for part in ("x", "y", "vx", "vy")]
        return (*objects, "agent.x", "agent.y", "move.dx", "move.dy")

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        low = [0.0, 0.0, -SPEED, -SPEED] * self.objects + [0.0, 0.0, -1.0, -1.0]
        high = [1.0, 1.0, SPEED, SPEED] * self.objects + [1.0, 1.0, 1.0, 1.0]
        return torch.tensor(low), torch.tensor(high)

    def local_mask(self, rows: Tensor) -> Tensor:
        """Returns the true graph of each row, bool (N, k + 2, k + 1).

        An object depends on itself, on objects near it, and on the agent and its move while the agent is near and slow.
        """
        place = self._parts(rows)[0]
        mask = rows.new_zeros(len(rows), self.objects + 2, self.objects + 1, dtype=torch.bool)
        mask[:, : self.objects, : self.objects] = _closeness(place[:, :, None] - place[:, None]) > 0
        mask[:, self.objects :, : self.objects] = self._taken(rows)[:, None] > 0
        mask[:, self.objects :, self.objects] = True
        return mask

    def step(self, rows: Tensor) -> Tensor:
        place, velocity, agent, move = self._parts(rows)
        apart = place[:, :, None] - place[:, None]  # (N, k, k, 2), from the second to the first; none to itself
        repelled = 0.1 * (_closeness(apart)[..., None] * apart).sum(2)
        depth = (REACH - place).clamp(min=0) - (place - 1 + REACH).clamp(min=0)
        slope = place.new_tensor([-0.001, 0.0])
        glided = torch.where(place[..., :1] > HOME, 0.7 * velocity, 0.99 * velocity + slope) + 0.3 * depth + repelled
        taken = self._taken(rows)[..., None]
        speed = ((1 - taken) * glided + taken * STEP * move[:, None]).clamp(-SPEED, SPEED)
        moved = torch.cat([(place + speed).clamp(0, 1), speed], 2).flatten(1)
        return torch.cat([moved, (agent + STEP * move).clamp(0, 1)], 1)

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        home = self._parts(next_state)[0][..., 0] > HOME
        return home.float().mean(1) - 1, home.all(1)

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws start states of the target task, (n, 4 k + 2)."""
        return _started(as_stream(seed, "start", device=device).uniform(n, 4 * self.objects + 2))

    def expert(self, state: Tensor) -> Tensor:
        """Returns actions (N, 2) of an expert, which carries home the nearest object that is not safely there."""
        place, _, agent, _ = self._parts(state)
        away = (place - agent[:, None]).norm(dim=2) + 9.0 * (place[..., 0] > SAFE)
        return self._carry(state, away.argmin(1), torch.full_like(agent, 0.5))

    def features(self, rows: Tensor) -> Tensor:
        """Returns the mean x of the objects, and the x of the agent."""
        place, _, agent, _ = self._parts(rows)
        return torch.stack([place[..., 0].mean(1), agent[:, 0]], 1)

    def region(self, rows: Tensor) -> Tensor:
        """Returns the rows whose objects and agent are inside the square."""
        place, _, agent, _ = self._parts(rows)
        places = torch.cat([place.flatten(1), agent], 1)
        return ((places >= 0) & (places <= 1)).all(1)

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records episodes of 50 steps (the last may be shorter), in each of which one object is carried, in turn.

        It starts anywhere in x, the others below as in the target task. Once it is home, the agent walks to a random
        place. U(-0.3, 0.3) is added to every action.
        """
        check_counts(rows=rows)
        stream = as_stream(seed, "objects-collect", device="cpu")
        walks = -(-rows // EPISODE)
        state = self.start(walks, seed=stream)
        each = torch.arange(walks)
        which = each % self.objects
        state[each, 4 * which] = stream.uniform(walks, low=0.05, high=0.95)
        aim, recorded = stream.uniform(walks, 2), []
        for _ in range(EPISODE):
            noise = stream.uniform(walks, 2, low=-0.3, high=0.3)
            recorded.append(torch.cat([state, (self._carry(state, which, aim) + noise).clamp(-1, 1)], 1))
            state = self.step(recorded[-1])
        walked = torch.stack(recorded, 1).flatten(0, 1)[:rows]
        state, action, next_state = walked[:, :-2], walked[:, -2:], self.step(walked)
        return Transitions(
            state,
            action,
            next_state,
            *self.label(state, action, next_state),
            columns=self.columns,
            source={"task": self.name, "rows": rows, "seed": stream.seed},
            episode=torch.arange(rows) // EPISODE,
        )

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns positions and velocities of the objects (N, k, 2), the agent's position and its move (N, 2)."""
        objects, agent, rest = rows[:, : 4 * self.objects], rows[:, 4 * self.objects :][:, :2], rows[:, -2:]
        each = objects.unflatten(1, (self.objects, 4))
        return each[..., :2], each[..., 2:], agent, rest

    def _taken(self, rows: Tensor) -> Tensor:
        """Returns how much the agent takes each object along, (N, k): more if it is near and slow."""
        place, _, agent, move = self._parts(rows)
        return _closeness(place - agent[:, None]) * (1 - move.square().sum(1, keepdim=True)).clamp(min=0)

    def _carry(self, state: Tensor, which: Tensor, aim: Tensor) -> Tensor:
        """Returns actions (N, 2) that fetch object `which` (N,), carry it home, and then walk to `aim` (N, 2)."""
        place, velocity, agent, _ = self._parts(state)
        each = torch.arange(len(state), device=state.device)
        object_, speed = place[each, which], velocity[each, which]
        held = (object_ - agent).norm(dim=1, keepdim=True) < REACH / 2
        to_it = (object_ + speed - agent) / STEP
        quickly, slowly = 1.2 * normalize(to_it), 0.6 * normalize(0.5 * to_it + to_it.new_tensor([1.0, 0.0]))
        carried: Tensor = torch.where(held, slowly, quickly)
        return torch.where(object_[:, :1] > SAFE, (aim - agent) / STEP, carried).clamp(-1, 1)


def _closeness(apart: Tensor) -> Tensor:
    """Returns how near two bodies with this difference (..., 2) are: 1 in one place, exactly 0 beyond the reach."""
    close: Tensor = (1 - apart.norm(dim=-1) / REACH).clamp(min=0)
    return close


def _started(drawn: Tensor) -> Tensor:
    """Makes start states from uniform numbers (N, 4 k + 2) in [0, 1]; the agent's position is as drawn."""
    low, high = drawn.new_tensor(LOW), drawn.new_tensor(HIGH)
    objects = low + (high - low) * drawn[:, :-2].unflatten(1, (-1, 4))
    return torch.cat([objects.flatten(1), drawn[:, -2:]], 1)


class ObjectsEnv(SimulatedEnv):
    """The target task as a Gymnasium environment."""

    def __init__(self, objects: int = OBJECTS) -> None:
        task = Objects(objects)
        low, high = (bound[:-2].numpy() for bound in task.box)
        super().__init__(task, low, high)

    def draw_start(self) -> Tensor:
        return _started(torch.from_numpy(self.np_random.uniform(size=tuple(self.state.shape)).astype(np.float32)))
