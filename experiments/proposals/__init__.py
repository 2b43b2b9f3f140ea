"""What 20 proposals allow: the steps of a BCQ whose critic is never wrong, by how many actions it may choose from.

BCQ takes the best of some actions that the data proposes. Here these come from the distribution that MoCoDA draws
actions from, given the state, and the critic is exact: its values are those of the best policy that chooses among that
many proposals, in the true world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import PUBLISHED, PublishedMocoda
from experiments.experiment import Experiment, Run, by_place, cell, cells_table
from experiments.figures import draw_line
from experiments.table2 import PAPER
from mocoda.engine.figure_style import BLUE, GREY, INK, ORANGE, bare, legend_below, save, title_left
from mocoda.engine.randomness import Stream
from mocoda.parents.mocoda import MixtureParents, Mocoda
from mocoda.tasks.navigation import Navigation

FIRST = 100  # the first seed; no table uses it
LOW, HIGH, TICKS = -0.1, 1.1, 61  # of the lattice of states on which values are computed
DRAWS = {"mixture": Mocoda, "published": PublishedMocoda}
LABELS = {"mixture": "as in the paper's text", "published": "as in the paper's code"}


@dataclass(frozen=True)
class Proposals(Experiment):
    """How fast BCQ could walk with a perfect critic, by its number of proposals (Table 2)."""

    name = "proposals"
    metric = "steps to the goal (70 where it is not reached), mean over episodes"
    outputs = ("proposals.json", "proposals.png")

    numbers: tuple[int, ...] = (5, 10, 20, 50, 100)
    rows: int = 40_000
    episodes: int = 200
    components: int = 32
    drawn: int = 256  # actions at each state of the lattice

    def __post_init__(self) -> None:
        self.check_positive("seeds", "rows", "episodes", "components")

    def measure(self, run: Run) -> dict[str, Any]:
        """Fits parents, computes the true values, and walks by the best of the proposals."""
        task = Navigation()
        steps: dict[tuple[str, int], list[float]] = {}
        for seed in range(FIRST, FIRST + self.seeds):
            data = task.collect(self.rows, seed=seed).to(run.device)
            for draws, kind in DRAWS.items():
                recipe = kind(components=self.components, **PUBLISHED)
                parents = recipe.fit(data, task.graph, task=task, model=None, seed=seed)
                assert isinstance(parents, MixtureParents)
                stream = Stream(seed, "proposals", device=run.device)
                proposed = proposals(parents, lattice().to(run.device), self.drawn, stream.child("lattice"))
                for number in self.numbers:
                    values = true_values(task, proposed, number)
                    walked = walk(task, parents, values, number, self.episodes, stream)
                    steps.setdefault((draws, number), []).append(walked)
                    run.progress("walks", sum(map(len, steps.values())), self.seeds * len(DRAWS) * len(self.numbers))
        return {"cells": [cell(draws, str(number), found) for (draws, number), found in steps.items()]}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws steps by the number of proposals, a line per way to draw components, and what the paper reports."""
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.subplots()
        for draws, colour in zip(DRAWS, (BLUE, ORANGE), strict=True):
            own = [one for one in results["cells"] if one["row"] == draws]
            numbers = [int(one["column"]) for one in own]
            label = f"components drawn {LABELS[draws]}"
            draw_line(axes, numbers, [one["values"] for one in own], color=colour, label=label)
        paper = PAPER["bcq"][3]
        assert paper is not None
        axes.axhline(paper[0], color=INK, lw=1, ls="--", label="the paper's BCQ on MoCoDA")
        axes.axvline(20, color=GREY, lw=1, ls=":", label="BCQ's proposals")
        axes.set(xscale="log", xlabel="actions to choose from", ylabel="steps to the goal")
        axes.set_xticks(numbers)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        title_left(axes, "Even a perfect critic needs actions to choose from")
        bare(axes)
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return cells_table(results, 1, {draws: f"components drawn {label}" for draws, label in LABELS.items()})

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        steps = {place: one["mean"] for place, one in by_place(results).items()}
        paper = PAPER["bcq"][3]
        assert paper is not None
        return (
            f"With 20 proposals even a perfect critic needs {steps['mixture', '20']:.1f} steps, and "
            f"{steps['published', '20']:.1f} if components are drawn as in the paper's code; the paper reports "
            f"{paper[0]:.1f}."
        )


Proposals.presets = {
    "paper": Proposals("paper", seeds=3),
    "quick": Proposals("quick", seeds=1, numbers=(5, 20), rows=4_000, episodes=40, components=8),
}


def true_values(task: Navigation, proposed: Tensor, number: int) -> Tensor:
    """The steps to the goal from every state of the lattice, (TICKS²,), of the best of `number` proposals.

    proposed  (TICKS², M, 2), actions that the data proposes there

    The expected least of `number` draws is a weighted sum of the M values, sorted: the i-th is the least with
    probability ((M - i + 1) / M)^number - ((M - i) / M)^number.
    """
    states, many = lattice().to(proposed.device), proposed.shape[1]
    pairs = torch.cat([states.repeat_interleave(many, 0), proposed.flatten(0, 1)], 1)
    after = task.step(pairs)
    reached = task.label(pairs[:, :2], pairs[:, 2:], after)[1]
    beyond = (torch.arange(many, -1, -1, device=states.device) / many) ** number
    weights = beyond[:-1] - beyond[1:]
    values = torch.full((len(states),), float(task.horizon), device=states.device)
    for _ in range(task.horizon):
        ahead = torch.where(reached, 0.0, interpolated(values, after)).view(len(states), many)
        values = (1 + ahead.sort(1).values @ weights).clamp(max=task.horizon)
    return values


def lattice() -> Tensor:
    """The states on which values are computed, (TICKS², 2)."""
    ticks = torch.linspace(LOW, HIGH, TICKS)
    return torch.cartesian_prod(ticks, ticks)


def proposals(parents: MixtureParents, state: Tensor, number: int, stream: Stream) -> Tensor:
    """Actions (N, number, 2) that the parents draw given states (N, 2)."""
    rows = torch.cat([state, torch.zeros_like(state)], 1).repeat_interleave(number, 0)
    for columns, mixture in parents.sets:
        known = [place for place, column in enumerate(columns) if column < 2]
        rows[:, columns] = mixture.complete(rows[:, columns], known=known, seed=stream.child(*columns))
    return rows[:, 2:].clamp(-1, 1).view(len(state), number, 2)


def interpolated(values: Tensor, state: Tensor) -> Tensor:
    """Values at states (N, 2), between those of the lattice (TICKS²,): (N,)."""
    place = ((state - LOW) / (HIGH - LOW) * (TICKS - 1)).clamp(0, TICKS - 1.001)
    corner = place.floor().long()
    right, up = (place - corner).unbind(1)
    index = corner[:, 0] * TICKS + corner[:, 1]
    below = values[index] * (1 - right) + values[index + TICKS] * right
    above = values[index + 1] * (1 - right) + values[index + TICKS + 1] * right
    return below * (1 - up) + above * up


def walk(
    task: Navigation, parents: MixtureParents, values: Tensor, number: int, episodes: int, stream: Stream
) -> float:
    """Mean steps of episodes that take the best of `number` proposals, drawn given the state, at every step."""
    state = task.start(episodes, seed=stream.child("start"), device=values.device)
    steps, walking = torch.zeros(episodes, device=values.device), torch.ones(episodes, device=values.device).bool()
    for step in range(task.horizon):
        chosen = proposals(parents, state, number, stream.child("walk", number, step)).flatten(0, 1)
        rows = torch.cat([state.repeat_interleave(number, 0), chosen], 1)
        after = task.step(rows)
        reached = task.label(rows[:, :2], rows[:, 2:], after)[1]
        ahead = torch.where(reached, 0.0, interpolated(values, after)).view(episodes, number)
        best = ahead.argmin(1) + number * torch.arange(episodes, device=values.device)
        steps += walking
        walking &= ~reached[best]
        state = torch.where(walking[:, None], after[best], state)
    return float(steps.mean())
