"""Training runs: curves with intervals over seeds, and where the agents end, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from mocoda.agents.evaluation import MEASURES
from mocoda.engine.errors import InputError
from mocoda.engine.metrics import JSONL, Metric, read_metrics
from mocoda.engine.runs import settings_of
from mocoda.engine.statistics import Summary, summarise

POINTS = 60  # of a curve, at most; each is the mean of the evaluations around it
Values = dict[int, dict[int, list[float]]]  # point -> seed -> values


def training(folders: Sequence[str | Path]) -> dict[str, Any]:
    """The curves of all runs in folders that `mocoda train` wrote, and their last values, by metric.

    A curve is of one agent and one data set: the mean over seeds, and the 95% CI of the mean (bootstrap). The last
    values are those of `mocoda evaluate`, where it has been asked, or else of the last point of the curve. What is not
    a finite number is left out.
    """
    curves: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for folder in map(Path, folders):
        metrics = [metric for metric in read_metrics(folder) if isfinite(metric.value)]
        if not metrics:
            raise InputError(f"the folder {str(folder)!r} holds no {JSONL} with numbers. `mocoda train` writes one.")
        agent = str(settings_of(folder).get("agent", folder.name))
        several = sum(str(settings_of(other).get("agent")) == agent for other in folders) > 1
        name = f"{agent} ({folder.name})" if several else agent
        evaluated = _evaluated(folder)
        for data in dict.fromkeys(metric.data for metric in metrics):
            series = f"{name}, {data}"
            for measure in dict.fromkeys(metric.name for metric in metrics if metric.data == data):
                own = [metric for metric in metrics if metric.data == data and metric.name == measure]
                points = _curve(own)
                curves += [{"series": series, "metric": measure, "update": at, **_figures(one)} for at, one in points]
                end = evaluated.get((data, measure), _figures(points[-1][1]))
                ends.append({"series": series, "metric": measure, **end})
    names = list(dict.fromkeys(curve["metric"] for curve in curves))
    names.sort(key=lambda name: (list(MEASURES).index(name) if name in MEASURES else len(MEASURES), name))
    better = {name: MEASURES.get(name, "") for name in names}
    return {"metrics": names, "better": better, "curves": curves, "ends": ends}


def _curve(metrics: Sequence[Metric]) -> list[tuple[int, Sequence[float]]]:
    """Points of a curve: the update, and every seed's mean over the evaluations around it."""
    updates = sorted({metric.update for metric in metrics})
    width = -(-len(updates) // POINTS)
    point = {update: updates[min((i // width + 1) * width, len(updates)) - 1] for i, update in enumerate(updates)}
    values: Values = {}
    for metric in metrics:
        values.setdefault(point[metric.update], {}).setdefault(metric.seed, []).append(metric.value)
    return [(at, [sum(own) / len(own) for own in seeds.values()]) for at, seeds in sorted(values.items())]


def _figures(values: Sequence[float]) -> dict[str, float | int]:
    summary: Summary = summarise(values)
    return {"mean": summary.mean, "low": summary.low, "high": summary.high, "seeds": len(values)}


def _evaluated(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(data set, measure) -> mean and interval, of evaluation.json if it is there."""
    file = folder / "evaluation.json"
    if not file.exists():
        return {}
    told = json.loads(file.read_text("utf-8"))
    seeds = {data: sum(run["data"] == data for run in told["runs"]) for data in told["summaries"]}
    return {
        (data, measure): {**{key: one[key] for key in ("mean", "low", "high")}, "seeds": seeds[data]}
        for data, measures in told["summaries"].items()
        for measure, one in measures.items()
    }
