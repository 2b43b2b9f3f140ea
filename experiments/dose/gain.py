"""What augmenting gains by dose, where more is worse, and whether what was judged tells it: rank correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from experiments.dose.judge import AFTER, BEFORE
from experiments.experiment import spread
from mocoda.engine.statistics import mean_and_std

USUAL = 4.0  # the paper's own dose, with which the largest is compared
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 95% quantiles of |t| for 2 to 10 seeds


def lines_of(cells: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What augmenting gains by agent, size and density, where more is worse, and what the judges said.

    gain     mean over all doses above 0 of what is better than with recorded rows alone
    more     the same of the largest dose, less that of the paper's own
    changes  from every dose to the next: better by so much, paired by seed; `hurts` if all of its 95% CI is worse
    """
    doses = sorted({cell["dose"] for cell in cells})
    usual = min(doses[1:], key=lambda dose: abs(dose - USUAL))
    found = {(c["task"], c["agent"], c["rows"], c["density"], c["dose"]): torch.tensor(c["values"]) for c in cells}
    made = []
    for task, agent, size in dict.fromkeys((c["task"], c["agent"], c["rows"]) for c in cells):
        sign = -1 if task == "navigation" else 1  # fewer steps are better
        for density in dict.fromkeys(one["density"] for one in judged):
            reached = [found[task, agent, size, density if dose else None, dose] for dose in doses]
            better = sign * (torch.stack(reached).double() - reached[0])  # (doses, seeds)
            changes = [
                {"from": begin, "to": end, **_change((other - one).tolist())}
                for (begin, one), (end, other) in pairwise(zip(doses, better, strict=True))
            ]
            (own,) = (o for o in judged if (o["task"], o["rows"], o["density"]) == (task, size, density))
            made.append(
                {"task": task, "agent": agent, "rows": size, "density": density}
                | {"gain": spread(better[1:].mean(0).tolist())}
                | {"more": spread((better[-1] - better[doses.index(usual)]).tolist())}
                | {"changes": changes, **{name: own[name]["values"] for name in (*BEFORE, *AFTER)}}
            )
    return made


def correlations(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rank correlations of what was judged with what augmenting gains, by task and agent.

    rho       over sizes and densities, of means over seeds
    by_seed   over sizes, densities and seeds
    """
    made = []
    for task, agent in dict.fromkeys((line["task"], line["agent"]) for line in lines):
        own = [line for line in lines if (line["task"], line["agent"]) == (task, agent)]
        for measure in (*BEFORE, *AFTER):
            for outcome in ("gain", "more"):
                means = [(_mean(line[measure]), line[outcome]["mean"]) for line in own]
                seeds = [pair for one in own for pair in zip(one[measure], one[outcome]["values"], strict=True)]
                labels = {"task": task, "agent": agent, "judged": measure, "of": outcome}
                made.append(labels | {"rho": spearman(means), "points": len(means), "by_seed": spearman(seeds)})
    return made


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank. None of fewer than 3 pairs, or if a side never varies."""
    values = torch.tensor(pairs, dtype=torch.float64).T  # (2, N)
    above, same = (compare(values[:, :, None], values[:, None]).double().sum(2) for compare in (torch.gt, torch.eq))
    ranks = above + same / 2
    ranks = ranks - ranks.mean(1, keepdim=True)
    size = ranks.norm(dim=1)
    return float((ranks[0] * ranks[1]).sum() / size.prod()) if len(pairs) > 2 and bool((size > 0).all()) else None


def _change(values: Sequence[float]) -> dict[str, Any]:
    """The mean of one value a seed and its 95% CI by Student's t: a bootstrap of three seeds is too narrow."""
    mean, std = mean_and_std(values)
    if len(values) < 2:
        return {"better": mean, "interval": None, "hurts": False}
    half = STUDENT[min(len(values), 10) - 2] * std / len(values) ** 0.5
    return {"better": mean, "interval": [mean - half, mean + half], "hurts": mean + half < 0}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
