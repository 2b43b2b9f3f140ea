"""What commands left in their run folders, as the page shows it: audits, checks and trainings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from mocoda.agents.evaluation import MEASURES
from mocoda.analysis import graph_check, row_audit
from mocoda.data.formats.guarded import refusing
from mocoda.engine.errors import InputError
from mocoda.engine.metrics import JSONL, Metric, read_metrics
from mocoda.engine.printed import Table
from mocoda.engine.runs import settings_of
from mocoda.engine.statistics import summarise

POINTS = 60  # of a curve, at most; each is the mean of the evaluations around it
Found = Mapping[str, Any] | str | Path  # JSON values, a file of them, or the folder that the file is in


class Panel(NamedTuple):
    """A heading with sentences, and tables under it."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table]


def audit_panel(found: row_audit.Audit | Found) -> Panel:
    """The result of `mocoda.audit`, or of the audit.json that `mocoda audit` writes."""
    with _json_of(found.to_json() if isinstance(found, row_audit.Audit) else found, "audit.json") as told:
        return Panel("Audit: is it true?", [row_audit.summary(told)], row_audit.tables(told))


def check_panel(found: graph_check.Advice | Found) -> Panel:
    """The result of `mocoda.check`, or of the advice.json that `mocoda check` writes."""
    with _json_of(found.to_json() if isinstance(found, graph_check.Advice) else found, "advice.json") as told:
        if isinstance(told["recommendation"], str):
            raise TypeError("a list of sentences is needed")
        sentences = [str(sentence) for sentence in told["recommendation"]]
        return Panel("Check: does the data support the graph?", sentences, graph_check.tables(told))


def training_curves(folders: Sequence[str | Path]) -> dict[str, Any]:
    """The curves of all runs in folders that `mocoda train` wrote, and their last values, by metric.

    A curve belongs to one agent and one data set: the mean over seeds, and the 95% CI of the mean (bootstrap). The last
    values are those of `mocoda evaluate`, if it was run, or else of the last point of the curve. Numbers that are not
    finite are left out. Metrics of evaluations come first, then what losses measured, such as "critic/q_max".
    """
    curves: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for folder in map(Path, folders):
        with refusing(str(folder / JSONL), JSONL):
            metrics = [metric for metric in read_metrics(folder) if isfinite(metric.value)]
        if not metrics:
            raise InputError(f"the folder {str(folder)!r} holds no {JSONL} with numbers. `mocoda train` writes one.")
        agent = str(settings_of(folder).get("agent", folder.name))
        several = sum(str(settings_of(other).get("agent")) == agent for other in folders) > 1
        name = f"{agent} ({folder.name})" if several else agent
        evaluated = _evaluated(folder)
        with refusing(str(folder / JSONL), JSONL):
            for data in dict.fromkeys(metric.data for metric in metrics):
                series = f"{name}, {data}"
                for measure in dict.fromkeys(metric.name for metric in metrics if metric.data == data):
                    points = _curve([metric for metric in metrics if (metric.data, metric.name) == (data, measure)])
                    head = {"series": series, "metric": measure}
                    curves += [{**head, "update": at, **_summary(values)} for at, values in points]
                    ends.append(head | evaluated.get((data, measure), _summary(points[-1][1])))
    names = sorted(dict.fromkeys(curve["metric"] for curve in curves), key=_place)
    better = {name: MEASURES[name] for name in names if name in MEASURES}
    measured = [name for name in names if "/" in name and not name.startswith("loss/")]
    shown = list(better) or names
    return {"metrics": names, "better": better, "measured": measured, "shown": shown, "curves": curves, "ends": ends}


def _place(metric: str) -> tuple[int, str]:
    """The order of metrics: of evaluations, measured by losses, losses."""
    first = list(MEASURES).index(metric) if metric in MEASURES else len(MEASURES) + metric.startswith("loss/")
    return first, metric


def _curve(metrics: Sequence[Metric]) -> list[tuple[int, Sequence[float]]]:
    """Points of a curve: the update, and every seed's mean over the evaluations around it."""
    updates = sorted({metric.update for metric in metrics})
    width = -(-len(updates) // POINTS)
    point = {update: updates[min((i // width + 1) * width, len(updates)) - 1] for i, update in enumerate(updates)}
    values: dict[int, dict[int, list[float]]] = {}  # point -> seed -> values
    for metric in metrics:
        values.setdefault(point[metric.update], {}).setdefault(metric.seed, []).append(metric.value)
    return [(at, [sum(own) / len(own) for own in seeds.values()]) for at, seeds in sorted(values.items())]


def _summary(values: Sequence[float]) -> dict[str, float | int]:
    summary = summarise(values)
    return {"mean": summary.mean, "low": summary.low, "high": summary.high, "seeds": len(values)}


def _evaluated(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(data set, measure) -> mean and interval, of evaluation.json if it is there."""
    if not (folder / "evaluation.json").exists():
        return {}
    with _json_of(folder, "evaluation.json") as told:
        seeds = {data: sum(run["data"] == data for run in told["runs"]) for data in told["summaries"]}
        return {
            (data, measure): {**{key: _finite(one[key]) for key in ("mean", "low", "high")}, "seeds": seeds[data]}
            for data, measures in told["summaries"].items()
            for measure, one in measures.items()
        }


def _finite(number: Any) -> float:
    if not isfinite(value := float(number)):
        raise ValueError(f"{value} is not a finite number")
    return value


@contextmanager
def _json_of(found: Found, name: str) -> Iterator[Any]:
    """JSON values as a run folder holds them; using them in the context is checked, too."""
    if isinstance(found, Mapping):
        with refusing("what was given", name):
            yield found
        return
    path = Path(found) / name if Path(found).is_dir() else Path(found)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; name a folder with {name} in it, or the file itself.")
    with refusing(str(path), name):
        yield json.loads(path.read_text("utf-8"))
