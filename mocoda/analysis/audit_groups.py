"""Groups of audited rows: how many of each are true."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from mocoda.analysis.rates import Cell, share_of
from mocoda.augmentation.provenance import OWN, RECORDED
from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN

GRAPHS = 12  # local graphs that are told apart, the commonest


def beside(confirmed: Tensor, new: Tensor, group: Tensor | None = None) -> Cell:
    """The share of generated rows, of a group if given, and that of recorded ones if there are any."""
    chosen = torch.ones_like(new) if group is None else group
    recorded = confirmed[chosen & ~new]
    return share_of(confirmed[chosen & new]) | {"recorded": share_of(recorded) if len(recorded) else None}


def by_recipe(table: Transitions, confirmed: Tensor) -> dict[str, Cell]:
    recipe = table.provenance.get("recipe")
    if recipe is None:
        return {"all rows": share_of(confirmed)}
    return {name: share_of(confirmed[recipe == number]) for number, name in _recipes(recipe).items()}


def _recipes(recipe: Tensor) -> dict[int, str]:
    """The numbers that occur in provenance, and their names."""
    names = {RECORDED: "recorded", **{i: name for i, name in enumerate(BUILT_IN, 1)}, OWN: "own"}
    numbers = sorted(set(recipe.tolist()), key=lambda number: (number == OWN, number))
    return {number: names.get(number, str(number)) for number in numbers}


def by_episode(table: Transitions, confirmed: Tensor, new: Tensor, whole: bool) -> dict[str, dict[str, Cell]]:
    """Rows by tenths of their step, and if episodes are whole these by recipe: how many are true to the last step."""
    assert table.episode is not None and table.step is not None
    known = table.episode >= 0
    found = {"step": by_decile(table.step[known], confirmed[known], new[known], recorded=True)}
    if not whole:
        return found
    order = table.step[known].argsort(stable=True)
    order = order[table.episode[known][order].argsort(stable=True)]
    true, episode = confirmed[known][order], table.episode[known][order]
    _, number, steps = torch.unique_consecutive(episode, return_inverse=True, return_counts=True)
    first = steps.cumsum(0) - steps
    place = torch.arange(len(true), device=true.device) - first[number]
    until = steps.scatter_reduce(0, number, torch.where(true, steps[number], place), "amin")  # before the first error
    recipe = table.provenance.get("recipe", torch.full_like(table.step, OWN))[known][order][first]
    kinds = {OWN: "all episodes"} if "recipe" not in table.provenance else _recipes(recipe)
    cells = {}
    for kind, name in kinds.items():
        own = recipe == kind
        share = share_of((until == steps)[own])
        episodes = share.pop("rows")
        cells[name] = share | {
            "rows": int(steps[own].sum()),
            "episodes": episodes,
            "true_steps": float(until[own].double().median()),
        }
    return {"episode": cells, **found}


def by_local_graph(table: Transitions, graph: LocalGraph, confirmed: Tensor, new: Tensor) -> dict[str, Cell]:
    """The commonest local graphs of generated rows, called by the edges that the sparsest one lacks; then the rest."""
    masks = torch.cat([graph.mask(block) for block in table.rows.split(65_536)])
    kinds, number = torch.unique(masks.flatten(1), dim=0, return_inverse=True)
    counts = torch.bincount(number[new], minlength=len(kinds))
    order = [kind for kind in counts.argsort(descending=True, stable=True).tolist() if counts[kind]]
    sparsest = graph.sparsest.to(masks.device)
    cells = {}
    for kind in order[:GRAPHS]:
        mask = kinds[kind].view_as(sparsest)
        more = [_edge(graph, edge) for edge in (mask & ~sparsest).nonzero().tolist()]
        less = [_edge(graph, edge) for edge in (sparsest & ~mask).nonzero().tolist()]
        name = ", ".join([*(f"+ {edge}" for edge in more), *(f"- {edge}" for edge in less)]) or "sparsest"
        cells[name] = beside(confirmed, new, number == kind)
    if len(order) > GRAPHS:
        rest = torch.isin(number, torch.tensor(order[:GRAPHS], device=number.device), invert=True)
        cells[f"{len(order) - GRAPHS} others"] = beside(confirmed, new, rest)
    return cells


def _edge(graph: LocalGraph, edge: list[int]) -> str:
    return f"{graph.parents[edge[0]]} -> {graph.children[edge[1]]}"


def by_decile(values: Tensor, confirmed: Tensor, new: Tensor, recorded: bool) -> dict[str, Cell]:
    """Generated rows by tenths of their values, fewer where many are equal; if asked, recorded ones in these bounds."""
    ordered = values[new].double().sort().values
    starts = ordered[[tenth * len(ordered) // 10 for tenth in range(10)]].unique()
    number = torch.bucketize(values.double(), starts[1:], right=True)
    digits = next(d for d in range(3, 18) if d == 17 or len({f"{start:.{d}g}" for start in starts}) == len(starts))
    names = [f"{bound:.{digits}g}" for bound in (*starts.tolist(), float(ordered[-1]))]
    cells = {f"{low} to {high}": beside(confirmed, new, number == i) for i, (low, high) in enumerate(pairwise(names))}
    return cells if recorded else {name: cell | {"recorded": None} for name, cell in cells.items()}
