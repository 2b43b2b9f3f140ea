"""Trained policies: they act, and are saved as files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mocoda.agents.agent import AGENTS, TARGET, Agent, network_weights
from mocoda.data.transitions import Array, as_tensor
from mocoda.engine.checkpoint import DAMAGE, check_tensors, from_settings, load_trained, reading, save_trained
from mocoda.engine.errors import InputError, differing_keys
from mocoda.engine.files import VERSION, write_json
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Shapes, Stream, as_stream

BOUNDS = ("action_low", "action_high")
SHIPPED = Path(__file__).parent / "trained"  # policies that come with mocoda, by task


@dataclass(frozen=True, eq=False)
class Policy:
    """One trained agent: states in, actions out.

    weights  one run's weights by name, without targets; critics return values in the units that the agent learned in
    columns  names of what it sees (state, then goal) and of its actions, if the data had names
    """

    agent: Agent
    state_width: int
    weights: Weights
    action_low: Tensor  # (A,)
    action_high: Tensor  # (A,)
    columns: tuple[str, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the data it was trained on

    def __repr__(self) -> str:
        return f"Policy({self.agent.name!r}, state={self.state_width}, action={self.action_width})"

    @property
    def action_width(self) -> int:
        return len(self.action_low)

    @property
    def device(self) -> torch.device:
        return self.action_low.device

    def act(self, state: Array, *, seed: int | Stream = 0) -> Array:
        """Returns the action (A,) for a state (S,), or (N, A) for (N, S); numpy for numpy, torch for torch.

        seed  for agents that draw proposals: the same state and seed give the same action
        """
        rows = as_tensor(state).to(self.device, torch.float32)
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.state_width:
            raise InputError(
                f"state must have shape ({self.state_width},) or (N, {self.state_width}), got {tuple(rows.shape)}."
            )
        stacked = rows.reshape(1, -1, self.state_width)
        stream = as_stream(seed, "act", device=self.device)
        noise = self.agent.acting_noise(stream, stacked.shape[1], self.action_width)
        with torch.no_grad():
            action = self.agent.act(
                {name: weight[None] for name, weight in self.weights.items()},
                stacked,
                {name: value[None] for name, value in noise.items()},
            )
        action = to_task_range(action, self.action_low, self.action_high).reshape(*rows.shape[:-1], self.action_width)
        return action if isinstance(state, Tensor) else action.cpu().numpy()

    def to(self, device: torch.device | str) -> Policy:
        weights = {name: weight.to(device) for name, weight in self.weights.items()}
        bounds = {name: getattr(self, name).to(device) for name in BOUNDS}
        return replace(self, weights=weights, **bounds)

    def without_training(self) -> Policy:
        """Returns the policy with only the networks that acting needs, for a smaller file."""
        return replace(self, weights=acting_weights(self.agent, self.weights))

    def save(self, path: str | Path) -> None:
        """Writes weights and settings to a safetensors file."""
        bounds = {name: getattr(self, name) for name in BOUNDS}
        settings = {"agent": agent_settings(self.agent), "state_width": self.state_width, "columns": self.columns}
        header = {"settings": settings, "fingerprints": self.fingerprints}
        save_trained(path, "policy", {**self.weights, **bounds}, header)

    @staticmethod
    def load(path: str | Path, agent: Agent | None = None) -> Policy:
        """Reads what `save` wrote; if the agent is of your own class, pass it."""
        tensors, header = load_trained(path, "policy")
        with reading(path, "policy"):
            width, columns = header["settings"].get("state_width"), header["settings"].get("columns")
            settings = header["settings"].get("agent")
            if type(width) is not int or width < 1:
                raise InputError(f"its state_width must be an integer of at least 1, got {width!r}")
            if not isinstance(settings, dict) or not isinstance(settings.get("agent"), str):
                raise InputError("it does not say its agent")
            name = settings.pop("agent")
            if agent is None and name in AGENTS:
                agent = from_settings(AGENTS[name], settings)
        if agent is None:
            raise InputError(
                f"{str(path)!r} holds an agent {name!r} that is not one of mocoda's ({', '.join(AGENTS)}). "
                "Pass it: load(path, agent=...)."
            )
        defaults = {one.name: one.default for one in fields(agent) if one.default is not MISSING}
        found = _as_json({"agent": name, **defaults, **settings})  # settings that the file does not have are defaults
        given = agent_settings(agent)
        if found != given:
            keys = differing_keys(found, given)
            raise InputError(f"{str(path)!r} was trained by another agent than {agent!r}; they differ in {keys}.")
        with reading(path, "policy"):
            low, high = (tensors.pop(bound) for bound in BOUNDS)
            check_tensors({"action_high": high}, {"action_high": low})
            expected = network_weights(agent, width, len(low), Shapes())
            acting = acting_weights(agent, expected)
            check_tensors(tensors, acting if tensors.keys() == acting.keys() else expected)
            names = [column for column in columns if isinstance(column, str)]
            if len(names) != len(columns) or len(names) not in (0, width + len(low)):
                raise InputError(f"its columns must be {width + len(low)} names, got {columns!r}")
        return Policy(agent, width, tensors, low, high, tuple(names), header["fingerprints"])


def shipped_policy(task: str) -> Policy:
    """Loads a trained policy that comes with mocoda: for hooksweep2, or for cube-double and its official tasks."""
    file = SHIPPED / f"{task.partition(':')[0]}.safetensors"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.safetensors")))
        raise InputError(f"no trained policy for {task!r} comes with mocoda; there is one for: {known}.")
    return Policy.load(file)


class Policies(Mapping[tuple[str, int], Policy]):
    """Trained policies by data set and seed, with the curves of their evaluations during training.

    curves  "updates" (K,), and "steps", "success" and "return", (R, K) each, runs in the order of the keys
    """

    def __init__(self, policies: Mapping[tuple[str, int], Policy], curves: Mapping[str, Tensor]) -> None:
        self._policies = dict(policies)
        self.curves = dict(curves)

    def __getitem__(self, key: tuple[str, int]) -> Policy:
        if key not in self._policies:
            raise InputError(f"there is no agent {key!r}; there are: {', '.join(map(str, self._policies))}.")
        return self._policies[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __contains__(self, key: object) -> bool:  # Mapping's own would need a KeyError
        return key in self._policies

    def to(self, device: torch.device | str) -> Policies:
        return Policies({key: policy.to(device) for key, policy in self.items()}, self.curves)

    def __repr__(self) -> str:
        return f"Policies({', '.join(map(str, self._policies))})"

    def save(self, folder: str | Path) -> None:
        """Writes a file per policy, and agents.json, which lists them and holds the curves."""
        folder = Path(folder)
        runs = []
        for (data, seed), policy in self.items():
            file = f"policy-{data}-{seed}.safetensors"
            policy.save(folder / file)
            runs.append({"data": data, "seed": seed, "file": file})
        curves = {name: curve.tolist() for name, curve in self.curves.items()}
        write_json(folder / "agents.json", {"mocoda": VERSION, "runs": runs, "curves": curves})

    @staticmethod
    def load(folder: str | Path, agent: Agent | None = None) -> Policies:
        """Reads what `save` wrote."""
        listed = Path(folder) / "agents.json"
        if not listed.is_file():
            raise InputError(f"the folder {str(folder)!r} holds no agents.json. `mocoda train` makes one.")
        try:
            content = json.loads(listed.read_bytes())
            runs = {(run["data"], int(run["seed"])): run["file"] for run in content["runs"]}
            curves = {
                name: torch.tensor(curve, dtype=torch.int64 if name == "updates" else torch.float32)
                for name, curve in content["curves"].items()
            }
            files = {key: Path(folder) / str(file) for key, file in runs.items()}
        except (OSError, *DAMAGE) as error:
            raise InputError(f"{str(listed)!r} was not written by mocoda, or damaged since ({error!r}).") from error
        return Policies({key: Policy.load(file, agent) for key, file in files.items()}, curves)


def agent_settings(agent: Agent) -> dict[str, Any]:
    """Returns the agent as JSON values."""
    return _as_json({"agent": agent.name, **asdict(agent)})


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as a file gives them back: tuples become lists."""
    return cast(dict[str, Any], json.loads(json.dumps(settings)))


def acting_weights(agent: Agent, weights: Weights) -> dict[str, Tensor]:
    """Returns the weights that `agent.act` reads."""
    groups = {name.split(".")[0] for name in weights}
    acting = set(agent.acting) if groups.issuperset(agent.acting) else groups
    return {name: w for name, w in weights.items() if name.split(".")[0] in acting and not name.startswith(TARGET)}


def to_task_range(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Scales an agent's actions in [-1, 1] to the task's range."""
    return low + (high - low) * (action + 1) / 2


def to_unit_range(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Scales a task's actions to [-1, 1]."""
    return 2 * (action - low) / (high - low) - 1
