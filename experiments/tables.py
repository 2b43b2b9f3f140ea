"""How tables of agents are read: a line per data set, and each of them compared with ours, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.columns import DEFAULT, column_title
from experiments.experiment import average, by_place, cells_table, markdown_table, unique
from mocoda.engine.statistics import bootstrap_interval, probability_of_improvement

BOUNDS = ("optimum", "expert")  # rows that are no agents


def agent_title(name: str) -> str:
    """What a table calls an agent, whose name may be followed by a comma and a setting."""
    agent, *setting = name.partition(",")
    return agent.upper() + "".join(setting)


def data_table(results: Mapping[str, Any], digits: int) -> str:
    """Means and standard deviations, a line per data set and a column per agent, with the paper's means in brackets."""
    agents = (one for one in results["cells"] if one["row"] not in BOUNDS)
    cells = [one | {"row": one["column"], "column": one["row"]} for one in agents]
    names = {column: column_title(column) for column in unique(cells, "row")}
    titles = names | {name: agent_title(name) for name in unique(cells, "column")}
    return cells_table({"cells": cells}, digits, titles)


def reference(results: Mapping[str, Any]) -> str:
    """The column that others are compared with: the default recipe."""
    return DEFAULT if DEFAULT in unique(results["cells"], "column") else "mocoda"


def compared(results: Mapping[str, Any], digits: int, *, lower_is_better: bool) -> str:
    """Every data set against ours: the mean difference, paired by seed, and how often a seed of ours is better.

    The 95% intervals are bootstrapped over seeds.
    """
    cells, ours = by_place(results), reference(results)
    agents = [row for row in unique(results["cells"], "row") if row not in BOUNDS and (row, ours) in cells]
    lines = []
    for column in (column for column in unique(results["cells"], "column") if column != ours):
        texts = []
        for agent in agents:
            own, other = cells[agent, ours]["values"], cells.get((agent, column), {}).get("values")
            if other is None or len(other) != len(own):
                texts.append("")
                continue
            differences = [theirs - mine for theirs, mine in zip(other, own, strict=True)]
            low, high = bootstrap_interval(differences)
            better = probability_of_improvement(own, other, lower_is_better=lower_is_better)
            numbers = (f"{value:+.{digits}f}".replace("-", "−") for value in (average(differences), low, high))
            texts.append("{} ({} to {}), {:.0f}%".format(*numbers, 100 * better))
        if any(texts):
            lines.append([column_title(column), *texts])
    return markdown_table([f"minus {column_title(ours)}", *map(agent_title, agents)], lines)
