"""How good scores of edges are, against the true edges of the same rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mocoda.engine.statistics import area_under_curve

BINS = 15  # of the calibration error
Measures = dict[str, float | None]  # None where there is nothing to measure


def local_edges(truth: Tensor) -> Tensor:
    """The edges that hold in some rows but not in all, no factor's on itself, bool (P, C); truth is (N, P, C)."""
    share = truth.double().mean(0)
    return (share > 0) & (share < 1) & others(truth)


def others(truth: Tensor) -> Tensor:
    """All edges but those of a factor on itself, bool (P, C)."""
    return ~torch.eye(*truth.shape[1:], dtype=torch.bool, device=truth.device)


def best_threshold(scores: Tensor, truth: Tensor, *, balanced: bool = False) -> float:
    """The score that an edge must reach for the highest F1, or for the fewest mistakes on balanced rates."""
    hits, passed, levels = _curve(scores, truth)
    wanted, unwanted = truth.sum(), (~truth).sum()
    if balanced:
        good = hits / wanted.clamp(min=1) - (passed - hits) / unwanted.clamp(min=1)
    else:
        good = 2 * hits / (passed + wanted)
    return float(levels[good.argmax()])


def f1(said: Tensor, truth: Tensor) -> float | None:
    """Twice the hits by the edges that are said and those that are true; None where there are neither."""
    total = int(said.sum() + truth.sum())
    return float(2 * (said & truth).sum() / total) if total else None


def balanced_error(said: Tensor, truth: Tensor) -> float | None:
    """The share of wrong answers, as if half of the rows were edges; None where all or none are."""
    if not bool(truth.any()) or bool(truth.all()):
        return None
    return float(((~said)[truth].double().mean() + said[~truth].double().mean()) / 2)


def calibration_error(scores: Tensor, truth: Tensor) -> float:
    """The expected difference between a probability and how often there is an edge, in 15 bins."""
    scores = scores.double()
    number = (scores * BINS).long().clamp(0, BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64, device=scores.device).index_add_(0, number, scores - truth.double())
    return float(gap.abs().sum() / len(scores))


def measures(
    valid: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    actions: int,
    threshold: float | None = None,
    fixed: bool = False,
    probability: bool = False,
) -> Measures:
    """All measures of scores (N, P, C) against true edges (N, P, C), over local edges.

    auroc                  of all pairs of rows and edges together
    auroc_actions          over edges from actions alone
    f1                     where edges are cut at the score that has the highest F1 on validation rows
    f1_own                 where they are cut at the method's own threshold
    rebalanced             wrong answers as if half were edges, cut at the best score for that on validation rows
    calibration            expected calibration error, of probabilities
    edges, share           how many local edges there are, and in which share of the rows they hold

    valid, test  scores and truth, each; thresholds are chosen on the first, everything is measured on the second
    actions      how many of the parents, the last ones, are of the action
    fixed        edges are cut at `threshold` and nowhere else
    """
    scores, truth = test
    local = local_edges(torch.cat([valid[1], truth]))
    flat = {"valid": (valid[0][:, local], valid[1][:, local]), "test": (scores[:, local], truth[:, local])}
    if not bool(local.any()):
        return {"edges": 0.0}
    known, known_truth = (part.flatten() for part in flat["valid"])
    own, own_truth = (part.flatten() for part in flat["test"])
    cut, fair = (best_threshold(known, known_truth, balanced=balanced) for balanced in (False, True))
    if fixed and threshold is not None:
        cut = fair = threshold
    of_action = local.clone()
    of_action[: len(local) - actions] = False
    return {
        "auroc": area_under_curve(own, own_truth)["auroc"],
        "auroc_actions": area_under_curve(scores[:, of_action].flatten(), truth[:, of_action].flatten())["auroc"],
        "f1": f1(own >= cut, own_truth),
        "f1_own": None if threshold is None else f1(own > threshold, own_truth),
        "rebalanced": balanced_error(own >= fair, own_truth),
        "calibration": calibration_error(own, own_truth) if probability else None,
        "edges": float(local.sum()),
        "share": float(own_truth.double().mean()),
    }


def by_edge(scores: Tensor, truth: Tensor, known: Tensor, names: Mapping[tuple[int, int], str]) -> Measures:
    """The AUROC of each named edge (parent, child), and of all of them where the truth is known, bool (N, P, C)."""
    found: Measures = {}
    for (p, c), name in names.items():
        own = known[:, p, c]
        found[f"auroc {name}"] = area_under_curve(scores[:, p, c], truth[:, p, c])["auroc"]
        found[f"auroc_known {name}"] = area_under_curve(scores[own, p, c], truth[own, p, c])["auroc"]
    named = torch.zeros_like(known)
    for p, c in names:
        named[:, p, c] = known[:, p, c]
    return {"auroc_known": area_under_curve(scores[named], truth[named])["auroc"], **found}


def _curve(scores: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hits, how many pass, and the score, at each distinct score from the highest on: (K,) each, float64."""
    order = scores.double().argsort(descending=True)
    ordered, hits = scores.double()[order], truth[order].double().cumsum(0)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    passed = torch.arange(1, len(ordered) + 1, dtype=torch.float64, device=scores.device)
    return hits[last], passed[last], ordered[last]
