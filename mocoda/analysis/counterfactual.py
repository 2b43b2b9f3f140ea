"""Counterfactual questions: what would have happened, had only these factors been different (Appendix F)?

The model predicts the children that the change reaches. All others keep their recorded value to the bit, and with it
its noise.

Axes: N factual rows, W worlds (draws of the resampled parents), S and A columns of state and action, E members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import rich.console
import torch
from torch import Tensor

from mocoda.augmentation.support import REFERENCE, densities, ranks
from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.dynamics import Ensemble, Prediction
from mocoda.engine.errors import InputError, check_counts, check_names
from mocoda.engine.printed import Printed, Table, rich_tables
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.mocoda import MixtureParents, StratifiedParents, fewer_components
from mocoda.parents.recipe import Parents, Region

WIDTH = 1.96  # standard deviations on either side of an interval's middle: 95% of a Gaussian
CANDIDATES = 128  # draws of which one is chosen, where a resampled column is in several parent sets
COMPONENTS = 32  # of mixtures that are fitted to the data


@dataclass(frozen=True, eq=False)
class WhatIf(Printed):
    """The answer to a counterfactual question; prints as a table of its first row.

    factual         the recorded transitions
    counterfactual  the transitions that would have happened: changed parents, children kept or resampled; no reward
    resampled       bool (N, children): the children that the change reaches
    low, high       (N, S), the model's 95% interval; where a child is kept, the child itself
    support         (N,), the share of the data whose parents are at least as rare as the changed ones: the minimum over
                    the parent sets that changed; 1 where nothing changed
    """

    graph: LocalGraph
    factual: Transitions
    counterfactual: Transitions
    resampled: Tensor
    low: Tensor
    high: Tensor
    support: Tensor
    changed: tuple[str, ...]  # the factors that were set
    drawn: tuple[str, ...]  # those that were resampled given the rest

    def __rich__(self) -> rich.console.Group:
        """One line per column: its value, its counterfactual value, and the next value of each."""
        first = f", the first of {len(self.factual)} rows" if len(self.factual) > 1 else ""
        rarer = f"{100 * float(self.support[0]):.2g}% of the data is as rare or rarer"
        heads = ("", "factual", "what if", "", "next, factual", "next, what if", "95% interval", "mechanism")
        rows: list[list[str]] = []
        row, changed = (transitions.rows[0].tolist() for transitions in (self.factual, self.counterfactual))
        next_state, instead = (transitions.next_state[0] for transitions in (self.factual, self.counterfactual))
        children = list(self.graph.children)
        for name, columns in self.graph.factors.items():
            how = "fixed" if name in self.changed else "drawn" if name in self.drawn else "kept"
            resampled = name in children and bool(self.resampled[0, children.index(name)])
            for i in columns:
                cells = [self.factual.columns[i], f"{row[i]:.4g}", f"{changed[i]:.4g}", how]
                if name in children:
                    interval = f"{self.low[0, i]:.4g} to {self.high[0, i]:.4g}" if resampled else ""
                    mechanism = "resampled" if resampled else "kept"
                    cells += [f"{next_state[i]:.4g}", f"{instead[i]:.4g}", interval, mechanism]
                rows.append(cells)
        return rich_tables([Table(f"What if{first}: {rarer}", heads, rows)])


def what_if(
    row: Transitions,
    changes: Mapping[str, Array],
    *,
    data: Transitions,
    model: Ensemble,
    graph: LocalGraph,
    resample: Sequence[str] = (),
    parents: Parents | None = None,
    draws: int = 100,
    least_support: float = 0.01,
    seed: int | Stream = 0,
) -> WhatIf:
    """Predicts what would have happened had the factors in `changes` been different.

    row            the factual transition, such as data[17:18]; or several, each answered on its own
    changes        factor -> its value: one for all rows, or one per row
    data           the recorded rows that tell what is rare
    model          as from `fit_dynamics`, or any object with `predict` and `sample`
    resample       factors to draw given all others; factors neither changed nor resampled stay as they are
    parents        mixtures of the recorded rows, as from `fit_parents` with density="mixture". If they are stratified
                   by local graph, support is measured among the rows with the same local graph, so that unrecorded
                   contacts are refused, and nothing can be resampled. None, or parents of another kind: mixtures are
                   fitted to the data
    draws          number of worlds with other resampled parents behind each interval; the first is the answer
    least_support  the least share of the data that must be as rare as the question; 0 answers anything
    """
    graph.check_data(row)
    if not isinstance(parents, MixtureParents | StratifiedParents):
        components = fewer_components(COMPONENTS, len(data), graph)
        parents = MixtureParents.fit(data, graph, components, as_stream(seed, "parents", device=data.device))
    _check_names(changes, resample, graph)
    check_counts(draws=draws)
    if not 0 <= least_support < 1:
        raise InputError(f"least_support must be a share of the data, from 0 to below 1, got {least_support}.")
    n, worlds = len(row), draws if resample else 1
    stream = as_stream(seed, "what-if", device=row.device)
    before = row.rows.repeat(worlds, 1)
    after = _changed(row.rows, changes, graph).repeat(worlds, 1)
    if resample:
        if isinstance(parents, StratifiedParents):
            raise InputError("resample draws from mixtures of all the data; pass parents fitted with stratified=False.")
        after = drawn_given_rest(parents, after, set(graph.columns(resample)), stream.child("parents"))
    reached = reached_children(graph, before, after)
    resampled = reached[:, graph.owner[: graph.state_width].to(reached.device)]  # by column
    known = data.rows[stream.permutation(len(data))[:REFERENCE]]
    support = _support(parents, before, after, known).unflatten(0, (worlds, n)).median(0).values
    rarest = int(support.argmin())
    if float(support[rarest]) < least_support:
        which = _weakest(parents, before[rarest, None], after[rarest, None], known, graph)
        free = [name for name in which if name not in (*changes, *resample) and isinstance(parents, MixtureParents)]
        raise _refusal(rarest, float(support[rarest]), least_support, which, free)
    sampled = model.sample(after[:n], seed=stream.child("model"))
    low, high = _interval(model.predict(after), resampled, row.next_state)
    counterfactual = Transitions(
        after[:n, : graph.state_width],
        after[:n, graph.state_width :],
        torch.where(resampled[:n], sampled, row.next_state),
        columns=row.columns,
        source={"factual": dict(row.source), "changed": list(changes), "resampled": list(resample)},
    )
    return WhatIf(graph, row, counterfactual, reached[:n], low, high, support, tuple(changes), tuple(resample))


def reached_children(graph: LocalGraph, before: Tensor, after: Tensor) -> Tensor:
    """The children that a change of rows (N, S + A) reaches, bool (N, children).

    These are the children that depend, before or after, on a factor that differs, and those whose edges differ.
    """
    differs = torch.stack([(before != after)[:, list(columns)].any(1) for columns in graph.factors.values()], 1)
    edges, new_edges = graph.mask(before), graph.mask(after)
    return (differs[:, :, None] & (edges | new_edges)).any(1) | (edges != new_edges).any(1)


def drawn_given_rest(parents: MixtureParents, rows: Tensor, unknown: set[int], stream: Stream) -> Tensor:
    """Rows (N, S + A) whose `unknown` columns are drawn given all their other columns, which stay as they are.

    The parent sets are completed in turn, each given its columns that are known or drawn already. That is exact unless
    a later set knows something about a column that an earlier one has drawn; then, of several candidates, one is chosen
    in proportion to how likely it makes what the later sets know.
    """
    shared = any(sum(column in columns for columns, _ in parents.sets) > 1 for column in unknown)
    candidates = CANDIDATES if shared else 1
    proposed = rows.repeat_interleave(candidates, 0)
    weight = torch.zeros(len(proposed), dtype=torch.float64, device=rows.device)
    drawn: set[int] = set()
    seen: set[int] = set()
    for number in parents.order():
        columns, mixture = parents.sets[number]
        known = [i for i, column in enumerate(columns) if column not in unknown - drawn]
        earlier = [i for i, column in enumerate(columns) if column in seen]
        values = proposed[:, columns]
        if drawn.intersection(columns):
            weight += mixture.marginal(known).log_prob(values[:, known])
            weight -= mixture.marginal(earlier).log_prob(values[:, earlier])
        proposed[:, columns] = mixture.complete(values, known=known, seed=stream.child(number))
        drawn |= unknown.intersection(columns)
        seen.update(columns)
    chosen = stream.category_per_row(weight.unflatten(0, (-1, candidates)).softmax(1))
    return proposed[torch.arange(len(rows), device=rows.device) * candidates + chosen]


def _check_names(changes: Mapping[str, Array], resample: Sequence[str], graph: LocalGraph) -> None:
    if isinstance(resample, str):
        raise InputError(f"resample must be a list of names, got the string {resample!r}.")
    check_names("factor", (*changes, *resample), graph.factors)
    if both := [name for name in resample if name in changes]:
        raise InputError(f"the factors {both} are both changed and resampled; a factor is one or the other.")


def _changed(rows: Tensor, changes: Mapping[str, Array], graph: LocalGraph) -> Tensor:
    changed = rows.clone()
    for name, value in changes.items():
        given = as_tensor(value).to(rows)
        columns = graph.factors[name]
        shape = (len(rows), len(columns))
        if given.ndim == 1 and len(columns) == 1:  # a plain list of one value a row
            given = given[:, None]
        if given.ndim > 2 or any(g not in (1, s) for g, s in zip(given.shape[::-1], shape[::-1], strict=False)):
            raise InputError(
                f"the change of {name!r} must be one value, or {shape[1]} per row, of a shape that fits {shape}, "
                f"got {tuple(given.shape)}."
            )
        if not bool(torch.isfinite(given).all()):
            raise InputError(f"the change of {name!r} has NaN or inf; expected finite numbers.")
        changed[:, list(columns)] = given.expand(shape)
    return changed


def _parts(parents: MixtureParents | StratifiedParents) -> list[tuple[Region, MixtureParents]]:
    """Each set of mixtures, with the rows that it holds for."""
    if isinstance(parents, MixtureParents):
        return [(lambda rows: torch.ones(len(rows), dtype=torch.bool, device=rows.device), parents)]
    return [(parents.region(one.mask), one.mixtures) for one in parents.neighbourhoods]


def _support(parents: MixtureParents | StratifiedParents, before: Tensor, after: Tensor, reference: Tensor) -> Tensor:
    """The share of the reference rows under the same mixtures that are as rare as rows (M, S + A): (M,).

    It is 1 where nothing changed, and 0 where no mixtures hold.
    """
    support = (before == after).all(1).float()
    for holds, mixtures in _parts(parents):
        mine = holds(after)
        support[mine] = _rarity(mixtures, before[mine], after[mine], reference[holds(reference)]).amin(1)
    return support


def _rarity(mixtures: MixtureParents, before: Tensor, after: Tensor, reference: Tensor) -> Tensor:
    """The same for each parent set, (M, sets); 1 for sets that did not change."""
    rank = ranks(mixtures, after, densities(mixtures, reference))
    touched = torch.stack([(before != after)[:, list(columns)].any(1) for columns, _ in mixtures.sets], 1)
    return torch.where(touched, rank, 1.0)


def _weakest(
    parents: MixtureParents | StratifiedParents, before: Tensor, after: Tensor, reference: Tensor, graph: LocalGraph
) -> list[str]:
    """The factors of the rarest parent set of a row (1, S + A); none where no mixtures hold."""
    for holds, mixtures in _parts(parents):
        if bool(holds(after)):
            rarity = _rarity(mixtures, before, after, reference[holds(reference)])
            columns = set(mixtures.sets[int(rarity.argmin())][0])
            return [name for name, own in graph.factors.items() if columns.issuperset(own)]
    return []


def _refusal(row: int, support: float, least: float, names: list[str], free: list[str]) -> InputError:
    """The error for a question whose parents are too rare; `free` ones may be resampled."""
    way_out = f"Resample what goes with it (resample={free}), change less" if free else "Change less"
    reason = (
        f"the parents ({', '.join(names)}) would be rarer than {100 - 100 * support:.4g}% of the data, "
        f"expected at most {100 - 100 * least:.4g}%"
        if names
        else "the local graph would be one that hardly any recorded row has"
    )
    return InputError(
        f"the question leaves what the data supports: in row {row} {reason}. {way_out}, or pass least_support=0 to get "
        "an answer anyway."
    )


def _interval(prediction: Prediction, resampled: Tensor, factual: Tensor) -> tuple[Tensor, Tensor]:
    """Middle ∓ WIDTH deviations (N, S) of the mixture of all members in all worlds, with the mixture's two moments.

    In float64, where the mean of equal float32 numbers is that very number: a kept child is its own interval.
    """
    shape = (-1, *factual.shape)  # (W, N, S)
    mean, scale = (part.double().unflatten(1, shape[:2]) for part in prediction)
    kept = ~resampled.reshape(shape)
    mean = torch.where(kept, factual.double(), mean).flatten(0, 1)
    scale = torch.where(kept, 0.0, scale).flatten(0, 1)
    middle = mean.mean(0)
    spread = WIDTH * (mean.var(0, correction=0) + scale.square().mean(0)).sqrt()
    return (middle - spread).float(), (middle + spread).float()
