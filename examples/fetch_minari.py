"""A robot arm and a block, from Minari to Minari: record, read, declare a graph, augment, write, ask the simulator.

    pip install "mocoda[minari,hooksweep]"
    python examples/fetch_minari.py            # two minutes on two cores
    python examples/fetch_minari.py --large    # ten times the data
    python examples/fetch_minari.py --tiny     # seconds, to see that it runs

FetchPickAndPlace has a gripper, its fingers and a block, which have nothing to do with each other until they are near.
At the end, the simulator is put in states that nobody recorded, and says how far off the model's next states are.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
import torch
from torch import Tensor

import mocoda
from mocoda.engine.randomness import Stream, as_stream

NEAR = 0.12  # metres: a step moves the gripper up to 5 cm, and the block is as wide
POSITION = slice(0, 3)  # the first columns of the gripper and of the block


class Sizes(NamedTuple):
    episodes: int
    rows: int  # to generate
    epochs: int
    asked: int  # states to put the simulator in


SIZES = {"--tiny": Sizes(6, 200, 2, 8), "": Sizes(120, 20_000, 40, 200), "--large": Sizes(1_200, 200_000, 60, 1_000)}


class Named(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The same numbers as a Dict, so that they name their factors; less those that follow from the others."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        widths = {"gripper": 6, "fingers": 4, "block": 12, "achieved_goal": 3, "desired_goal": 3}
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(-np.inf, np.inf, (width,)) for name, width in widths.items()}
        )

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        o = observation["observation"]
        moving = o[14:17] + o[20:23]  # the block's velocity; as it comes, it is relative to the gripper's
        parts = {
            "gripper": np.concatenate([o[0:3], o[20:23]]),
            "fingers": np.concatenate([o[9:11], o[23:25]]),
            "block": np.concatenate([o[3:6], o[11:14], moving, o[17:20]]),
            "achieved_goal": observation["achieved_goal"],
            "desired_goal": observation["desired_goal"],
        }
        return {name: part.astype(np.float32) for name, part in parts.items()}


def make() -> Named:
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return Named(gymnasium.make("FetchPickAndPlace-v4"))


def record(env: Named, episodes: int, name: str) -> Tensor:
    """Records a clumsy hand that visits the block now and then; returns the simulator's own states, row by row."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    random = np.random.default_rng(0)
    buffers, inner = [], []
    for seed in range(episodes):
        seen, acted, rewards = [env.reset(seed=seed)[0]], [], []
        wander, cut = seed % 3 == 0, False
        while not cut:
            aim = seen[-1]["block"][POSITION] - seen[-1]["gripper"][POSITION]
            grip = -1.0 if np.linalg.norm(aim) < 0.02 else 1.0  # squeezes the block where it has it
            aim[2] += 0.06 * (np.linalg.norm(aim[:2]) > 0.02)  # comes from above
            pull = np.zeros(3) if wander else 8 * aim
            action = np.append(pull, grip) + random.normal(0, 0.5, 4)
            acted.append(np.clip(action, -1, 1).astype(np.float32))
            inner.append(simulator_state(env))
            observation, reward, _, cut, _ = env.step(acted[-1])
            seen.append(observation)
            rewards.append(reward)
        last = np.arange(len(acted)) == len(acted) - 1
        observations = {key: np.stack([o[key] for o in seen]) for key in seen[0]}
        buffers.append(
            EpisodeBuffer(
                observations=observations,
                actions=np.stack(acted),
                rewards=rewards,
                terminations=last & False,
                truncations=last,
                infos={},
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like to know the author, the licence and so on
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=env.observation_space, action_space=env.action_space
        )
    return torch.tensor(np.stack(inner))


class Placing:
    """The block is to be where the goal is; goals are those that were recorded."""

    name = "placing"

    def __init__(self, data: mocoda.Transitions, block: list[int]) -> None:
        assert data.goal is not None
        self.recorded, self.block = data.goal, block

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str) -> Tensor:
        return self.recorded.to(device)[as_stream(seed, "goals", device=device).integers(len(self.recorded), n)]

    def achieved(self, state: Tensor) -> Tensor:
        return state[:, self.block[POSITION]]

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        there = (self.achieved(next_state) - goal).norm(dim=1) < 0.05
        return there.float() - 1, torch.zeros_like(there)


def declare(data: mocoda.Transitions) -> mocoda.LocalGraph:
    """Each part goes its own way, except near the block."""
    state = data.columns[: data.state.shape[1]]
    action: dict[str, int | slice] = {"move": slice(0, 3), "squeeze": 3}
    parts = {
        name: [i for i, c in enumerate(state) if c.startswith(f"{name}.")] for name in ("gripper", "fingers", "block")
    }
    edges = {"gripper": ["gripper", "move"], "fingers": ["fingers", "squeeze"], "block": ["block"]}

    def local(rows: Tensor) -> Tensor:
        mask = alone.sparsest.to(rows.device).repeat(len(rows), 1, 1)
        near = distance(rows, parts) < NEAR
        place = {name: i for i, name in enumerate(alone.parents)}
        for parent, child in (("gripper", "block"), ("fingers", "block"), ("move", "block"), ("squeeze", "block")):
            mask[:, place[parent], place[child]] = near
        mask[:, place["block"], place["fingers"]] = near
        return mask

    alone = mocoda.LocalGraph(parts, action, edges)
    return mocoda.LocalGraph(parts, action, edges, local)


def distance(rows: Tensor, parts: Any) -> Tensor:
    """Metres between the gripper and the block, (N,)."""
    apart: Tensor = (rows[:, parts["gripper"][POSITION]] - rows[:, parts["block"][POSITION]]).norm(dim=1)
    return apart


def simulator_state(env: Named) -> Any:
    inner: Any = env.unwrapped
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(inner.model, kind))
    mujoco.mj_getState(inner.model, inner.data, state, kind)
    return state


def ask(env: Named, inner_state: Tensor, block: Tensor, action: Tensor) -> tuple[Any, Any]:
    """Puts the arm where it was at a recorded step and the block where it never was; returns state and next state."""
    from gymnasium_robotics.utils import rotations

    inner: Any = env.unwrapped
    mujoco.mj_setState(inner.model, inner.data, inner_state.numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
    position, turned, velocity, spin = block.double().numpy().reshape(4, 3)
    dt = inner.n_substeps * inner.model.opt.timestep
    joint = inner.data.joint("object0:joint")
    joint.qpos[:] = np.concatenate([position, rotations.euler2quat(turned)])
    joint.qvel[:] = np.concatenate([velocity, rotations.euler2mat(turned).T @ spin]) / dt  # spin is the block's own
    mujoco.mj_forward(inner.model, inner.data)
    before = env.observation(inner._get_obs())
    after = env.observation(inner.step(action.numpy())[0])
    return side_by_side(before), side_by_side(after)


def side_by_side(observation: dict[str, Any]) -> Any:
    """In the order of the data's columns, which is that of the observation space."""
    return np.concatenate([observation[name] for name in sorted(observation) if not name.endswith("_goal")])


def main(size: Sizes) -> None:
    os.environ.setdefault("MINARI_DATASETS_PATH", tempfile.mkdtemp(prefix="minari-"))
    env = make()
    env.reset(seed=0)
    inner = record(env, size.episodes, "fetch/clumsy-v0")

    data = mocoda.read("minari:fetch/clumsy-v0")
    graph = declare(data)
    parts = graph.factors
    near = distance(data.rows, parts) < NEAR
    print(f"recorded  {len(data):,} rows, the gripper near the block in {near.float().mean():.0%}")

    parents = mocoda.fit_parents(data, graph)
    config = mocoda.DynamicsConfig(members=3, hidden=(128, 128), epochs=size.epochs, window=min(5, size.epochs))
    model = mocoda.fit_dynamics(data, graph, config=config)
    task = Placing(data, list(parts["block"]))
    augmented = mocoda.augment(data, parents, model, rows=size.rows, task=task, hindsight=0.5)
    mocoda.write(augmented, "minari:fetch/clumsy-mocoda-v0")
    generated = augmented[len(data) :]
    near = distance(generated.rows, parts) < NEAR
    print(f"augmented {len(augmented):,} rows, generated ones near in {near.float().mean():.0%}")

    # A generated row's block, with the recorded arm that is nearest to its own.
    arm = [*parts["gripper"], *parts["fingers"]]
    scale = data.state[:, arm].std(0) + 1e-6
    rows, following = [], []
    for row in generated.rows[: size.asked]:
        nearest = int(((data.state[:, arm] - row[arm]) / scale).norm(dim=1).argmin())
        before, after = ask(env, inner[nearest], row[list(parts["block"])], row[graph.state_width :])
        rows.append(np.concatenate([before, row[graph.state_width :].numpy()]))
        following.append(after)
    asked, true = torch.tensor(np.stack(rows)), torch.tensor(np.stack(following))
    predicted = model.predict(asked).mean.mean(0)
    near = distance(asked, parts) < NEAR
    print(f"\nasked the simulator for {len(asked)} next states; median error of positions in mm")
    print(f"{'':12}{'rows':>6}{'gripper':>10}{'block':>8}{'block, if it stayed':>22}")
    moved = (true - asked[:, : graph.state_width])[:, parts["block"][POSITION]].norm(dim=1) > 0.001
    for label, chosen in (("apart", ~near), ("near", near), ("block moves", moved)):
        if bool(chosen.any()):
            errors = [
                (guess[chosen][:, parts[name][POSITION]] - true[chosen][:, parts[name][POSITION]]).norm(dim=1).median()
                for guess, name in ((predicted, "gripper"), (predicted, "block"), (asked, "block"))
            ]
            gripper, block, stayed = (1_000 * float(error) for error in errors)
            print(f"{label:12}{int(chosen.sum()):>6}{gripper:>10.2f}{block:>8.2f}{stayed:>22.2f}")
    print(f"\nwritten to {os.environ['MINARI_DATASETS_PATH']}; minari.load_dataset('fetch/clumsy-mocoda-v0') reads it")
    env.close()


if __name__ == "__main__":
    words = sys.argv[1:] or [""]
    if words[0] not in SIZES or len(words) > 1:
        sys.exit("usage: python examples/fetch_minari.py [--tiny | --large]")
    main(SIZES[words[0]])
