"""Section 3.2: how fast sparse steps entangle, and why models generalise where values do not.

In the world of k objects one step's graph is sparse. Over a horizon it is not: what an object depends on is the product
of the masks along the way. So states whose parts were all recorded, though never together, should be easy for a model
of one step and hard for a value function, unless MoCoDA makes such states to learn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import PUBLISHED
from experiments.entanglement.values import Lesson, ValueConfig, fit_values, true_values
from experiments.experiment import Experiment, Run, markdown_table, plus_minus, read_json, spread
from experiments.figures import draw_line
from experiments.stages import fit_models, paper_dynamics
from experiments.worlds import TrueModel
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.figure_style import BLUE, GREEN, GREY, ORANGE, RED, bare, save, title_left
from mocoda.engine.networks import Weights, mlp
from mocoda.engine.randomness import Stream
from mocoda.parents import MocodaP, fit_parents
from mocoda.tasks.objects import EPISODE, HOME, Objects

MODELS = {"factored model": "local", "unfactored model": "full"}
# What is measured, with its label, colour and line in the figure.
MODEL_LINES = {
    "factored model": ("locally factored model", BLUE, "-"),
    "unfactored model": ("unfactored model", GREY, "-"),
}
VALUES = {
    "recorded": ("from recorded data", RED, "-"),
    "recorded, true returns": ("from recorded data, with true returns", ORANGE, "-"),
    "mocoda": ("from MoCoDA's data too", BLUE, "-"),
    "mocoda, true dynamics": ("from MoCoDA's data, true dynamics", GREEN, "--"),
}
# Policies that imitate the expert, in whichever states they see; a network for each column of the action.
POLICIES = ("policy cloned in recorded states", "policy cloned in MoCoDA's states too")
LEARNERS = (*VALUES, *(f"{name}, {axis}" for name in POLICIES for axis in "xy"))
SHADES = ("#bcd3ea", "#7fabd6", "#2563a8", "#123a66")  # few objects to many
STEPS = (1, 10, 20, 50)  # that the table shows


@dataclass(frozen=True)
class Entanglement(Experiment):
    """How sparse steps entangle over the horizon, and what that does to models and values (Section 3.2)."""

    name = "entanglement"
    metric = (
        "filled: percent of the state's factors that an object depends on after so many steps, mean over objects and "
        "recorded episodes; acting: if every action listens to the whole state. cells: mean errors by how many objects "
        "are at home; models: of the next state, in percent of the mean step; else: of the value, in percent of its "
        "range"
    )
    outputs = ("entanglement.json", "entanglement.png")

    dynamics: DynamicsConfig
    values: ValueConfig
    counts: tuple[int, ...] = (2, 4, 8, 16)  # of objects, whose graphs are multiplied
    episodes: int = 400  # recorded, for the graphs
    objects: int = 4  # where values are learned
    rows: int = 20_000  # recorded
    made: int = 20_000  # by MoCoDA
    components: int = 16
    test_rows: int = 1_000  # for every number of objects at home

    def measure(self, run: Run) -> dict[str, Any]:
        """Multiplies the recorded graphs, then fits models and values for all seeds, and compares them with truth."""
        task, seeds = Objects(self.objects), range(self.seeds)
        filled = [filling(Objects(count), self.episodes, run.device) for count in self.counts]
        recorded = [task.collect(self.rows, seed=seed).to(run.device) for seed in seeds]
        models = {name: fit_models(run, recorded, task.graph, kind, self.dynamics) for name, kind in MODELS.items()}
        lessons = {
            (seed, name): lesson
            for seed, (data, model) in enumerate(zip(recorded, models["factored model"], strict=True))
            for name, lesson in zip(LEARNERS, self._lessons(task, data, model, seed), strict=True)
        }
        values = fit_values(lessons, self.values, device=run.device, progress=run.progress)
        errors = [
            self._errors(task, recorded[seed], {name: each[seed] for name, each in models.items()}, values, seed)
            for seed in seeds
        ]
        return {"spread": filled, "cells": _over_seeds(errors), "recorded": _shares(task, recorded)}

    def _lessons(self, task: Objects, data: Transitions, model: Dynamics, seed: int) -> list[Lesson]:
        """In the order of LEARNERS. True returns and actions are learned as rewards after which nothing follows."""
        parents = fit_parents(data, task.graph, MocodaP(components=self.components, **PUBLISHED), task=task, seed=seed)
        made = [
            augment(data, parents, one, rows=self.made, task=task, seed=seed, provenance=False, reuse=False)
            for one in (model, TrueModel(task))
        ]
        recorded, *others = (lesson_of(task, table, data, self.values.discount) for table in (data, *made))
        returns = recorded.reward + recorded.ahead * true_values(task, data.next_state, self.values.discount)
        true_returns = recorded._replace(reward=returns, ahead=torch.zeros_like(returns))
        cloned = [lesson for table in (data, made[0]) for lesson in _actions(task, table.state, data)]
        return [recorded, true_returns, *others, *cloned]

    def _errors(
        self, task: Objects, data: Transitions, models: Mapping[str, Dynamics], values: Weights, seed: int
    ) -> list[dict[str, Any]]:
        """A seed's errors in recorded states and in recombined ones, none of which was learned from."""
        stream = Stream(seed, "entanglement-test", device=data.device)
        fresh = task.collect(self.rows, seed=stream).to(data.device).state
        fresh = fresh[~_home(task, fresh).all(1)]
        states: dict[tuple[str, int | None], Tensor] = {("recorded", None): fresh[: self.test_rows]}
        for home in range(task.objects):
            own = fresh[_home(task, fresh).sum(1) == home]
            if len(own) >= 30:  # else there is nothing to average
                states["recorded", home] = own[: self.test_rows]
            states["recombined", home] = recombined(task, fresh, home, self.test_rows, stream.child(home))
        every = {name: weight.unflatten(0, (self.seeds, len(LEARNERS)))[seed] for name, weight in values.items()}
        own_weights = {name: weight[: len(VALUES)] for name, weight in every.items()}
        cloned = {name: weight[len(VALUES) :] for name, weight in every.items()}
        cells = []
        for (kind, number), state in states.items():
            rows = torch.cat([state, task.expert(state)], 1)
            next_state, truth = task.step(rows), true_values(task, state, self.values.discount)
            step = (next_state - state).norm(dim=1).mean()
            errors = {
                name: 100 * float((model.sample(rows, seed=stream) - next_state).norm(dim=1).mean() / step)
                for name, model in models.items()
            }
            learned = mlp(own_weights, "value", standardised(rows, data).expand(len(VALUES), -1, -1))[..., 0]
            errors |= dict(zip(VALUES, (100 * (learned - truth).abs().mean(1)).tolist(), strict=True))
            seen, action = standardised(_unmoved(state), data), task.expert(state)
            said = mlp(cloned, "value", seen.expand(2 * len(POLICIES), -1, -1))[..., 0].unflatten(0, (-1, 2)).mT
            off = 100 * (said - action).norm(dim=2).mean(1) / action.norm(dim=1).mean()
            errors |= dict(zip(POLICIES, off.tolist(), strict=True))
            cells += [{"what": name, "states": kind, "home": number, "error": error} for name, error in errors.items()]
        return cells

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws what an object depends on by steps back, and errors by how many objects are at home."""
        figure = Figure(figsize=(14.5, 4.6), layout="constrained")
        filled, model, value = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
        for number, cell in enumerate(results["spread"]):
            colour = SHADES[min(number, len(SHADES) - 1)]
            filled.plot(cell["filled"]["given actions"], color=colour, lw=2.4, label=f"{cell['objects']} objects")
            filled.plot(cell["filled"]["acting"], color=colour, lw=1.4, ls="--")
        filled.plot([], [], color=GREY, lw=1.4, ls="--", label="if actions depend on the whole state")
        filled.set(xlim=(0, None), ylim=(0, 100), xlabel="steps back", ylabel="factors that an object depends on (%)")
        filled.legend(frameon=False, fontsize=9, loc="upper left")
        title_left(filled, "Sparse for a step, entangled over the horizon")
        bare(filled)
        _draw_errors(model, results, MODEL_LINES)
        model.set_ylabel("error of the next state (% of a step)")
        title_left(model, "Models of a step generalise to unseen states …")
        _draw_errors(value, results, VALUES)
        value.set_ylabel("error of the value (% of its range)")
        title_left(value, "… values do not, unless trained on such states")
        save(figure, folder / self.outputs[1])

    @classmethod
    def table(cls, results: Mapping[str, Any]) -> str:
        labels = {name: f"{name}, % of a step" for name in MODELS}
        return cls._errors_table(results, labels | {n: f"value {VALUES[n][0]}, % of its range" for n in VALUES})

    @staticmethod
    def _errors_table(results: Mapping[str, Any], labels: Mapping[str, str]) -> str:
        """Errors in recorded and in recombined states, a line for each label."""
        homes = list(results["recorded"])
        wanted = [("recorded", None), *(("recombined", int(home)) for home in homes)]
        rows = []
        for name, label in labels.items():
            cells = {(c["states"], c["home"]): c for c in results["cells"] if c["what"] == name}
            rows.append([label, *(plus_minus(cells[key], 1) for key in wanted)])
        rows.append(
            ["share of the recorded rows, %", "100", *(f"{share:.1f}" for share in results["recorded"].values())]
        )
        return markdown_table(["", "recorded states", *(f"recombined, {home} at home" for home in homes)], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        last = max(map(int, results["recorded"]))
        error = {c["what"]: c["mean"] for c in results["cells"] if (c["states"], c["home"]) == ("recombined", last)}
        return (
            f"Where {last} objects are at home, which hardly any row shows, a value learned from the recorded data is "
            f"off by {error['recorded']:.0f}% of its range, one from MoCoDA's data by {error['mocoda']:.0f}%, and one "
            f"regressed on true returns by {error['recorded, true returns']:.0f}%. The model of one step is off by "
            f"{error['factored model']:.1f}% of a step."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        rows = []
        for one in cls.results(folder)["spread"]:
            given, acting = one["filled"]["given actions"], one["filled"]["acting"]
            edges = [f"{one[key]:.0f}" for key in ("edges", "edges_of_any_step")]
            rows.append([str(one["objects"]), *edges, *(f"{given[n]:.0f}" for n in STEPS), f"{acting[STEPS[2]]:.0f}"])
        columns = ["objects", "edges of a step, %", "of any step", *(f"after {n}" for n in STEPS)]
        columns.append(f"after {STEPS[2]}, if actions depend on all")
        named = {name: f"{name}, % of an action" for name in POLICIES}
        policies = cls._errors_table(read_json(folder / "policies.json"), named)
        return super().blocks(folder) | {"spread": markdown_table(columns, rows), "policies": policies}


Entanglement.presets = {
    "paper": Entanglement(
        "paper",
        seeds=5,
        dynamics=paper_dynamics(epochs=60, window=10),
        values=ValueConfig(updates=50_000, hidden=(256, 256), batch=512, learning_rate=3e-4),
        episodes=4_000,
        rows=100_000,
        made=400_000,
        components=32,
        test_rows=10_000,
    ),
    # Policies at a size for two cores.
    "policies": Entanglement(
        "policies",
        seeds=5,
        dynamics=paper_dynamics(members=2, hidden=(64, 64), features=32, epochs=8, batch=256, learning_rate=3e-3),
        values=ValueConfig(updates=5_000),
        rows=40_000,
        made=80_000,
        test_rows=5_000,
    ),
    "quick": Entanglement(
        "quick",
        seeds=3,
        dynamics=paper_dynamics(members=2, hidden=(64, 64), features=32, epochs=8, batch=256, learning_rate=3e-3),
        values=ValueConfig(updates=5_000),
    ),
}


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
    reached = [reach]
    for step in steps.unbind(1):
        reached.append((reached[-1].float() @ step.float()) > 0)
    return reached


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


def lesson_of(task: Objects, table: Transitions, data: Transitions, discount: float) -> Lesson:
    next_rows = torch.cat([table.next_state, task.expert(table.next_state)], 1)
    reward, ended = task.label(table.state, table.action, table.next_state)
    rows, after = (standardised(part, data) for part in (table.rows, next_rows))
    return Lesson(rows, after, (1 - discount) * reward, discount * ~ended)


def _actions(task: Objects, state: Tensor, data: Transitions) -> list[Lesson]:
    """The expert's action in states (N, S), a lesson for each of its columns."""
    rows = standardised(_unmoved(state), data)
    return [Lesson(rows, rows, column, torch.zeros_like(column)) for column in task.expert(state).unbind(1)]


def _unmoved(state: Tensor) -> Tensor:
    """Rows (N, S + A) of states without an action."""
    return torch.cat([state, state.new_zeros(len(state), 2)], 1)


def _over_seeds(seeds: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Cells with their values, one a seed that has such states."""
    values: dict[tuple[str, str, int | None], list[float]] = {}
    for cell in (cell for cells in seeds for cell in cells):
        values.setdefault((cell["what"], cell["states"], cell["home"]), []).append(cell["error"])
    return [
        {"what": what, "states": states, "home": home, **spread(each)} for (what, states, home), each in values.items()
    ]


def _shares(task: Objects, recorded: Sequence[Transitions]) -> dict[str, float]:
    """Percent of the recorded rows with so many objects at home, for every number but all."""
    count = torch.cat([_home(task, data.state).sum(1) for data in recorded])
    return {str(home): _percent(count == home) for home in range(task.objects)}


def _home(task: Objects, state: Tensor) -> Tensor:
    """Which objects are at home, bool (N, k)."""
    return state[:, 0 : 4 * task.objects : 4] > HOME


def standardised(rows: Tensor, data: Transitions) -> Tensor:
    return (rows - data.rows.mean(0)) / data.rows.std(0)


def _percent(which: Tensor) -> float:
    return 100 * float(which.double().mean())


def _draw_errors(axes: Axes, results: Mapping[str, Any], lines: Mapping[str, tuple[str, str, str]]) -> None:
    """Draws errors in recombined states, by how many objects are at home."""
    for name, (label, colour, style) in lines.items():
        own = [c for c in results["cells"] if (c["what"], c["states"]) == (name, "recombined")]
        draw_line(axes, [c["home"] for c in own], [c["values"] for c in own], color=colour, ls=style, label=label)
    shares = results["recorded"]
    axes.set_xticks([*map(int, shares)], [f"{home}\n({share:.0f}%)" for home, share in shares.items()])
    axes.set(ylim=(0, None), xlabel="objects at home (share of the recorded rows)")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    bare(axes)
