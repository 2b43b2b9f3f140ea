"""a preset -> how fast sparse steps entangle, and why models generalise where values do not (Section 3.2).

In the world of k objects one step's graph is sparse. Over a horizon it is not: what an object depends on is the product
of the masks along the way. So states whose parts were all recorded, though never together, should be easy for a model
of one step and hard for a value function, unless MoCoDA makes such states to learn from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import rich.table
import torch
from torch import Tensor

from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import fit_dynamics_runs
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.networks import Weights, mlp
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import mean_and_std
from mocoda.paper.entanglement_figure import draw_entanglement
from mocoda.paper.experiment import heading
from mocoda.paper.values import Lesson, ValueConfig, fit_values, true_values
from mocoda.parents.recipes import fit_parents
from mocoda.tasks.objects import EPISODE, HOME, Objects

OUTPUTS = ("entanglement.json", "entanglement.png")
METRIC = (
    "filled: percent of the state's factors that an object depends on after so many steps, mean over objects and "
    "recorded episodes; acting: if every action listens to the whole state. cells: mean errors by how many objects are "
    "at home; models: of the next state, in percent of the mean step; else: of the value, in percent of its range"
)
MODELS = {"factored model": "local", "unfactored model": "full"}
VALUES = ("recorded", "recorded, true returns", "mocoda", "mocoda, true dynamics")


@dataclass(frozen=True)
class Entanglement:
    """Settings of the measurement."""

    preset: str
    seeds: int
    dynamics: DynamicsConfig
    values: ValueConfig
    counts: tuple[int, ...] = (2, 4, 8, 16)  # of objects, whose graphs are multiplied
    episodes: int = 400  # recorded, for the graphs
    objects: int = 4  # where values are learned
    rows: int = 20_000  # recorded
    made: int = 20_000  # by MoCoDA
    components: int = 16
    test_rows: int = 1_000  # for every number of objects at home

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")


PRESETS = {
    "paper": Entanglement(
        "paper",
        seeds=5,
        dynamics=DynamicsConfig(epochs=60, window=10),
        values=ValueConfig(updates=50_000, hidden=(256, 256), batch=512, learning_rate=3e-4),
        episodes=4_000,
        rows=100_000,
        made=400_000,
        components=32,
        test_rows=10_000,
    ),
    "quick": Entanglement(
        "quick",
        seeds=3,
        dynamics=DynamicsConfig(members=2, hidden=(64, 64), features=32, epochs=8, batch=256, learning_rate=3e-3),
        values=ValueConfig(updates=5_000),
    ),
}


def entanglement(
    settings: Entanglement, *, device: str, folder: Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Multiplies the recorded graphs, then fits models and values for all seeds, and compares them with the truth.

    folder  where the models' checkpoint is kept while they train
    """
    started = time.monotonic()
    task, seeds = Objects(settings.objects), range(settings.seeds)
    spread = [filling(Objects(count), settings.episodes, device) for count in settings.counts]
    recorded = [task.collect(settings.rows, seed=seed).to(device) for seed in seeds]
    models = {name: _models(task, recorded, kind, settings, folder, progress) for name, kind in MODELS.items()}
    lessons = {
        (seed, name): lesson
        for seed, (data, model) in enumerate(zip(recorded, models["factored model"], strict=True))
        for name, lesson in zip(VALUES, _lessons(task, data, model, settings, seed), strict=True)
    }
    values = fit_values(lessons, settings.values, device=device, progress=progress)
    found = [
        _errors(task, recorded[seed], {name: each[seed] for name, each in models.items()}, values, seed, settings)
        for seed in seeds
    ]
    return {
        **heading("entanglement", settings, METRIC, device, time.monotonic() - started),
        "spread": spread,
        "cells": _over_seeds(found),
        "recorded": _shares(task, recorded),
    }


def write(results: dict[str, Any], folder: Path) -> rich.table.Table:
    """Writes what was measured and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], results)
    draw_entanglement(results, folder / OUTPUTS[1])
    homes = list(results["recorded"])
    table = rich.table.Table(title="Errors by how many objects are at home, in percent")
    for column in ("what", "recorded states", *(f"recombined, {home}" for home in homes)):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name in (*MODELS, *VALUES):
        cells = {(c["states"], c["home"]): c for c in results["cells"] if c["what"] == name}
        wanted = [("recorded", None), *(("recombined", int(home)) for home in homes)]
        texts = [f"{cells[key]['mean']:.1f} ± {cells[key]['std']:.1f}" for key in wanted]
        table.add_row(name if name in MODELS else f"value: {name}", *texts)
    table.add_row("share of the recorded rows", "100", *(f"{share:.1f}" for share in results["recorded"].values()))
    return table


def filling(task: Objects, episodes: int, device: str) -> dict[str, Any]:
    """How sparse a step is, and how the graphs of the recorded steps fill up when multiplied, in percent."""
    data = task.collect(episodes * EPISODE, seed=Stream(0, "entanglement-graphs")).to(device)
    mask = task.graph.mask(data.rows)
    along = mask.unflatten(0, (episodes, EPISODE))
    dependence = {"given actions": reaches(along), "acting": reaches(along, acting=True)}
    return {
        "objects": task.objects,
        "edges": _percent(mask),  # of a step, among all parents and children
        "edges_of_any_step": _percent(mask.any(0)),
        "filled": {name: [_percent(step[:, :, :-1]) for step in reach] for name, reach in dependence.items()},
    }


def reaches(mask: Tensor, acting: bool = False) -> list[Tensor]:
    """Which state factors (first) at the start of an episode reach which ones (second) after 0, 1, … steps.

    mask    bool (episodes, T, parents, children), the last parent being the action
    acting  the action is chosen by a policy that sees the whole state; else it is given
    """
    steps = mask[:, :, :-1] | mask[:, :, -1:] if acting else mask[:, :, :-1]
    reach = torch.eye(mask.shape[3], dtype=torch.bool, device=mask.device).repeat(len(mask), 1, 1)
    found = [reach]
    for step in steps.unbind(1):
        found.append((found[-1].float() @ step.float()) > 0)
    return found


def recombined(task: Objects, states: Tensor, home: int, n: int, stream: Stream) -> Tensor:
    """n states in which `home` objects are at home, of parts that were all recorded (N, S), each in another row."""
    where = _home(task, states)
    chosen = stream.uniform(n, task.objects).argsort(1) < home
    made = states[stream.integers(len(states), n)]  # the agent's place stays
    for i, name in enumerate(task.graph.children[:-1]):
        columns = list(task.graph.factors[name])
        for side in (True, False):
            pool, mine = states[where[:, i] == side][:, columns], (chosen[:, i] == side).nonzero()
            made[mine, columns] = pool[stream.integers(len(pool), len(mine))]
    return made


def _models(
    task: Objects,
    recorded: Sequence[Transitions],
    architecture: str,
    settings: Entanglement,
    folder: Path | None,
    progress: Progress,
) -> list[Dynamics]:
    """The architecture's model for every seed."""
    checkpoint = folder / f"checkpoint-{architecture}.safetensors" if folder else None
    models = fit_dynamics_runs(
        recorded,
        task.graph,
        architecture,
        seeds=range(settings.seeds),
        config=settings.dynamics,
        checkpoint=checkpoint,
        progress=progress,
    )
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return models


class _Truth(NamedTuple):
    """The true dynamics, where a model is asked for."""

    task: Objects

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return self.task.step(rows)


def _lessons(task: Objects, data: Transitions, model: Dynamics, settings: Entanglement, seed: int) -> list[Lesson]:
    """In the order of VALUES. To learn true returns is to learn rewards after which nothing follows."""
    parents = fit_parents(data, task.graph, "mocoda-p", task=task, components=settings.components, seed=seed)
    made = [
        augment(data, parents, one, rows=settings.made, task=task, seed=seed, provenance=False)
        for one in (model, _Truth(task))
    ]
    recorded, *others = (_lesson(task, table, data, settings) for table in (data, *made))
    returns = recorded.reward + recorded.ahead * true_values(task, data.next_state, settings.values.discount)
    return [recorded, recorded._replace(reward=returns, ahead=torch.zeros_like(returns)), *others]


def _lesson(task: Objects, table: Transitions, data: Transitions, settings: Entanglement) -> Lesson:
    following = torch.cat([table.next_state, task.expert(table.next_state)], 1)
    reward, ended = task.label(table.state, table.action, table.next_state)
    rows, after = (_standardised(part, data) for part in (table.rows, following))
    return Lesson(rows, after, (1 - settings.values.discount) * reward, settings.values.discount * ~ended)


def _errors(
    task: Objects,
    data: Transitions,
    models: Mapping[str, Dynamics],
    values: Weights,
    seed: int,
    settings: Entanglement,
) -> list[dict[str, Any]]:
    """A seed's errors in recorded states and in recombined ones, none of which was learned from."""
    stream = Stream(seed, "entanglement-test", device=data.device)
    fresh = task.collect(settings.rows, seed=stream).to(data.device).state
    fresh = fresh[~_home(task, fresh).all(1)]
    states: dict[tuple[str, int | None], Tensor] = {("recorded", None): fresh[: settings.test_rows]}
    for home in range(task.objects):
        own = fresh[_home(task, fresh).sum(1) == home]
        if len(own) >= 30:  # else there is nothing to average
            states["recorded", home] = own[: settings.test_rows]
        states["recombined", home] = recombined(task, fresh, home, settings.test_rows, stream.child(home))
    own_weights = {name: weight[seed * len(VALUES) :][: len(VALUES)] for name, weight in values.items()}
    cells = []
    for (kind, number), state in states.items():
        rows = torch.cat([state, task.expert(state)], 1)
        following, truth = task.step(rows), true_values(task, state, settings.values.discount)
        step = (following - state).norm(dim=1).mean()
        errors = {
            name: 100 * float((model.sample(rows, seed=stream) - following).norm(dim=1).mean() / step)
            for name, model in models.items()
        }
        learned = mlp(own_weights, "value", _standardised(rows, data).expand(len(VALUES), -1, -1))[..., 0]
        errors |= dict(zip(VALUES, (100 * (learned - truth).abs().mean(1)).tolist(), strict=True))
        cells += [{"what": name, "states": kind, "home": number, "error": error} for name, error in errors.items()]
    return cells


def _over_seeds(found: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Cells with their values, one a seed that has such states."""
    values: dict[tuple[str, str, int | None], list[float]] = {}
    for cell in (cell for cells in found for cell in cells):
        values.setdefault((cell["what"], cell["states"], cell["home"]), []).append(cell["error"])
    return [
        {"what": what, "states": states, "home": home, "values": each, "mean": mean, "std": std}
        for (what, states, home), each in values.items()
        for mean, std in [mean_and_std(each)]
    ]


def _shares(task: Objects, recorded: Sequence[Transitions]) -> dict[str, float]:
    """Percent of the recorded rows with so many objects at home, for every number but all."""
    count = torch.cat([_home(task, data.state).sum(1) for data in recorded])
    return {str(home): _percent(count == home) for home in range(task.objects)}


def _home(task: Objects, state: Tensor) -> Tensor:
    """Which objects are at home, bool (N, k)."""
    return state[:, 0 : 4 * task.objects : 4] > HOME


def _standardised(rows: Tensor, data: Transitions) -> Tensor:
    return (rows - data.rows.mean(0)) / data.rows.std(0)


def _percent(which: Tensor) -> float:
    return 100 * float(which.double().mean())
